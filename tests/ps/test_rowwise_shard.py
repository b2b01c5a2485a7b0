"""A shard with row-wise Adagrad: dense updates, rows, means, memory, checkpoints, on CPU and on a (simulated) GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps import optim
from dps.kernels import device
from dps.ps.serving.saving import named
from dps.ps.store.gradients import Gradient, GradientSum, RowGradient
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.variables.plan import VariableSpec, make_plan

ROWWISE = optim.Adagrad(0.5, rowwise=True)
SPECS = [
    VariableSpec("a", (3, 4), "<f4", ROWWISE.to_wire()),
    VariableSpec("b", (), "<f4", ROWWISE.to_wire()),
    VariableSpec("c", (2, 2, 2), "<f4", ROWWISE.to_wire()),
    VariableSpec("table", (6, 2), "<f4", ROWWISE.to_wire(), sparse=True),
]
PLAN = make_plan(SPECS, (0,), lambda *_: 0, None)
LAYOUT = PLAN.layouts[0]
DEVICES = ["", "GPU:0"]


@pytest.fixture(autouse=True)
def few_simulated_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "SIMULATED_THREADS", 2)


def run_of(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(a.size).astype(a.dtype) for a in LAYOUT.arenas]


def slots(store: Store) -> list[Any]:
    return [memory.read("row_accumulator", *memory.extent("row_accumulator", place)[:2])
            for memory in store.arenas for place in range(len(memory.arena.parts))]  # fmt: skip


def rule(w: Any, a: Any, g: Any) -> tuple[Any, Any]:
    """Of the rows of axis 0."""
    rows = len(a)
    a = a + (g.reshape(rows, -1) ** 2).mean(axis=1)
    return w - (0.5 * g.reshape(rows, -1) / (np.sqrt(a)[:, None] + 1e-10)).reshape(w.shape), a


def test_a_row_has_one_element_and_a_scalar_is_a_row() -> None:
    store = Store(LAYOUT, runtime())
    assert [slot.tolist() for slot in slots(store)] == [[np.float32(0.1)] * n for n in (3, 1, 2, 6)]
    assert sum(slot.size for m in store.arenas for slot in m.slots.values()) == 12


@pytest.mark.parametrize("where", DEVICES)
def test_updates_of_all_of_parts_and_of_rows_follow_the_formula(where: str) -> None:
    store = Store(LAYOUT, runtime(), where)
    model = {p.index: np.zeros(p.shape) for p in PLAN.parts}
    kept = {p.index: np.full(p.shape[0] if p.shape else 1, 0.1) for p in PLAN.parts}
    for step, (what, seed) in enumerate([("run", 1), ("part", 2), ("mean", 3), ("rows", 4), ("run", 5)]):
        run = run_of(seed)
        other = run_of(seed + 10)
        views = {
            p.index: run[a][s : s + p.size].reshape(p.shape) for p in PLAN.parts for a, s in [LAYOUT.place[p.index]]
        }
        if what == "part":
            store.apply_update(Gradient(None, {2: views[2]}), step)
            model[2], kept[2] = rule(model[2], kept[2], views[2])
        elif what == "rows":
            rows = np.array([1, 4])
            store.apply_update(Gradient(None, {3: RowGradient(rows, views[3][:2].copy())}), step)
            model[3][rows], kept[3][rows] = rule(model[3][rows], kept[3][rows], views[3][:2])
        else:
            update = [GradientSum((g, h), 2) for g, h in zip(run, other, strict=True)] if what == "mean" else run
            store.apply_update(Gradient(update, {}), step)
            for part in PLAN.parts:
                a, start = LAYOUT.place[part.index]
                flat = (run[a] + other[a]) / 2 if what == "mean" else run[a]
                g = flat[start : start + part.size].reshape(part.shape)
                model[part.index], kept[part.index] = rule(model[part.index], kept[part.index], g)
    for part in PLAN.parts:
        np.testing.assert_allclose(store.part(part), model[part.index], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(slots(store)[part.index], kept[part.index], rtol=1e-5)


def test_a_version_that_is_leased_stays() -> None:
    store = Store(LAYOUT, runtime())
    held = store.hold()
    assert held is not None
    assert store.apply_update(Gradient(run_of(1), {}, checked=False), 1) == ""
    assert not any(array.any() for array in held.arrays)
    alone = Store(LAYOUT, runtime())
    alone.apply_update(Gradient(run_of(1), {}), 1)
    assert [m.values.tobytes() for m in store.arenas] == [m.values.tobytes() for m in alone.arenas]


def test_what_is_saved_of_a_slot_has_its_shape() -> None:
    store = Store(LAYOUT, runtime())
    store.apply_update(Gradient(run_of(1), {}), 1)
    runs = [named(PLAN, m, slot, m.read(slot, 0, None)) for m in store.arenas for slot in (None, *m.slots)]
    shapes = {name: shape for run in runs for name, shape in zip(run.names, run.shapes, strict=True)}
    assert shapes == {
        "a": (3, 4), "a@row_accumulator": (3,), "b": (), "b@row_accumulator": (),
        "c": (2, 2, 2), "c@row_accumulator": (2,), "table": (6, 2), "table@row_accumulator": (6,),
    }  # fmt: skip


def test_the_wire_form_says_whether_it_is_row_wise() -> None:
    assert optim.from_wire(ROWWISE.to_wire()) == ROWWISE != optim.Adagrad(0.5)
    assert (ROWWISE.slots, ROWWISE.row_slots) == (("row_accumulator",), ("row_accumulator",))
    assert (optim.Adagrad(0.5).slots, optim.Adagrad(0.5).row_slots) == (("accumulator",), ())
    with pytest.raises(ValueError, match="rowwise is 1, it must be True or False"):
        optim.Adagrad(0.5, rowwise=1)  # type: ignore[arg-type]
