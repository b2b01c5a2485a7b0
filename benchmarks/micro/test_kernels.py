"""Kernels of a ps one by one: `python -m pytest benchmarks/micro`. Beside each is memcpy of the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from dps import optim
from dps.kernels import cpu, optimizers

SIZES = {"64 KB": 1 << 14, "1 MB": 1 << 18, "64 MB": 1 << 24}
"""float32 elements: in the first cache, in the last one, in memory."""
OPTIMIZERS = [
    optim.SGD(0.01), optim.Momentum(0.01), optim.Adagrad(0.01), optim.RMSProp(0.01), optim.Adam(), optim.Ftrl(0.01),
]  # fmt: skip
TABLE_ROWS, DIM, TAKEN = 100_000, 64, 8192

Array = np.ndarray[Any, np.dtype[np.float32]]


def rated(benchmark: BenchmarkFixture, nbytes: int) -> None:
    """Tell payload bytes, so that the saved JSON can be turned into rates."""
    benchmark.extra_info["nbytes"] = nbytes


def ones(n: int) -> Array:
    return np.ones(n, np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_memcpy(benchmark: BenchmarkFixture, size: str) -> None:
    source, target = ones(SIZES[size]), ones(SIZES[size])
    rated(benchmark, source.nbytes)
    benchmark(np.copyto, target, source)


@pytest.mark.parametrize("place", ["in place", "into another buffer"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: str(optimizer.name))
@pytest.mark.parametrize("size", SIZES)
def test_update(benchmark: BenchmarkFixture, size: str, optimizer: optim.Optimizer, place: str) -> None:
    n = SIZES[size]
    bound, values, gradient = optimizers.BoundOptimizer(optimizer, np.float32), ones(n), ones(n)
    slots = bound.ordered(optimizers.initial_slots(optimizer, n, np.float32))
    out = values if place == "in place" else ones(n)
    rated(benchmark, values.nbytes)
    benchmark(lambda: bound.apply(out, values, slots, (gradient,), 0, 1, 1, 1.0))


@pytest.mark.parametrize("size", SIZES)
def test_all_finite(benchmark: BenchmarkFixture, size: str) -> None:
    values = ones(SIZES[size])
    rated(benchmark, values.nbytes)
    assert benchmark(cpu.all_finite, values)


@pytest.mark.parametrize("size", SIZES)
def test_mean_of_two(benchmark: BenchmarkFixture, size: str) -> None:
    a, b, out = ones(SIZES[size]), ones(SIZES[size]), ones(SIZES[size])
    rated(benchmark, a.nbytes)
    benchmark(cpu.add_divide, out, a, b, np.float32(2))
    assert out[0] == 1


def drawn() -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(1).choice(TABLE_ROWS, TAKEN, replace=False).astype(np.int64)


def test_gather_rows(benchmark: BenchmarkFixture) -> None:
    table, rows, out = np.ones((TABLE_ROWS, DIM), np.float32), drawn(), np.empty((TAKEN, DIM), np.float32)
    rated(benchmark, out.nbytes)
    benchmark(cpu.gather, table, rows, out)
    assert out.min() == 1


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: str(optimizer.name))
def test_update_rows(benchmark: BenchmarkFixture, optimizer: optim.Optimizer) -> None:
    table, rows = np.ones((TABLE_ROWS, DIM), np.float32), np.sort(drawn())
    flat = optimizers.initial_slots(optimizer, TABLE_ROWS * DIM, np.float32)
    bound = optimizers.BoundOptimizer(optimizer, np.float32)
    slots = bound.ordered({name: slot.reshape(TABLE_ROWS, DIM) for name, slot in flat.items()})
    gradient = np.ones((TAKEN, DIM), np.float32)
    rated(benchmark, gradient.nbytes)
    benchmark(lambda: bound.apply_rows(table, slots, rows, gradient, 1, 1, 1.0))


@pytest.mark.parametrize("repeats", [1, 2, 8])
def test_sum_duplicate_rows(benchmark: BenchmarkFixture, repeats: int) -> None:
    rows = np.random.default_rng(2).permutation(np.repeat(drawn()[: TAKEN // repeats], repeats))
    values = np.ones((len(rows), DIM), np.float32)
    rated(benchmark, values.nbytes)
    distinct, sums, counts = benchmark(cpu.sum_duplicate_rows, rows, values)
    assert len(distinct) == TAKEN // repeats
    assert sums.max() == counts.max() == repeats
