"""A shard's memory: versions, leases and updates against a plain model."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps import optim
from dps.ps.store.gradients import Gradient, RowGradient
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.variables.plan import Plan, VariableSpec, make_plan
from tests.tuned import tune

SGD = optim.SGD(1.0).to_wire()


def plan() -> Plan:
    specs = [
        VariableSpec("a", (4, 3), "<f4", SGD),
        VariableSpec("b", (), "<f8", SGD),
        VariableSpec("c", (5,), "<f4", SGD),
        VariableSpec("frozen", (2,), "<i8", None),
        VariableSpec("table", (6, 2), "<f4", SGD, sparse=True),
    ]
    return make_plan(specs, (0,), lambda *_: 0, None)


def store() -> Store:
    return Store(plan().layouts[0], runtime())


def values(held: Any, made: Store) -> dict[int, Any]:
    found = {}
    for arena, array in zip(made.layout.arenas, held.arrays, strict=True):
        for part, start in zip(arena.parts, arena.starts, strict=True):
            found[part.index] = array[start : start + part.size].reshape(part.shape).copy()
    return found


def run_of(made: Store, value: float, checked: bool = True) -> Gradient:
    return Gradient([np.full(a.size, value, a.dtype) for a in made.layout.arenas], {}, checked=checked)


def test_arenas_hold_what_shares_dtype_and_optimizer_and_a_sparse_table_its_own() -> None:
    arenas = plan().layouts[0].arenas
    assert [[p.name for p in a.parts] for a in arenas] == [["a", "c"], ["b"], ["frozen"], ["table"]]
    assert all(a.offset % 64 == 0 for a in arenas)


def test_a_leased_version_stays_while_others_are_written() -> None:
    made = store()
    first = made.hold()
    assert first is not None
    made.apply_update(run_of(made, -1.0), 1)
    second = made.hold()
    assert second is not None
    made.apply_update(run_of(made, -1.0), 2)
    assert (first.counter, second.counter, made.counter) == (0, 1, 2)
    assert values(first, made)[0][0, 0] == 0 and values(second, made)[0][0, 0] == 1
    assert made.part(plan().parts[0])[0, 0] == 2


def test_no_third_version_is_leased_so_that_a_writer_always_finds_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, small_nbytes=0)  # of small shards there are more buffers
    made = store()
    held = []
    for _ in range(2):
        held.append(made.hold())
        made.apply_update(run_of(made, -1.0), 1)
    assert None not in held and made.hold() is None
    for _ in range(5):
        made.apply_update(run_of(made, -1.0), 1)
    assert all(len(a.buffers) <= 3 for a in made.arenas)
    assert held[0] is not None
    held[0].release()
    held[0].release()
    assert made.hold() is not None


def test_a_pass_that_fails_counts_and_leaves_no_buffer_that_is_taken_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    made = store()
    held = made.hold()
    assert held is not None
    made.apply_update(run_of(made, -1.0, checked=False), 1)
    held.release()
    second, update = made.arenas[1], made.arenas[1].update

    def fail(*about: Any) -> bool:
        update(*about)
        raise MemoryError("in the midst of a pass")

    monkeypatch.setattr(second, "update", fail)
    recorded: list[int] = []
    with pytest.raises(MemoryError):
        made.apply_update(run_of(made, -1.0, checked=False), 2, record=recorded.append)
    assert recorded == [2] and (made.counter, made.step) == (2, 2)
    assert [buffer.missed for n, buffer in enumerate(second.buffers) if n != second.current] == [None]


def test_lease_arrays_cannot_be_written() -> None:
    held = store().hold()
    assert held is not None
    with pytest.raises(ValueError, match="read-only"):
        held.arrays[0][0] = 1


PARTS = plan().parts
EVENT = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 3)),
    st.tuples(st.just("unchecked run"), st.integers(1, 3)),
    st.tuples(st.just("part"), st.sampled_from([0, 1, 2, 4])),
    st.tuples(st.just("rows"), st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)),
    st.tuples(st.just("set"), st.tuples(st.sets(st.integers(0, 4), min_size=1), st.sampled_from(["", "run", "part"]))),
    st.tuples(st.just("lease"), st.none()),
    st.tuples(st.just("release"), st.integers(0, 5)),
)


@settings(max_examples=120)
@given(events=st.lists(EVENT, max_size=40))
def test_any_updates_and_leases_give_what_a_plain_model_gives(events: list[tuple[str, Any]]) -> None:
    made, model = store(), {p.index: np.zeros(p.shape) for p in PARTS}
    held: list[tuple[Any, dict[int, Any]]] = []
    for what, detail in events:
        if what in ("run", "unchecked run"):
            made.apply_update(run_of(made, -detail, checked=what == "run"), 1)
            for index in (0, 1, 2, 4):
                model[index] = model[index] + detail
        elif what == "part":
            part = PARTS[detail]
            dtype = made.part(part).dtype
            made.apply_update(Gradient(None, {detail: np.full(part.shape, -1, dtype)}), 1)
            model[detail] = model[detail] + 1
        elif what == "rows":
            rows = np.array(sorted(detail))
            for index, dim in ((0, 3), (4, 2)):
                made.apply_update(
                    Gradient(None, {index: RowGradient(rows, np.full((len(rows), dim), -1, np.float32))}), 1
                )
                model[index] = model[index].copy()
                model[index][rows] += 1
        elif what == "set":  # after the gradients
            indices, along = detail
            new = {i: np.full(PARTS[i].shape, 10 * made.counter + i, made.part(PARTS[i]).dtype) for i in indices}
            given = run_of(made, -1.0) if along == "run" else Gradient(None, {})
            one = {0: np.full((4, 3), -1, np.float32)} if along == "part" else {}
            given.parts, given.values = one, new
            made.apply_update(given, 1)
            for index in {"run": (0, 1, 2, 4), "part": (0,), "": ()}[along]:
                model[index] = model[index] + 1
            model |= new
        elif what == "lease":
            lease = made.hold()
            if lease is not None:
                held.append((lease, {i: v.copy() for i, v in model.items()}))
        elif held:
            held.pop(detail % len(held))[0].release()
        for lease, then in held:
            for index, value in values(lease, made).items():
                np.testing.assert_array_equal(value, then[index])
        for part in PARTS:
            np.testing.assert_array_equal(made.part(part), model[part.index])
