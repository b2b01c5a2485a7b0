"""Optimizers through their kernels: against formulas in numpy and double, and the promises about bits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dps import optim
from dps.kernels.optimizers import BoundOptimizer, initial_slots
from tests.ps.bound import apply, apply_rows

STEPS = 20
N = 103


def sgd(o, w, s, g, lr, t):
    return w - lr * (g + o.weight_decay * w)


def momentum(o, w, s, g, lr, t):
    s["velocity"] = o.momentum * s["velocity"] + g
    return w - lr * (g + o.momentum * s["velocity"] if o.nesterov else s["velocity"])


def adagrad(o, w, s, g, lr, t):
    s["accumulator"] = s["accumulator"] + g**2
    return w - lr * g / (np.sqrt(s["accumulator"]) + o.epsilon)


def rmsprop(o, w, s, g, lr, t):
    s["square"] = o.decay * s["square"] + (1 - o.decay) * g**2
    variance = s["square"]
    if o.centered:
        s["mean"] = o.decay * s["mean"] + (1 - o.decay) * g
        variance = np.maximum(variance - s["mean"] ** 2, 0)
    u = g / (np.sqrt(variance) + o.epsilon)
    if o.momentum:
        u = s["velocity"] = o.momentum * s["velocity"] + u
    return w - lr * u


def adam(o, w, s, g, lr, t):
    if isinstance(o, optim.AdamW):
        w = w * (1 - lr * o.weight_decay)
    s["first_moment"] = o.beta1 * s["first_moment"] + (1 - o.beta1) * g
    s["second_moment"] = o.beta2 * s["second_moment"] + (1 - o.beta2) * g**2
    first = s["first_moment"] / (1 - o.beta1**t)
    second = s["second_moment"] / (1 - o.beta2**t)
    return w - lr * first / (np.sqrt(second) + o.epsilon)


def ftrl(o, w, s, g, lr, t):
    p = -o.learning_rate_power
    n = s["accumulator"] + g**2
    s["linear"] = s["linear"] + g - (n**p - s["accumulator"] ** p) / lr * w
    s["accumulator"] = n
    z, q = s["linear"], (n**p + o.beta) / lr + 2 * o.l2
    return np.where(np.abs(z) > o.l1, (np.sign(z) * o.l1 - z) / q, 0.0)


CASES = [
    (sgd, optim.SGD(0.1)),
    (sgd, optim.SGD(0.1, weight_decay=0.05)),
    (momentum, optim.Momentum(0.1)),
    (momentum, optim.Momentum(0.1, nesterov=True)),
    (adagrad, optim.Adagrad(0.1)),
    (rmsprop, optim.RMSProp(0.01)),
    (rmsprop, optim.RMSProp(0.01, momentum=0.9)),
    (rmsprop, optim.RMSProp(0.01, centered=True)),
    (rmsprop, optim.RMSProp(0.01, momentum=0.9, centered=True)),
    (adam, optim.Adam(0.01)),
    (adam, optim.AdamW(optim.Cosine(0.1, 15), weight_decay=0.1)),
    (ftrl, optim.Ftrl(0.1)),
    (ftrl, optim.Ftrl(0.1, learning_rate_power=-0.7, l1=0.5, l2=0.1, beta=1.0)),
]
IDS = [f"{i}-{optimizer.name}" for i, (_, optimizer) in enumerate(CASES)]
EVERY_CASE = pytest.mark.parametrize(("rule", "optimizer"), CASES, ids=IDS)


def gradient(step, n=N, dtype=np.float64):
    return (np.random.default_rng(step).standard_normal(n) * (1 + step / 5)).astype(dtype)


def weights(n=N, dtype=np.float64):
    return np.random.default_rng(99).standard_normal(n).astype(dtype)


def rows_of(step):
    """Eight of ten rows with their gradient: not always the same ones."""
    rows = np.sort(np.random.default_rng(1000 + step).permutation(10)[:8]).astype(np.int64)
    return rows, gradient(step, 8 * 7).reshape(8, 7)


def in_tables(slots):
    return {name: slot.reshape(10, 7) for name, slot in slots.items()}


@EVERY_CASE
def test_twenty_dense_updates_follow_the_formula(rule, optimizer):
    w, slots = weights(), initial_slots(optimizer, N, np.float64)
    expected, state = w.copy(), {name: slot.copy() for name, slot in slots.items()}
    for step in range(STEPS):
        g = gradient(step)
        expected = rule(optimizer, expected, state, g, optimizer.rate(step + 1) * 0.5, step + 1)
        apply(optimizer, w, w, slots, g, t=step + 1, step=step + 1, scale=0.5)
    np.testing.assert_allclose(w, expected, rtol=1e-9, atol=1e-9)
    assert slots.keys() == state.keys()
    for name, slot in slots.items():
        np.testing.assert_allclose(slot, state[name], rtol=1e-9, atol=1e-9)


@EVERY_CASE
def test_twenty_sparse_updates_follow_the_formula_on_the_named_rows_alone(rule, optimizer):
    w, slots = (weights(70).reshape(10, 7), in_tables(initial_slots(optimizer, 70, np.float64)))
    expected, state = w.copy(), {name: slot.copy() for name, slot in slots.items()}
    for step in range(STEPS):
        rows, g = rows_of(step)
        before, kept = w.copy(), np.setdiff1d(np.arange(10), rows)
        part = {name: slot[rows] for name, slot in state.items()}
        expected[rows] = rule(optimizer, expected[rows], part, g, optimizer.rate(step), step + 1)
        for name, slot in state.items():
            slot[rows] = part[name]
        apply_rows(optimizer, w, slots, rows, g, t=step + 1, step=step)
        assert w[kept].tobytes() == before[kept].tobytes()
    np.testing.assert_allclose(w, expected, rtol=1e-9, atol=1e-9)
    for name, slot in slots.items():
        np.testing.assert_allclose(slot, state[name], rtol=1e-9, atol=1e-9)


@EVERY_CASE
def test_float32_stays_float32_and_near_the_formula(rule, optimizer):
    w, slots = weights(dtype=np.float32), initial_slots(optimizer, N, np.float32)
    expected, state = w.astype(np.float64), initial_slots(optimizer, N, np.float64)
    for step in range(5):
        g = gradient(step, dtype=np.float32)
        expected = rule(optimizer, expected, state, g.astype(np.float64), optimizer.rate(step), step + 1)
        apply(optimizer, w, w, slots, g, t=step + 1, step=step)
    assert {w.dtype, *(slot.dtype for slot in slots.values())} == {np.dtype(np.float32)}
    np.testing.assert_allclose(w, expected, rtol=1e-4, atol=1e-5)


@EVERY_CASE
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_another_array_for_the_result_gets_the_same_bits_and_leaves_the_variable(rule, optimizer, dtype):
    w, slots, others = (weights(dtype=dtype), initial_slots(optimizer, N, dtype), initial_slots(optimizer, N, dtype))
    current = w.copy()
    for step in range(3):
        g, before, out = (gradient(step, dtype=dtype), current.copy(), np.full(N, np.nan, dtype))
        apply(optimizer, w, w, slots, g, t=step + 1, step=step)
        apply(optimizer, out, current, others, g, t=step + 1, step=step)
        assert current.tobytes() == before.tobytes()
        assert out.tobytes() == w.tobytes()
        current = out
    assert all(slots[name].tobytes() == others[name].tobytes() for name in slots)


@EVERY_CASE
@pytest.mark.parametrize("in_place", [True, False])
def test_bits_do_not_depend_on_where_the_run_is_cut(rule, optimizer, in_place):
    n = 5000
    whole, slots = weights(n, np.float32), initial_slots(optimizer, n, np.float32)
    w, parts = whole.copy(), {name: slot.copy() for name, slot in slots.items()}
    for step in range(3):
        g = gradient(step, n, np.float32)
        cuts = np.unique(np.r_[0, np.random.default_rng(step).integers(0, n, 40), 1, 2, 3, n])
        apply(optimizer, whole, whole, slots, g, t=step + 1, step=step)
        out = w if in_place else np.empty_like(w)
        for low, high in pairwise(cuts):
            cut = slice(low, high)
            part = {name: slot[cut] for name, slot in parts.items()}
            apply(optimizer, out[cut], w[cut], part, g[cut], t=step + 1, step=step)
        w = out
    assert w.tobytes() == whole.tobytes()
    assert all(slots[name].tobytes() == parts[name].tobytes() for name in slots)


@EVERY_CASE
def test_rows_get_the_bits_of_the_dense_update(rule, optimizer):
    w, slots = weights(70, np.float32), initial_slots(optimizer, 70, np.float32)
    table, tables = (w.copy().reshape(10, 7), in_tables(initial_slots(optimizer, 70, np.float32)))
    for step in range(3):
        g = gradient(step, 70, np.float32)
        apply(optimizer, w, w, slots, g, t=step + 1, step=step)
        apply_rows(optimizer, table, tables, np.arange(10), g.reshape(10, 7), t=step + 1, step=step)
    assert table.tobytes() == w.tobytes()
    assert all(slots[name].tobytes() == tables[name].tobytes() for name in slots)


def test_sgd_in_float32_has_the_bits_of_numpy():
    w, g = weights(1001, np.float32), gradient(1, 1001, np.float32)
    expected = w - np.float32(0.1 * 0.25) * g
    apply(optim.SGD(0.1), w, w, {}, g, t=1, step=0, scale=0.25)
    assert w.tobytes() == expected.tobytes()


def test_the_rate_of_a_schedule_is_that_of_the_step_not_of_the_update():
    w = np.zeros(1)
    apply(optim.SGD(optim.Piecewise([10], [1.0, 0.5])), w, w, {}, np.ones(1), t=1, step=11)
    assert w[0] == -0.5


def test_ftrl_sets_weights_with_too_little_evidence_to_exactly_zero():
    optimizer = optim.Ftrl(0.1, l1=1.0)
    w, slots = np.zeros(3), initial_slots(optimizer, 3, np.float64)
    apply(optimizer, w, w, slots, np.array([0.5, -1.0, 3.0]), t=1, step=0)
    assert w[:2].tobytes() == np.zeros(2).tobytes()  # |z| is 0.5 and 1.0, neither is above l1
    assert w[2] == pytest.approx((1.0 - 3.0) / (np.sqrt(0.1 + 9.0) / 0.1))


def test_ftrl_changes_nothing_at_a_step_where_the_schedule_gives_zero():
    optimizer = optim.Ftrl(optim.WarmUp(0.1, 10))
    w, slots, out = np.ones(3), initial_slots(optimizer, 3, np.float64), np.empty(3)
    apply(optimizer, out, w, slots, np.ones(3), t=1, step=0)
    table = np.ones((1, 3))
    apply_rows(optimizer, table, {n: s.reshape(1, 3) for n, s in slots.items()}, np.array([0]), table + 1, t=1, step=0)
    assert out.tolist() == [1, 1, 1]
    assert table.tolist() == [[1, 1, 1]]
    assert slots["accumulator"].tolist() == [0.1] * 3


def test_centered_rmsprop_stays_finite_where_rounding_makes_the_variance_negative():
    optimizer = optim.RMSProp(0.01, centered=True)
    g = np.linspace(0.1, 3, N, dtype=np.float32)
    w, slots = np.zeros(N, np.float32), initial_slots(optimizer, N, np.float32)
    for step in range(300):  # square and mean**2 both come to rest at g**2
        apply(optimizer, w, w, slots, g, t=step + 1, step=step)
    assert (slots["square"] - slots["mean"] ** 2 < 0).any()
    assert np.isfinite(w).all()


def test_adagrad_and_ftrl_accumulators_start_where_they_were_told():
    slots = initial_slots(optim.Ftrl(0.1, initial_accumulator=0.25), 3, np.float32)
    assert {name: slot.tolist() for name, slot in slots.items()} == {"accumulator": [0.25] * 3, "linear": [0.0] * 3}
    assert initial_slots(optim.Adagrad(0.1), 2, np.float64)["accumulator"].tolist() == [0.1, 0.1]
    assert initial_slots(optim.SGD(0.1), 2, np.float64) == {}


def test_no_rows_are_an_update_that_changes_nothing():
    w = weights(70).reshape(10, 7)
    apply_rows(optim.SGD(0.1), w, {}, np.empty(0, np.int64), np.empty((0, 7)), t=1, step=0)
    assert w.tobytes() == weights(70).tobytes()


def test_an_optimizer_without_kernels_is_refused():
    with pytest.raises(ValueError, match="try one of SGD, Momentum"):
        BoundOptimizer(optim.Optimizer(), np.float32)


class HalfSquares(optim.Optimizer):
    """An optimizer of one's own, with a slot by rows and an epsilon, as row-wise Adagrad has."""

    epsilon = 0.5
    slots = row_slots = ("row_accumulator",)


def test_an_optimizer_of_ones_own_with_row_slots_does_not_get_the_kernel_of_another():
    with pytest.raises(ValueError, match=r"wanted .* one element per row; try one of Adagrad\(rowwise=True\)"):
        BoundOptimizer(HalfSquares(), np.float32)
