"""Kernels on CPU and on CUDA, one file for both: each against formulas in numpy and double, and against each other.

CUDA is numba's simulator, which checks bounds; with DPS_TEST_GPU=1 in the environment it is the GPU that is there.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dps.kernels import cpu, cuda, device
from dps.training.optimizers import KNOWN, LEAST

SIZES = [0, 1, 31, 33, 257]
TWINS = {
    "cpu": SimpleNamespace(kernels=cpu, put=np.copy, get=np.copy),
    "cuda": SimpleNamespace(kernels=cuda, put=device.to_device, get=device.to_host),
}
each_twin = pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
"""The kernels for the processor are compiled for each dtype."""


@pytest.fixture(autouse=True)
def few_simulated_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of two threads: every loop strides, and the simulator has few threads to start."""
    monkeypatch.setattr(device, "SIMULATED_THREADS", 2)


def numbers(n: int, seed: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(n).astype(dtype)


# ---- optimizers: name, slots, scalars; the rule gives the new variable and slots, in double ----


def sgd(w, g, lr, wd):
    return w - lr * (g + wd * w), []


def momentum(w, v, g, lr, mu, nesterov):
    v = mu * v + g
    return w - lr * (g + mu * v if nesterov else v), [v]


def adagrad(w, a, g, lr, epsilon):
    a = a + g**2
    return w - lr * g / (np.sqrt(a) + epsilon), [a]


def rmsprop(w, s, m, v, g, lr, decay, rest, mu, epsilon):
    s = decay * s + rest * g**2
    m = None if m is None else decay * m + rest * g
    u = g / (np.sqrt(s if m is None else np.maximum(s - m**2, 0)) + epsilon)
    v = None if v is None else mu * v + u
    return w - lr * (u if v is None else v), [s, m, v]


def adam(w, m, v, g, size, decay, b1, c1, b2, c2, root, epsilon):
    m, v = b1 * m + c1 * g, b2 * v + c2 * g**2
    return w * (1 - decay) - size * m / (np.sqrt(v) / root + epsilon), [m, v]


def ftrl(w, n, z, g, lr, p, l1, twice_l2, beta):
    p = 0.5 if p is None else p
    after = n + g**2
    z = z + g - (after**p - n**p) / lr * w
    q = (after**p + beta) / lr + twice_l2
    return np.where(np.abs(z) > l1, (np.sign(z) * l1 - z) / q, 0), [after, z]


ADAM = (0.002, 0.0, 0.9, 0.1, 0.999, 0.001, 0.5, 1e-8)
RMSPROP = (0.01, 0.9, 0.1, 0.8, 1e-6)
CASES = {
    "sgd": (sgd, "", (0.1, 0.0)),
    "sgd-decay": (sgd, "", (0.1, 0.01)),
    "momentum": (momentum, "+", (0.1, 0.9, False)),
    "momentum-nesterov": (momentum, "+", (0.1, 0.9, True)),
    "adagrad": (adagrad, "+", (0.1, 1e-10)),
    "adagrad-no epsilon": (adagrad, "+", (0.1, 0.0)),
    "rmsprop": (rmsprop, "+..", RMSPROP),
    "rmsprop-centered": (rmsprop, "+-.", RMSPROP),
    "rmsprop-momentum": (rmsprop, "+.-", RMSPROP),
    "rmsprop-both": (rmsprop, "+--", RMSPROP),
    "adam": (adam, "-+", ADAM),
    "adam-decoupled decay": (adam, "-+", (ADAM[0], 0.01, *ADAM[2:])),
    "ftrl": (ftrl, "+-", (0.1, None, 0.3, 0.2, 1.0)),
    "ftrl-other power": (ftrl, "+-", (0.1, 0.7, 0.3, 0.2, 1.0)),
}
each_case = pytest.mark.parametrize(("rule", "signs", "scalars"), CASES.values(), ids=CASES)


def slots_of(signs: str, n: int, dtype: Any) -> list[Any]:
    """A slot for each sign: + is above 0, - a small number, . is not there."""
    made = [0.5 + np.abs(numbers(n, 20 + i, dtype)) if s == "+" else numbers(n, 20 + i, dtype) / 10 for i, s in
            enumerate(signs)]  # fmt: skip
    return [None if sign == "." else slot for sign, slot in zip(signs, made, strict=True)]


def cast(scalars: tuple[Any, ...], dtype: Any) -> list[Any]:
    return [s if s is None or isinstance(s, bool) else dtype(s) for s in scalars]


def double(array: Any) -> Any:
    return None if array is None else array.astype(np.float64)


def assert_near(got: Any, wanted: Any, dtype: Any, cases: float = 8) -> None:
    """Within some roundings of the type, for numbers around 1."""
    eps = float(np.finfo(dtype).eps)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, rtol=cases * eps, atol=cases * eps)


