"""Plans: parts of variables on their ps, runs of bytes, and what is refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings

from dps.errors import PlacementError, ProtocolError
from dps.transport.dtypes import FLOATS
from dps.transport.wire import DTYPES
from dps.variables import columns
from dps.variables.plan import ALIGN, Plan, VariableSpec, make_plan
from tests.variables.models import ADAM, SGD, plans


def thirteen_rows() -> Plan:
    turn = iter(range(100))
    specs = [
        VariableSpec("w", (13, 2), "<f4", SGD),
        VariableSpec("b", (2,), "<f4", SGD),
        VariableSpec("s", (), "<f4", SGD),
    ]
    return make_plan(specs, (0, 1), lambda *_: next(turn) % 2, lambda name, shape, dtype: 5 if name == "w" else 1)


def test_parts_are_named_by_number_and_each_takes_a_turn() -> None:
    plan = thirteen_rows()
    assert [(p.name, p.shape, p.row0, p.ps) for p in plan.parts] == [
        ("w/part_0", (3, 2), 0, 0), ("w/part_1", (3, 2), 3, 1), ("w/part_2", (3, 2), 6, 0), ("w/part_3", (2, 2), 9, 1),
        ("w/part_4", (2, 2), 11, 0), ("b", (2,), 0, 1), ("s", (), 0, 0),
    ]  # fmt: skip
    assert [len(parts) for parts in plan.parts_of] == [5, 1, 1]
    assert plan.bytes_per_ps() == {0: (3 + 3 + 2) * 8 + 4, 1: (3 + 2) * 8 + 8}
    assert sum(plan.bytes_per_ps().values()) == 13 * 8 + 8 + 4


def test_slots_are_counted_for_each_ps_and_those_of_an_unknown_optimizer_are_not() -> None:
    averaged = {"name": "of another process", "moving_average": {"decay": 0.9}}
    specs = [
        VariableSpec("a", (3,), "<f4", ADAM), VariableSpec("b", (), "<f8", ADAM), VariableSpec("c", (5,), "<f4", SGD),
        VariableSpec("d", (7,), "<f4", averaged), VariableSpec("e", (7,), "<f4", None),
    ]  # fmt: skip
    plan = make_plan(specs, (0, 1), lambda name, *_: "ab".find(name) < 0, None)
    assert plan.slot_bytes_per_ps() == {0: 2 * (3 * 4 + 8), 1: 7 * 4}


def test_what_shares_dtype_and_optimizer_lies_together_and_a_sparse_table_alone() -> None:
    specs = [
        VariableSpec("a", (3,), "<f4", SGD), VariableSpec("b", (2,), "<f8", SGD), VariableSpec("c", (5,), "<f4", SGD),
        VariableSpec("d", (1,), "<f4", ADAM), VariableSpec("t", (4,), "<f4", SGD, sparse=True),
        VariableSpec("n", (2,), "<i8", None),
    ]  # fmt: skip
    layout = make_plan(specs, (0,), lambda *_: 0, None).layouts[0]
    assert [[p.name for p in a.parts] for a in layout.arenas] == [["a", "c"], ["b"], ["d"], ["t"], ["n"]]
    assert [a.offset for a in layout.arenas] == [0, 64, 128, 192, 256] and layout.nbytes == 320
    assert layout.arenas[0].starts == (0, 3)
    assert layout.data_nbytes == 32 + 16 + 4 + 16 + 16 and layout.gradient_nbytes == layout.data_nbytes - 16
    assert layout.place == {0: (0, 0), 2: (0, 3), 1: (1, 0), 3: (2, 0), 4: (3, 0), 5: (4, 0)}


def test_the_ps_that_hold_nothing_can_be_left_out_and_one_always_stays() -> None:
    specs = [VariableSpec(name, (2,), "<f4", SGD) for name in "ab"]
    plan = make_plan(specs, (0, 1, 4), lambda name, *_: 4 if name == "a" else 1, None).without_empty()
    assert plan.ps == (1, 4) and [part.ps for part in plan.parts] == [4, 1]
    assert make_plan([], (3, 5), lambda *_: 3, None).without_empty().ps == (3,)


def test_a_placement_that_answers_nonsense_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"put a on ps task 7; the ps tasks are \[0, 2\]"):
        make_plan([VariableSpec("a", (3,), "<f4", SGD)], (0, 2), lambda *_: 7, None)


@settings(max_examples=60)
@given(plans())
def test_a_plan_comes_back_from_the_wire_as_it_was(plan: Plan) -> None:
    again = travelled(plan)
    assert again == plan and again.layouts == plan.layouts and plan.differs(again) == ""


def travelled(plan: Plan) -> Plan:
    """The plan as a process makes it that has none."""
    return Plan(*columns.read(msgpack.unpackb(msgpack.packb(plan.to_wire()), strict_map_key=False)))


def test_variables_of_every_dtype_travel_whole_and_in_parts() -> None:
    specs = []
    for name in sorted(DTYPES):
        optimizer = SGD if name in FLOATS else None
        specs += [
            VariableSpec(f"whole {name}", (), name, optimizer),
            VariableSpec(f"cut {name}", (5, 2), name, optimizer),
        ]
    turn = iter(range(1000))
    plan = make_plan(specs, (3, 1), lambda *_: (3, 1)[next(turn) % 2], lambda name, *_: 2 if "cut" in name else 1)
    again = travelled(plan)
    assert again == plan and [v.dtype for v in again.variables] == [v.dtype for v in specs]
    assert len(plan.parts) == 3 * len(DTYPES)
    assert [(p.name, p.shape, p.row0) for p in again.parts[1:3]] == [
        ("cut <f2/part_0", (3, 2), 0), ("cut <f2/part_1", (2, 2), 3),
    ]  # fmt: skip
    assert "bfloat16" in {v.dtype for v in again.variables if v.optimizer == SGD}


@settings(max_examples=60)
@given(plans())
def test_every_row_of_every_variable_is_in_exactly_one_part_on_one_ps(plan: Plan) -> None:
    for spec, parts in zip(plan.variables, plan.parts_of, strict=True):
        rows = [row for part in parts for row in range(part.row0, part.row0 + (part.shape[0] if part.shape else 1))]
        assert rows == list(range(spec.shape[0] if spec.shape else 1))
    placed = [p.index for layout in plan.layouts.values() for a in layout.arenas for p in a.parts]
    assert sorted(placed) == list(range(len(plan.parts)))
    nbytes = [part.size * plan.dtypes[part.variable].itemsize for part in plan.parts]
    assert sum(plan.bytes_per_ps().values()) == sum(nbytes)


@settings(max_examples=60)
@given(plans())
def test_parts_of_a_run_lie_side_by_side_and_never_over_one_another(plan: Plan) -> None:
    for layout in plan.layouts.values():
        taken = np.zeros(layout.nbytes, np.uint8)
        for view in layout.views(taken).values():
            view.reshape(-1).view(np.uint8)[...] += 1
        assert taken.max(initial=0) <= 1 and int(taken.sum()) == layout.data_nbytes
        assert all(a.offset % ALIGN == 0 for a in layout.arenas)


@settings(max_examples=60)
@given(plans(), st.integers(8, 80), st.booleans())
def test_pieces_make_up_the_run_and_none_is_too_long(plan: Plan, nbytes: int, trained_only: bool) -> None:
    for layout in plan.layouts.values():
        covered = np.zeros(layout.nbytes, np.uint8)
        pieces = layout.pieces(nbytes, trained_only)
        for piece in pieces:
            assert sum(n for _, n in piece) <= max(nbytes, 8)
            for offset, n in piece:
                layout.check_range(offset, n, trained_only)
                covered[offset : offset + n] += 1
        assert covered.max(initial=0) <= 1
        assert int(covered.sum()) == (layout.gradient_nbytes if trained_only else layout.data_nbytes)
        assert len(pieces) == 1 or all(pieces)


def test_bytes_that_are_no_piece_are_refused() -> None:
    specs = [VariableSpec("a", (3,), "<f4", SGD), VariableSpec("n", (2,), "<i8", None)]
    layout = make_plan(specs, (0,), lambda *_: 0, None).layouts[0]
    layout.check_range(4, 8)
    layout.check_range(64, 16)
    for offset, nbytes in ((2, 4), (0, 3), (8, 8), (-4, 4), (12, 4), (0, 80), (0.0, 4), (True, 4)):
        with pytest.raises(ProtocolError, match="are no piece of a run of 128 bytes"):
            layout.check_range(offset, nbytes)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError):
        layout.check_range(64, 16, trained_only=True)


GOOD = thirteen_rows().to_wire()


def number(*numbers: int) -> bytes:
    """A column, by hand: four bytes each, the lowest first."""
    return b"".join(n.to_bytes(4, "little") for n in numbers)


def test_a_plan_travels_in_columns() -> None:
    assert {
        "ps": [0, 1],
        "names": ["w", "b", "s"],
        "kinds": [[[13, 2], "<f4", SGD, False], [[2], "<f4", SGD, False], [[], "<f4", SGD, False]],
        "kind": number(0, 1, 2),
        "cuts": [[0, [3, 3, 3, 2, 2]]],
        "places": [[0, ""], [1, ""]],
        "placed": number(0, 1, 0, 1, 0, 1, 0),
    } == GOOD
    alike = [VariableSpec(f"v{i}", (16,), "<f4", dict(SGD)) for i in range(1000)]
    wire = make_plan(alike, (0,), lambda *_: 0, None).to_wire()
    assert wire["kinds"] == [[[16], "<f4", SGD, False]] and wire["kind"] == wire["placed"] == bytes(4000)


def test_a_plan_that_is_there_already_is_not_made_anew() -> None:
    plan = thirteen_rows()
    wire = plan.to_wire()
    again = Plan.from_wire(msgpack.unpackb(msgpack.packb(wire)))
    assert again is Plan.from_wire(wire)
    assert again == plan and plan.without_empty() is plan
    assert Plan.from_wire({**wire, "names": ["w", "b", "t"]}).variables[2].name == "t"


@pytest.mark.parametrize(
    "change",
    [
        {"ps": [0, 0]}, {"ps": [0]}, {"ps": "x"}, {"ps": [0, 1.0]}, {"names": 7}, {"names": ["w", "b", "b"]},
        {"names": ["w", "b"]}, {"names": ["w", "b", 3]}, {"names": "wbs"}, {"kind": number(0, 1, 3)},
        {"kind": number(0, 1)}, {"kind": number(0, 1, 2)[:-1]}, {"kind": [0, 1, 2]}, {"kind": number(0, 1, 2, 2)},
        {"kind": number(1, 0, 2)}, {"cuts": []}, {"cuts": [[0, [3, 3, 3, 2]]]}, {"cuts": [[0, [13]]]},
        {"cuts": [[0, [14, -1]]]}, {"cuts": [[-3, [7, 6]]]}, {"cuts": [[2, [1, 0]]]}, {"cuts": [[9, [7, 6]]]},
        {"cuts": [[0, [3, 3, 3, 2, 2]], [0, [3, 3, 3, 2, 2]]]}, {"cuts": [[0, [3, 3, 3, 2, 2.0]]]},
        {"places": [[0, ""]]}, {"places": [[0, ""], [2, ""]]}, {"places": [[0, ""], [1, "TPU:0"]]},
        {"placed": number(0, 1, 0, 1, 0, 1)}, {"placed": number(0, 1, 0, 1, 0, 1, 2**31)}, {"placed": None},
        *({"kinds": [first, *GOOD["kinds"][1:]]} for first in (
            [[13, 2], "<i8", SGD, False], [[13, 2], "|O", None, False], [[2**80, 2], "<f4", SGD, False],
            [[13, -2], "<f4", SGD, False], [[13, 2], "<f4", {1: b"x"}, False], [[13, 2], "<f4", SGD], 5,
            [[13] + [1] * 32, "<f4", SGD, False], [[13, True], "<f4", SGD, False], [[13, 2], "<f4", "sgd", False],
        )),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_itself_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="not a plan"):
        Plan.from_wire({**GOOD, **change})


def test_what_a_plan_lacks_is_said_in_one_line() -> None:
    for field in GOOD:
        with pytest.raises(ProtocolError, match=f"not a plan: '{field}'$"):
            Plan.from_wire({name: column for name, column in GOOD.items() if name != field})
    with pytest.raises(ProtocolError, match="the column of kinds is 11 bytes, wanted 12 bytes$"):
        Plan.from_wire({**GOOD, "kind": GOOD["kind"][:-1]})
    with pytest.raises(ProtocolError, match="the column of places has number 5, wanted less than 2$"):
        Plan.from_wire({**GOOD, "placed": number(0, 1, 0, 1, 0, 1, 5)})


def test_a_plan_whose_parts_would_take_memory_without_end_is_refused() -> None:
    name, parts = "w" * 100_000, 10_000
    wire = {
        **GOOD, "names": [name], "kinds": [[[parts], "<f4", SGD, False]], "kind": number(0),
        "cuts": [[0, [1] * parts]], "placed": bytes(4 * parts),
    }  # fmt: skip
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=r"^not a plan: the names of 10000 parts of w{100} are too long"):
            Plan.from_wire(wire)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20  # the names of all parts would be a gigabyte
    finally:
        tracemalloc.stop()
    few = {**wire, "names": ["w"], "placed": bytes(4 * parts)}
    assert [p.name for p in Plan.from_wire(few).parts[-2:]] == ["w/part_9998", "w/part_9999"]


def test_a_column_that_is_larger_than_its_plan_is_refused_unread() -> None:
    column = bytes(16 << 20)
    tracemalloc.start()
    try:
        for field, what in (("kind", "kinds"), ("placed", "places")):
            with pytest.raises(ProtocolError, match=f"^not a plan: the column of {what} is 16777216 bytes, wanted"):
                Plan.from_wire({**GOOD, field: column})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=60)
@given(plans(), st.sampled_from(["kind", "placed"]), st.integers(0, 99), st.integers(0, 255), st.booleans())
def test_a_column_that_is_cut_or_altered_is_refused_or_is_another_plan(
    plan: Plan, field: str, at: int, byte: int, cut: bool
) -> None:
    wire = plan.to_wire()
    column = bytearray(wire[field])
    at %= max(1, len(column))
    if cut:
        with pytest.raises(ProtocolError, match="^not a plan: the column of .* bytes, wanted .* bytes$"):
            Plan.from_wire({**wire, field: bytes(column[:at]) if column else b"1"})
        return
    column[at : at + 1] = bytes([byte])
    try:
        again = Plan.from_wire({**wire, field: bytes(column)})
    except ProtocolError as error:
        assert str(error).startswith("not a plan: ") and "\n" not in str(error)
    else:
        assert again.to_wire()[field] == bytes(column) and (again == plan) == (bytes(column) == wire[field])


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda x: st.lists(x, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60)
@given(st.sampled_from(sorted(GOOD)), st.integers(0, 20), st.booleans(), JUNK)
def test_whatever_stands_in_a_plan_it_is_read_or_refused_in_words(field: str, at: int, whole: bool, junk: Any) -> None:
    changed = junk if whole else list(GOOD[field])
    if not whole:
        changed[at % len(changed)] = junk
    try:
        Plan.from_wire({**GOOD, field: changed})
    except ProtocolError as error:
        assert str(error).startswith("not a plan: ")


def test_the_first_difference_between_two_plans_is_a_sentence() -> None:
    def of(*specs: tuple[str, tuple[int, ...], str, Any]) -> Plan:
        return make_plan([VariableSpec(*s) for s in specs], (0,), lambda *_: 0, None)

    a, b = ("a", (2,), "<f4", SGD), ("b", (3,), "<f8", SGD)
    assert of(a, b).differs(of(a, b)) == ""
    assert of(a).differs(of(a, b)) == "only one of the two has ['b']"
    assert of(b, a).differs(of(a, b)) == "its variables come in another order"
    assert of(("a", (2,), "<f8", SGD)).differs(of(a)) == "its a is float64 (2,), the run's is float32 (2,)"
    assert of(("a", (2,), "<f4", ADAM)).differs(of(a)) == (
        "its optimizer of a is Adam(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08), the run's is "
        "SGD(learning_rate=1.0, weight_decay=0.0)"
    )
    frozen = ("a", (2,), "<f4", None)
    assert of(frozen).differs(of(a)).startswith("its optimizer of a is none (it is not trained), the run's is SGD(")
    averaged = {**SGD, "moving_average": {"decay": 0.9}}
    said = of(("a", (2,), "<f4", averaged)).differs(of(a))
    assert "weight_decay=0.0) with {'moving_average': {'decay': 0.9}}, the run's is SGD(" in said


def test_plans_whose_weights_are_tied_in_other_ways_differ_and_travel() -> None:
    specs = [VariableSpec(name, (2,), "<f4", SGD) for name in "ab"]

    def of(**tied: str) -> Plan:
        return make_plan(specs, (0,), lambda *_: 0, None, tied)

    plan = of(c="a", d="b")
    assert plan.by_name == {"a": 0, "b": 1, "c": 0, "d": 1}
    read = Plan.from_wire(dict(plan.to_wire()))
    assert read.tied == plan.tied and read.by_name == plan.by_name and not plan.differs(read)
    assert of(c="b").differs(plan) == "it has c tied to b, the run has c tied to a, d tied to b"
    assert plan.differs(of()) == "it has c tied to a, d tied to b, the run has none"
    assert "tied" not in of().to_wire()


@pytest.mark.parametrize(
    "tied", [[["a", "b"]], [["c", "x"]], [["c", "a"], ["c", "b"]], [[1, "a"]], [["c"]], 3, [[[], "a"]]]
)
def test_a_plan_with_other_names_that_cannot_be_is_refused(tied: object) -> None:
    wire = make_plan([VariableSpec(name, (2,), "<f4", SGD) for name in "ab"], (0,), lambda *_: 0, None).to_wire()
    with pytest.raises(ProtocolError, match="not a plan"):
        Plan.from_wire({**wire, "tied": tied})
