"""Keyed tables in plans: codes of keys, which ps has which, and plans that are refused."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import given

import dps
from dps.errors import ProtocolError
from dps.transport.tuning import ORDINARY
from dps.variables.plan import Plan
from dps.variables.planning import plan_of
from dps.variables.rowlists import RowLists
from dps.variables.tables import (
    SLICES,
    TableSpec,
    codes_of,
    key_numbers,
    keys_of,
    parts_of_table,
    range_of_part,
)

EDGES = [0, -1, (1 << 63) - 1, -(1 << 63)]
KEYS = st.lists(st.one_of(st.sampled_from(EDGES), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=60)


def spec(capacity: int = 1000, ps: int = 3) -> TableSpec:
    return TableSpec("t", 4, "<f4", capacity, {"name": "sgd"}, {"kind": "zeros"}, tuple(range(ps)))


@given(keys=KEYS)
def test_a_code_is_another_name_of_its_key(keys: list[int]) -> None:
    array = np.array(keys, np.int64)
    codes = codes_of(array)
    assert np.array_equal(keys_of(codes), array) and np.array_equal(array, np.array(keys, np.int64))
    assert len(set(codes.tolist())) == len(set(keys))


def test_codes_are_part_of_the_promise() -> None:
    codes = [0, -5417735806833148549, 6514504133438201533, 6238072747940578789]
    assert codes_of(np.array([0, -1, (1 << 63) - 1, 1], np.int64)).tolist() == codes


@given(keys=KEYS, ps=st.integers(1, 9))
def test_each_code_is_on_one_ps_and_sorted_codes_lie_in_the_order_of_the_ps(keys: list[int], ps: int) -> None:
    parts, codes = parts_of_table(spec(ps=ps), 10, 5), np.sort(codes_of(np.array(keys, np.int64)))
    ranges = [range_of_part(part, codes) for part in parts]
    assert [first for first, _ in ranges][1:] == [end for _, end in ranges][:-1]
    assert ranges[0][0] == 0 and ranges[-1][1] == len(codes)
    for part, (first, end) in zip(parts, ranges, strict=True):
        assert all(part.lowest <= code <= part.highest for code in codes[first:end].tolist())
    assert parts[0].lowest == -(1 << 63) and parts[-1].highest == (1 << 63) - 1
    assert [p.index for p in parts] == [10 + n for n in range(ps)] and parts[0].first == 0 and parts[-1].end == SLICES


@pytest.mark.parametrize("keys", [np.arange(100_000), np.arange(100_000) << 40, -np.arange(100_000) * 4096])
def test_keys_of_any_pattern_are_spread_evenly(keys: Any) -> None:
    parts, codes = parts_of_table(spec(100_000, 8), 0, 0), np.sort(codes_of(keys.astype(np.int64)))
    counts = [end - first for first, end in (range_of_part(part, codes) for part in parts)]
    assert max(counts) < 1.05 * 12_500 and all(count <= part.rows for count, part in zip(counts, parts, strict=True))


@pytest.mark.parametrize(("capacity", "ps"), [(1, 1), (1, 3), (10, 4), (1000, 3), (10**6, 8)])
def test_each_ps_has_room_for_its_share_and_more(capacity: int, ps: int) -> None:
    rows = [part.rows for part in parts_of_table(spec(capacity, ps), 0, 0)]
    assert all(min(capacity, -(-capacity // ps)) <= n <= capacity for n in rows)
    assert rows == [capacity] if ps == 1 else all(n >= min(capacity, capacity / ps * 1.0999 - 1) for n in rows)


def test_keys_beyond_int64_are_refused_and_smaller_integers_are_taken() -> None:
    for smaller in (np.array([[3], [4]], np.uint8), np.array([3, 4], np.uint64)):
        found = key_numbers("t", smaller)
        assert found.dtype == np.int64 and found.tolist() == [3, 4]
    with pytest.raises(ValueError, match=r"t: the key 18446744073709551615 is no int64; pass keys.view"):
        key_numbers("t", np.array([1, (1 << 64) - 1], np.uint64))


@given(keys=KEYS, least=st.integers(0, 30), same=st.booleans())
def test_lists_of_codes_are_sorted_and_lead_back(keys: list[int], least: int, same: bool) -> None:
    # `same`: codes of which the upper bits are the same, so that those do not decide
    codes = np.array(keys, np.int64) >> 58 if same else codes_of(np.array(keys, np.int64))
    if same:
        codes += -(1 << 62)
    found = RowLists(ORDINARY.rows).of(codes)
    found._least = least
    found._is_short = len(codes) < least
    rows, which = found.to_read(3)
    assert np.array_equal(rows, np.unique(codes))
    assert np.array_equal(rows if which is None else rows[which], codes)
    part = parts_of_table(spec(ps=2), 0, 0)[1]
    values = np.arange(len(codes), dtype=np.float32)[:, None]
    of_part = found.of_part(part, values, 2)
    out = np.empty((of_part.last - of_part.first, 1), np.float32)
    of_part.fill(out)
    order = np.argsort(codes, kind="stable")
    assert np.array_equal(of_part.numbers, codes[order][codes[order] >= part.lowest])
    assert np.array_equal(out[:, 0], order[codes[order] >= part.lowest].astype(np.float32))


# -- plans ------------------------------------------------------------------------------------------------------


def plan() -> Plan:
    params = {
        "t": dps.Variable(keys="int64", dim=4, capacity=1000, init=dps.init.Zeros()),
        "w": np.zeros(3, np.float32),
        "u": dps.Variable(
            keys="int64", dim=2, capacity=9, init=dps.init.Normal(1.0), device=dps.Device("/job:ps/task:1")
        ),
    }
    return plan_of(params, dps.optim.SGD(0.1), [0, 1, 2], None, None)[0]


def wire() -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(msgpack.packb(plan().to_wire()))
    return found


def test_a_plan_with_tables_travels_and_says_who_has_what() -> None:
    made = plan()
    assert Plan.from_wire(wire()) == made and made.differs(Plan.from_wire(wire())) == ""
    assert made.tables_by_name == {"t": 1, "u": 2} and [made.name_of(i) for i in range(3)] == ["w", "t", "u"]
    assert [[p.name for p in made.layouts[ps].tables] for ps in (0, 1, 2)] == [
        ["t/part_0"], ["t/part_1", "u"], ["t/part_2"],
    ]  # fmt: skip
    indices = [p.index for parts in made.table_parts.values() for p in parts]
    assert indices == [1, 2, 3, 4] and made.without_empty().ps == (0, 1, 2)
    assert all(layout.nbytes <= 64 for layout in made.layouts.values())


def test_a_plan_without_tables_travels_as_before() -> None:
    made, _ = plan_of({"w": np.zeros(3)}, dps.optim.SGD(0.1), [0], None, None)
    assert "tables" not in made.to_wire() and Plan.from_wire(dict(made.to_wire())).tables == ()


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, "w", "as the name of a table"), (0, "", "as the name of a table"), (0, 7, "as the name of a table"),
        (1, 0, "with dim 0"), (1, True, "with dim True"), (3, -1, "capacity -1"), (3, 1 << 40, "capacity 10995"),
        (2, "<i4", "has dtype"), (2, "rubbish", "not a plan"), (4, None, "and optimizer None"),
        (5, {"kind": "glorot_uniform", "seed": 0}, "needs the number of rows"), (5, {"kind": "x"}, "kind 'x'"),
        (7, 0, "with admit 0"), (7, 256, "admit 256"), (7, 1.0, "admit 1.0"), (8, -1, "with expire_steps -1"),
        (8, None, "expire_steps None"), (8, 1 << 49, "expire_steps 5629"),
        (6, [0, 0], "is on the ps"), (6, [5], "is on the ps"), (6, [], "is on the ps"), (6, 3, "not a plan"),
    ],
)  # fmt: skip
def test_a_malformed_table_is_refused(place: int, value: Any, words: str) -> None:
    data = wire()
    data["tables"][0][place] = value
    with pytest.raises((ProtocolError, dps.DpsError), match=words):
        Plan.from_wire(data)


def test_a_table_twice_or_of_another_length_is_refused() -> None:
    data = wire()
    data["tables"].append(data["tables"][0])
    with pytest.raises(ProtocolError, match="as the name of a table"):
        Plan.from_wire(data)
    data = wire()
    data["tables"][0].pop()
    with pytest.raises(ProtocolError, match="not a plan"):
        Plan.from_wire(data)


@pytest.mark.parametrize(
    ("place", "value"),
    [(1, 5), (2, "<f8"), (3, 7), (5, {"kind": "ones"}), (4, {"name": "sgd", "learning_rate": 2.0}), (7, 2), (8, 9)],
)
def test_plans_with_other_tables_differ(place: int, value: Any) -> None:
    data = wire()
    data["tables"][0][place] = value
    field = ("name", "dim", "dtype", "capacity", "optimizer", "init", "ps", "admit", "expire_steps")[place]
    assert f"its t has {field}" in plan().differs(Plan.from_wire(data))
    data = wire()
    del data["tables"][0]
    assert "its keyed tables are ['t', 'u'], the run's are ['u']" in plan().differs(Plan.from_wire(data))