def updated(twin: Any, rule: Any, signs: str, scalars: Any, n: int, dtype: Any, in_place: bool) -> list[Any]:
    """The variable and its slots after one dense update by a kernel."""
    w, g = twin.put(numbers(n, 1, dtype)), twin.put(numbers(n, 2, dtype))
    slots = [None if s is None else twin.put(s) for s in slots_of(signs, n, dtype)]
    out = w if in_place else twin.put(np.full(n, np.nan, dtype))
    twin.kernels.passes(KNOWN[rule.__name__].rule).dense(out, w, *slots, g, *cast(scalars, dtype))
    if not in_place:
        assert twin.get(w).tobytes() == numbers(n, 1, dtype).tobytes()
    return [twin.get(a) for a in (out, *slots) if a is not None]


@each_twin
@each_dtype
def test_adagrad_without_epsilon_divides_by_nothing_that_is_zero(twin, dtype):
    n, least = 33, LEAST
    w, a, g = (twin.put(np.full(n, x, dtype)) for x in (1.0, least, 0.0))
    for kernels in ("adagrad", "adagrad_rowwise"):
        slot = twin.put(np.full(11, least, dtype)) if kernels.endswith("wise") else a
        shape = (11, 3) if kernels.endswith("wise") else (n,)
        more = [dtype(3)] if kernels.endswith("wise") else []
        out = twin.put(np.zeros(shape, dtype))
        own = [twin.put(twin.get(x).reshape(shape)) for x in (w, g)]
        kernel = getattr(twin.kernels, kernels, None) or twin.kernels.passes(KNOWN[kernels].rule).dense
        kernel(out, own[0], slot, own[1], dtype(0.1), dtype(0), *more)
        assert (twin.get(out) == 1).all() and (twin.get(slot) > 0).all()


@each_twin
@each_case
@each_dtype
def test_a_dense_update_follows_the_formula(twin, rule, signs, scalars, dtype):
    for n in SIZES:
        g, slots = numbers(n, 2, dtype), slots_of(signs, n, dtype)
        w, after = rule(double(numbers(n, 1, dtype)), *map(double, slots), double(g), *scalars)
        wanted = [w, *(s for s in after if s is not None)]
        for in_place in (True, False):
            found = updated(twin, rule, signs, scalars, n, dtype, in_place)
            for a, b in zip(found, wanted, strict=True):
                assert_near(a, b, dtype, cases=60 if rule is ftrl else 8)  # ftrl subtracts powers that are alike


EXACT = {name: case for name, case in CASES.items() if name != "ftrl-other power"}  # CUDA has powers of its own


@pytest.mark.parametrize(("rule", "signs", "scalars"), EXACT.values(), ids=EXACT)
@each_dtype
def test_cuda_gives_the_bits_of_the_cpu_for_a_dense_update(rule, signs, scalars, dtype):
    on_cpu, on_cuda = (updated(twin, rule, signs, scalars, 257, dtype, True) for twin in TWINS.values())
    assert [a.tobytes() for a in on_cpu] == [a.tobytes() for a in on_cuda]


