"""One pass that takes the mean of some gradients, looks for NaN and infinity, and updates the variable, on CPU.

As the kernels of `dps.kernels.cpu`, but for `gs`, a tuple of one to four gradients, and `n`, what their sum, taken in
their order, is divided by: the bits of `add`, `add_divide` and then the update. With one gradient `n` is not looked at.
`out` is `w` itself, which is then updated in place, or memory that does not overlap it, and is then written past the
caches; `out` may begin anywhere. `sgd` returns whether the mean was finite everywhere; where it was not, `out` was
written all the same, so a caller who wants to refuse it has to be able to forget `out`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba.extending import overload

from dps.kernels.gradients import same
from dps.kernels.jit import compiled
from dps.kernels.rules import adagrad_rule, adam_rule, momentum_rule, sgd_rule
from dps.kernels.vectors import AHEAD, any_nan, ask, before_line, fence, lanes_of, load, store, stream, zeros

Array: TypeAlias = npt.NDArray[Any]
Gradients: TypeAlias = tuple[Array, ...]
Scalar: TypeAlias = "np.floating[Any]"

MOST = 4
"""Gradients of one pass."""


def mean_at(gs: Gradients, i: int, n: Scalar) -> Any:
    """Element i of the mean."""
    raise NotImplementedError("numba compiles this")


def load_mean(gs: Gradients, i: int, n: Scalar) -> Any:
    """Elements i to i + lanes of the mean, as a vector."""
    raise NotImplementedError("numba compiles this")


@overload(mean_at)
def _mean_at(gs, i, n):  # type: ignore[no-untyped-def]  # numba compares it with the lambdas, to the letter
    return {
        1: lambda gs, i, n: gs[0][i],
        2: lambda gs, i, n: (gs[0][i] + gs[1][i]) / n,
        3: lambda gs, i, n: ((gs[0][i] + gs[1][i]) + gs[2][i]) / n,
        4: lambda gs, i, n: (((gs[0][i] + gs[1][i]) + gs[2][i]) + gs[3][i]) / n,
    }[len(gs)]


@overload(load_mean)
def _load_mean(gs, i, n):  # type: ignore[no-untyped-def]
    return {
        1: lambda gs, i, n: load(gs[0], i),
        2: lambda gs, i, n: (load(gs[0], i) + load(gs[1], i)) / n,
        3: lambda gs, i, n: ((load(gs[0], i) + load(gs[1], i)) + load(gs[2], i)) / n,
        4: lambda gs, i, n: (((load(gs[0], i) + load(gs[1], i)) + load(gs[2], i)) + load(gs[3], i)) / n,
    }[len(gs)]


def ask_all(gs: Gradients, i: int) -> None:
    """Have elements i and on of all gradients brought."""
    raise NotImplementedError("numba compiles this")


@overload(ask_all)
def _ask_all(gs, i):  # type: ignore[no-untyped-def]
    def one(gs, i):  # type: ignore[no-untyped-def]
        ask(gs[0], i)

    def two(gs, i):  # type: ignore[no-untyped-def]
        ask(gs[0], i), ask(gs[1], i)

    def three(gs, i):  # type: ignore[no-untyped-def]
        ask(gs[0], i), ask(gs[1], i), ask(gs[2], i)

    def four(gs, i):  # type: ignore[no-untyped-def]
        ask(gs[0], i), ask(gs[1], i), ask(gs[2], i), ask(gs[3], i)

    return {1: one, 2: two, 3: three, 4: four}[len(gs)]


@compiled
def put(out: Array, i: int, value: Any, here: bool) -> None:
    """Write a vector: into memory that was just read, or past the caches."""
    if here:
        store(out, i, value)
    else:
        stream(out, i, value)


@compiled
def bounds(out: Array, here: bool) -> tuple[int, int]:
    """Where the vectors begin and end; elements before and after are taken one by one, and `edge` counts them."""
    start, lanes = 0 if here else before_line(out), lanes_of(out)
    return start, start + (out.size - start) // lanes * lanes


@compiled
def edge(k: int, start: int, end: int) -> int:
    """The k-th element that no vector has."""
    return k if k < start else end + (k - start)


@compiled
def sgd(out: Array, w: Array, gs: Gradients, n: Scalar, lr: Scalar, weight_decay: Scalar) -> bool:
    """`cpu.sgd`."""
    here = same(out, w)
    start, end = bounds(out, here)
    bad, found = lr - lr, zeros(w)
    for k in range(start + w.size - end):
        i = edge(k, start, end)
        g = mean_at(gs, i, n)
        bad += g - g
        out[i] = sgd_rule(w[i], g, lr, weight_decay)
    lanes, ahead = lanes_of(w), AHEAD * lanes_of(w)
    for i in range(start, end, lanes):
        ask(w, i + ahead)
        ask_all(gs, i + ahead)
        gv = load_mean(gs, i, n)
        found = found + (gv - gv)
        put(out, i, sgd_rule(load(w, i), gv, lr, weight_decay), here)
    fence()
    return bad == 0 and not any_nan(found)


@compiled
def momentum(
    out: Array, w: Array, velocity: Array, gs: Gradients, n: Scalar, lr: Scalar, mu: Scalar, nesterov: bool
) -> None:
    """`cpu.momentum`."""
    here = same(out, w)
    start, end = bounds(out, here)
    for k in range(start + w.size - end):
        i = edge(k, start, end)
        out[i], velocity[i] = momentum_rule(w[i], velocity[i], mean_at(gs, i, n), lr, mu, nesterov)
    lanes, ahead = lanes_of(w), AHEAD * lanes_of(w)
    for i in range(start, end, lanes):
        ask(w, i + ahead)
        ask(velocity, i + ahead)
        ask_all(gs, i + ahead)
        wv, v = momentum_rule(load(w, i), load(velocity, i), load_mean(gs, i, n), lr, mu, nesterov)
        put(out, i, wv, here)
        store(velocity, i, v)
    fence()


@compiled
def adagrad(out: Array, w: Array, accumulator: Array, gs: Gradients, n: Scalar, lr: Scalar, epsilon: Scalar) -> None:
    """`cpu.adagrad`."""
    here = same(out, w)
    start, end = bounds(out, here)
    for k in range(start + w.size - end):
        i = edge(k, start, end)
        out[i], accumulator[i] = adagrad_rule(w[i], accumulator[i], mean_at(gs, i, n), lr, epsilon)
    lanes, ahead = lanes_of(w), AHEAD * lanes_of(w)
    for i in range(start, end, lanes):
        ask(w, i + ahead)
        ask(accumulator, i + ahead)
        ask_all(gs, i + ahead)
        wv, a = adagrad_rule(load(w, i), load(accumulator, i), load_mean(gs, i, n), lr, epsilon)
        put(out, i, wv, here)
        store(accumulator, i, a)
    fence()


@compiled
def adam(
    out: Array, w: Array, m: Array, v: Array, gs: Gradients, n: Scalar, step_size: Scalar, decay: Scalar,
    beta1: Scalar, one_minus_beta1: Scalar, beta2: Scalar, one_minus_beta2: Scalar, root: Scalar, epsilon: Scalar,
) -> None:  # fmt: skip
    """`cpu.adam`."""
    here = same(out, w)
    start, end = bounds(out, here)
    s, d, b1, c1, b2, c2, e = (step_size, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon)
    for k in range(start + w.size - end):
        i = edge(k, start, end)
        out[i], m[i], v[i] = adam_rule(w[i], m[i], v[i], mean_at(gs, i, n), s, d, b1, c1, b2, c2, root, e)
    lanes, ahead = lanes_of(w), AHEAD * lanes_of(w)
    for i in range(start, end, lanes):
        ask(w, i + ahead)
        ask(m, i + ahead)
        ask(v, i + ahead)
        ask_all(gs, i + ahead)
        wv, mv, vv = adam_rule(
            load(w, i), load(m, i), load(v, i), load_mean(gs, i, n), s, d, b1, c1, b2, c2, root, e
        )  # fmt: skip
        put(out, i, wv, here)
        store(m, i, mv)
        store(v, i, vv)
    fence()
