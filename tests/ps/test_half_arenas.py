"""Arenas of halves, bit for bit: the float32 update of the widened values, rounded by numpy after every step."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dps import optim
from dps.errors import ConfigError
from dps.kernels import optimizers
from dps.ps.store.gradients import GradientSum
from dps.ps.store.memory import HalvesMemory, memory_of
from dps.variables.plan import Arena, Part
from tests.ps import bound

DTYPES: dict[str, Any] = {"<f2": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
EVERY_DTYPE = pytest.mark.parametrize("dtype", list(DTYPES))
EVERY_KERNEL = pytest.mark.parametrize("dtype", [pytest.param("<f2", marks=pytest.mark.slow), "bfloat16"])
"""Of a test that needs the kernels of all optimizers, which are compiled for each dtype."""
OPTIMIZERS = [
    optim.SGD(0.1, weight_decay=0.01), optim.Momentum(0.1, nesterov=True), optim.Adagrad(0.1), optim.RMSProp(0.01),
    optim.Adam(0.01), optim.AdamW(0.01), optim.Ftrl(0.1, l1=0.01), optim.Adagrad(0.1, rowwise=True),
]  # fmt: skip
ROWS, DIM = 9, 5


def memory(dtype: str, optimizer: Any, rows: int = ROWS, dim: int = DIM) -> tuple[HalvesMemory, Any]:
    """An arena of one part, with values."""
    part = Part(0, 0, "w", (rows, dim), 0, 0)
    wire = None if optimizer is None else optimizer.to_wire()
    made = memory_of(Arena(dtype, wire, False, 0, part.size, (part,), (0,)), None, "")
    assert isinstance(made, HalvesMemory)
    values = np.random.default_rng(1).normal(size=part.size).astype(DTYPES[dtype])
    made.write(None, 0, values)
    return made, values


def gradient(dtype: str, step: int, *shape: int) -> Any:
    return np.random.default_rng([2, step]).normal(size=shape).astype(DTYPES[dtype])


def by_hand(optimizer: Any, values: Any, slots: Any, g: Any, t: int, rows: Any = None) -> Any:
    """One update of all of it, or of rows, in float32; the values in halves again."""
    w = values.astype(np.float32)
    if rows is not None:
        tables = {n: s if n in optimizer.row_slots else s.reshape(ROWS, DIM) for n, s in slots.items()}
        w = w.reshape(ROWS, DIM)
        bound.apply_rows(optimizer, w, tables, rows, g, t, t - 1)
    else:
        shape = (-1, DIM) if optimizer.row_slots else (-1,)
        w, g = w.reshape(shape), g.reshape(shape)
        bound.apply(optimizer, w, w, slots, g, t, t - 1)
    return w.reshape(-1).astype(values.dtype)


def same(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.slow
@EVERY_KERNEL
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_twenty_updates_round_the_values_after_each_and_keep_slots_in_float32(dtype: str, optimizer: Any) -> None:
    made, values = memory(dtype, optimizer)
    slots = optimizers.initial_slots(optimizer, ROWS * DIM, np.float32, ROWS)
    part = made.arena.parts[0]
    for t in range(1, 21):
        if t % 3:
            g = gradient(dtype, t, ROWS * DIM)
            made.update(0, 0, g, t, t - 1, 1.0)
            values = by_hand(optimizer, values, slots, g.astype(np.float32), t)
        else:
            rows, g = np.array([0, 3, t % 5 + 4]), gradient(dtype, t, 3, DIM)
            made.update_rows(0, part, 0, rows, g, t, t - 1, 1.0)
            values = by_hand(optimizer, values, slots, g.astype(np.float32), t, rows)
    same(made.values, values)
    for name, slot in slots.items():
        same(made.slots[name], slot)


@EVERY_DTYPE
@pytest.mark.parametrize("optimizer", [optim.Adam(0.01), optim.Adagrad(0.1, rowwise=True)], ids=repr)
def test_large_arenas_are_updated_to_the_end_in_another_buffer(dtype: str, optimizer: Any) -> None:
    rows = 6561
    made, values = memory(dtype, optimizer, rows)
    before, free = made.values.copy(), made.free_buffer()
    assert free is not None
    g = gradient(dtype, 0, rows * DIM)
    made.update(free, 0, g, 1, 0, 1.0)
    slots = optimizers.initial_slots(optimizer, rows * DIM, np.float32, rows)
    same(made.buffers[free].values, by_hand(optimizer, values, slots, g.astype(np.float32), 1))
    same(made.values, before)


@pytest.mark.slow
@EVERY_DTYPE
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_mean_is_summed_in_float32_in_its_order_and_divided(dtype: str, count: int) -> None:
    made, values = memory(dtype, optim.SGD(0.5))
    large = DTYPES[dtype].type(15000)
    gs = [gradient(dtype, step, ROWS * DIM) * large for step in range(count)]
    total = gs[0].astype(np.float32)
    for g in gs[1:]:
        total = total + g.astype(np.float32)  # some have no sum in float16
    made.update(0, 0, GradientSum(tuple(gs), count), 1, 0, 1.0)
    same(made.values, (values.astype(np.float32) - np.float32(0.5) * (total / np.float32(count))).astype(values.dtype))


def test_small_gradients_add_up_in_the_slots_though_not_in_a_sum_of_halves() -> None:
    made, _ = memory("<f2", optim.Adagrad(0.1, initial_accumulator=1.0))
    small = np.full(ROWS * DIM, 2.0**-6, np.float16)  # its square is 2**-12: half of that is less than 1 can take in
    for t in range(1, 5):
        made.update(0, 0, small, t, t - 1, 1.0)
    assert made.slots["accumulator"].tolist() == [1 + 4 * 2.0**-12] * (ROWS * DIM)


def test_an_update_beyond_the_largest_half_makes_infinity() -> None:
    made, _ = memory("<f2", optim.SGD(1.0), rows=1, dim=3)
    made.write(None, 0, np.array([65504, -65504, 1], np.float16))
    made.update(0, 0, np.array([-65504, 16, -15], np.float16), 1, 0, 1.0)  # 65520 is half-way to what is not there
    assert made.values.tolist() == [np.inf, -np.inf, 16]


@EVERY_DTYPE
def test_rows_are_read_as_they_lie(dtype: str) -> None:
    made, values = memory(dtype, None)
    rows = np.array([8, 0, 8])
    same(made.gather(made.arena.parts[0], 0, rows), values.reshape(ROWS, DIM)[rows])


def test_halves_on_a_gpu_are_refused_in_one_line() -> None:
    part = Part(0, 0, "w", (4,), 0, 0, "GPU:0")
    with pytest.raises(
        ConfigError, match=r"^w: got float16 variables for a GPU, wanted float32 or float64 there; [^\n]*$"
    ):
        memory_of(Arena("<f2", optim.SGD(0.1).to_wire(), False, 0, 4, (part,), (0,), "GPU:0"), None, "")