@each_twin
@each_case
@each_dtype
@pytest.mark.parametrize(("rows", "dim"), [([3, 0, 9], 11), ([], 4), ([5], 1)])
def test_an_update_of_rows_changes_those_rows_as_the_formula_says_and_no_others(
    twin, rule, signs, scalars, dtype, rows, dim
):
    table, g = numbers(10 * dim, 1, dtype).reshape(10, dim), numbers(len(rows) * dim, 2, dtype).reshape(-1, dim)
    slots = [None if s is None else s.reshape(10, dim) for s in slots_of(signs, 10 * dim, dtype)]
    taken = [None if s is None else double(s[rows]) for s in slots]
    expected = [double(a) for a in (table, *slots) if a is not None]
    w, after = rule(double(table[rows]), *taken, double(g), *scalars)
    for whole, part in zip(expected, [w, *(s for s in after if s is not None)], strict=True):
        whole[rows] = part
    held = [None if a is None else twin.put(a) for a in (table, *slots)]
    kernel = twin.kernels.passes(KNOWN[rule.__name__].rule).rows
    kernel(*held, twin.put(np.array(rows, np.int64)), twin.put(g), *cast(scalars, dtype))
    kept = np.setdiff1d(np.arange(10), rows)
    before = [a for a in (table, *slots) if a is not None]
    for a, b, was in zip([twin.get(a) for a in held if a is not None], expected, before, strict=True):
        assert_near(a, b, dtype, cases=60 if rule is ftrl else 8)
        assert a[kept].tobytes() == was[kept].tobytes()


# ---- rows ----


@each_twin
@pytest.mark.parametrize("dim", [1, 2, 3, 7, 64])  # fewer and more columns than threads
def test_gather_reads_the_named_rows_in_their_order(twin, dim):
    table, rows = numbers(20 * dim, 1).reshape(20, dim), np.array([19, 0, 7, 7, 3] * (1 + 12 // dim))
    out = twin.put(np.empty((rows.size, dim), np.float32))
    twin.kernels.gather(twin.put(table), twin.put(rows), out)
    assert twin.get(out).tobytes() == table[rows].tobytes()


# ---- gradients ----


@each_twin
@each_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_found(twin, dtype, bad):
    for n in SIZES[1:]:
        for position in {0, n // 2, n - 1}:
            values = numbers(n, n, dtype)
            values[position] = bad
            assert twin.kernels.all_finite(twin.put(values)) is False


@each_twin
def test_the_largest_and_smallest_numbers_are_finite_and_so_is_nothing(twin):
    limits = np.finfo(np.float32)
    values = np.array([limits.max, limits.min, limits.tiny, limits.smallest_subnormal, 0, -0.0], np.float32)
    assert twin.kernels.all_finite(twin.put(values)) is True
    assert twin.kernels.all_finite(twin.put(np.empty(0, np.float64))) is True


@each_twin
@each_dtype
def test_an_average_follows_its_variable_by_a_share_of_what_lies_between(twin, dtype):
    average, w, share = numbers(33, 1, dtype), numbers(33, 2, dtype), dtype(1 - 0.999)
    held = twin.put(average)
    twin.kernels.follow(held, twin.put(w), share)
    assert twin.get(held).tobytes() == (average - (average - w) * share).tobytes()
    held, rows, named = twin.put(average.reshape(11, 3)), np.array([0, 4, 10]), np.zeros((11, 1), bool)
    named[rows] = True
    twin.kernels.follow_rows(held, twin.put(w.reshape(11, 3)), twin.put(rows), share)
    wanted = np.where(named, (average - (average - w) * share).reshape(11, 3), average.reshape(11, 3))
    assert twin.get(held).tobytes() == wanted.tobytes()


def test_each_optimizer_is_among_the_cases():
    assert {rule.__name__ for rule, _, _ in CASES.values()} == {
        cls.rule.__qualname__.partition(".")[0].lower() for cls in KNOWN.values() if cls.__module__.startswith("dps.")
    }


def test_each_function_of_cuda_is_one_of_the_cpu():
    assert set(cuda.__all__) <= set(cpu.__all__)
