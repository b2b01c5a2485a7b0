"""Row-wise Adagrad on CPU and on CUDA: against the formula, and against each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dps.kernels import cpu, cuda, device

TWINS = {
    "cpu": SimpleNamespace(kernels=cpu, put=np.copy, get=np.copy),
    "cuda": SimpleNamespace(kernels=cuda, put=device.to_device, get=device.to_host),
}
DTYPES = [np.float32, np.float64]


@pytest.fixture(autouse=True)
def few_simulated_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "SIMULATED_THREADS", 2)


def numbers(*shape: int, seed: int, dtype: Any) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def dense(twin: Any, rows: int, dim: int, dtype: Any, in_place: bool) -> list[Any]:
    w, g = (twin.put(numbers(rows, dim, seed=seed, dtype=dtype)) for seed in (1, 2))
    a = twin.put(np.full(rows, 0.1, dtype))
    out = w if in_place else twin.put(np.full((rows, dim), np.nan, dtype))
    twin.kernels.adagrad_rowwise(out, w, a, g, dtype(0.5), dtype(1e-10), dtype(dim))
    return [twin.get(out), twin.get(a)]


@pytest.mark.thinned
@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (3, 5), (4, 8), (2, 19)])
def test_a_row_has_one_accumulator_that_takes_the_mean_of_its_squares(
    twin: Any, dtype: Any, rows: int, dim: int
) -> None:
    w, g = (numbers(rows, dim, seed=seed, dtype=dtype).astype(np.float64) for seed in (1, 2))
    a = 0.1 + (g**2).mean(axis=1)
    wanted = w - 0.5 * g / (np.sqrt(a)[:, None] + 1e-10)
    near = 20 * float(np.finfo(dtype).eps)
    for in_place in (True, False):
        found, found_a = dense(twin, rows, dim, dtype, in_place)
        np.testing.assert_allclose(found, wanted, rtol=near, atol=near)
        np.testing.assert_allclose(found_a, a, rtol=near)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_gives_the_bits_of_the_cpu(dtype: Any) -> None:
    on_cpu, on_cuda = (dense(twin, 3, 21, dtype, True) for twin in TWINS.values())
    assert [a.tobytes() for a in on_cpu] == [a.tobytes() for a in on_cuda]


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_named_rows_change_as_in_a_dense_update_and_others_keep_their_bits(twin: Any) -> None:
    rows = np.array([1, 4, 5])
    table, g, a = numbers(7, 11, seed=1, dtype=np.float32), numbers(3, 11, seed=2, dtype=np.float32), np.float32(0.2)
    w, slot = twin.put(table), twin.put(np.full(7, a))
    scalars = np.float32(0.5), np.float32(1e-10), np.float32(11)
    twin.kernels.adagrad_rowwise_rows(w, slot, twin.put(rows), twin.put(g), *scalars)
    alone, alone_slot = table[rows].copy(), np.full(3, a)
    cpu.adagrad_rowwise(alone, alone, alone_slot, g, *scalars)
    wanted, wanted_slot = table.copy(), np.full(7, a)
    wanted[rows], wanted_slot[rows] = alone, alone_slot
    assert twin.get(w).tobytes() == wanted.tobytes()
    assert twin.get(slot).tobytes() == wanted_slot.tobytes()


def test_by_hand() -> None:
    w, a = np.array([[1.0, 1.0]]), np.array([0.0])
    cpu.adagrad_rowwise(w, w, a, np.array([[1.0, 7.0]]), np.float64(0.5), np.float64(1e-30), np.float64(2))
    assert a.tolist() == [25.0] and w.tolist() == [[1 - 0.5 / 5, 1 - 3.5 / 5]]
