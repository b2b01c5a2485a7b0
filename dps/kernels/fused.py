"""One CPU pass that averages some gradients and updates the variable.

These are like the kernels of `dps.kernels.cpu`, but take `gs`, a tuple of one to four gradients, and `n`, the divisor
of their sum. The result has the bits of `add`, `add_divide` and then the update, in the order of `gs`. With one
gradient `n` is ignored. Variables and gradients may be halves, as `dps.kernels.widening` has them; slots, scalars and
all arithmetic are then float32. `out` is `w` itself, which is updated in place, or memory that does not overlap it and
is written past the caches; `out` may begin at any address.

More than 9 parameters: kernels are compiled for arrays and numbers, not for objects that hold them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba.extending import overload

from dps.kernels.elements import number, put_number
from dps.kernels.gradients import same
from dps.kernels.jit import compiled
from dps.kernels.rules import (
    adagrad_rule,
    adam_rule,
    ftrl_root_rule,
    ftrl_rule,
    momentum_rule,
    rmsprop_rule,
    sgd_rule,
)
from dps.kernels.vectors import AHEAD, any_nan, ask, before_line, fence, lanes_of, load, store, stream, zeros

Array: TypeAlias = npt.NDArray[Any]
Gradients: TypeAlias = tuple[Array, ...]
Scalar: TypeAlias = "np.floating[Any]"

MOST = 4
"""The most gradients in one pass."""


def mean_at(gs: Gradients, i: int, n: Scalar) -> Any:
    """Element i of the mean."""
    raise NotImplementedError("numba compiles this")


def load_mean(gs: Gradients, i: int, n: Scalar) -> Any:
    """Elements i to i + lanes of the mean, as a vector."""
    raise NotImplementedError("numba compiles this")


@overload(mean_at)
def _mean_at(gs, i, n):  # type: ignore[no-untyped-def]  # numba compares it with the lambdas, to the letter
    return {
        1: lambda gs, i, n: number(gs[0], i),
        2: lambda gs, i, n: (number(gs[0], i) + number(gs[1], i)) / n,
        3: lambda gs, i, n: ((number(gs[0], i) + number(gs[1], i)) + number(gs[2], i)) / n,
        4: lambda gs, i, n: (((number(gs[0], i) + number(gs[1], i)) + number(gs[2], i)) + number(gs[3], i)) / n,
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
    """Prefetch the elements from i on of all gradients."""
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
    """Where the vectors begin and end. The elements before and after are handled one by one; `edge` numbers them."""
    start, lanes = 0 if here else before_line(out), lanes_of(out)
    return start, start + (out.size - start) // lanes * lanes


@compiled
def edge(k: int, start: int, end: int) -> int:
    """The index of the k-th element that is in no vector."""
    return k if k < start else end + (k - start)


@compiled
def sgd(out: Array, w: Array, gs: Gradients, n: Scalar, lr: Scalar, weight_decay: Scalar) -> bool:
    """`cpu.sgd`. Returns whether the mean is finite everywhere. If it is not, `out` is written all the same."""
    here = same(out, w)
    start, end = bounds(out, here)
    bad, found = lr - lr, zeros(w)
    for k in range(start + w.size - end):
        i = edge(k, start, end)
        g = mean_at(gs, i, n)
        bad += g - g
        put_number(out, i, sgd_rule(number(w, i), g, lr, weight_decay))
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
        new, velocity[i] = momentum_rule(number(w, i), velocity[i], mean_at(gs, i, n), lr, mu, nesterov)
        put_number(out, i, new)
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
        new, accumulator[i] = adagrad_rule(number(w, i), accumulator[i], mean_at(gs, i, n), lr, epsilon)
        put_number(out, i, new)
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
def rmsprop(
    out: Array, w: Array, square: Array, mean: Array | None, velocity: Array | None, gs: Gradients, n: Scalar,
    lr: Scalar, decay: Scalar, one_minus_decay: Scalar, mu: Scalar, epsilon: Scalar,
) -> None:  # fmt: skip
    """`cpu.rmsprop`, without its pass for another buffer."""
    here = same(out, w)
    start, end = bounds(out, here)
    d, c, e, centered, moving = (decay, one_minus_decay, epsilon, mean is not None, velocity is not None)
    for k in range(start + w.size - end):
        i = edge(k, start, end)
        g, si = mean_at(gs, i, n), square[i]
        mi, vi = (mean[i] if mean is not None else si), (velocity[i] if velocity is not None else si)
        wi, si, mi, vi = rmsprop_rule(number(w, i), si, mi, vi, g, lr, d, c, mu, e, centered, moving)
        square[i] = si
        if mean is not None:
            mean[i] = mi
        if velocity is not None:
            velocity[i] = vi
        put_number(out, i, wi)
    lanes, ahead = lanes_of(w), AHEAD * lanes_of(w)
    for i in range(start, end, lanes):
        ask(w, i + ahead)
        ask(square, i + ahead)
        ask_all(gs, i + ahead)
        gv, sv = load_mean(gs, i, n), load(square, i)
        mv, vv = (load(mean, i) if mean is not None else sv), (load(velocity, i) if velocity is not None else sv)
        wv, sv, mv, vv = rmsprop_rule(load(w, i), sv, mv, vv, gv, lr, d, c, mu, e, centered, moving)
        store(square, i, sv)
        if mean is not None:
            store(mean, i, mv)
        if velocity is not None:
            store(velocity, i, vv)
        put(out, i, wv, here)
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
        wi, g = number(w, i), mean_at(gs, i, n)
        wi, m[i], v[i] = adam_rule(wi, m[i], v[i], g, s, d, b1, c1, b2, c2, root, e)
        put_number(out, i, wi)
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


@compiled
def ftrl(
    out: Array, w: Array, m: Array, z: Array, gs: Gradients, n: Scalar,
    lr: Scalar, power: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar,
) -> None:  # fmt: skip
    """`cpu.ftrl`; `m` is its n."""
    here = same(out, w)
    if power != 0.5:
        for i in range(w.size):
            wi, g = number(w, i), mean_at(gs, i, n)
            wi, m[i], z[i] = ftrl_rule(wi, m[i], z[i], g, lr, power, l1, twice_l2, beta)
            put_number(out, i, wi)
        return
    start, end = bounds(out, here)
    for k in range(start + w.size - end):
        i = edge(k, start, end)
        wi, m[i], z[i] = ftrl_root_rule(number(w, i), m[i], z[i], mean_at(gs, i, n), lr, l1, twice_l2, beta)
        put_number(out, i, wi)
    lanes, ahead = lanes_of(w), AHEAD * lanes_of(w)
    for i in range(start, end, lanes):
        ask(w, i + ahead)
        ask(m, i + ahead)
        ask(z, i + ahead)
        ask_all(gs, i + ahead)
        wv, mv, zv = ftrl_root_rule(load(w, i), load(m, i), load(z, i), load_mean(gs, i, n), lr, l1, twice_l2, beta)
        put(out, i, wv, here)
        store(m, i, mv)
        store(z, i, zv)
    fence()
