"""CPU kernels of a ps: they take arrays and return arrays, in one pass over each.

Dense kernels take 1-D C-contiguous arrays of one size and one dtype (float32 or float64): first `out`, then the
variable `w`, its slots, the gradient `g`, then scalars. `out` receives the new variable: it is `w` itself, or memory
that does not overlap `w`. Slots are changed in place. Row kernels take a table `w` and slots of shape (rows, dim),
row numbers `rows` (int64, unique, checked with `rows_in_range`) and `g` of shape (len(rows), dim); they change
the named rows in place and no others; `w` and `g` may be halves, as `dps.kernels.widening` has them.

Scalars are numpy scalars of the arrays' dtype: a Python float would turn float32 work into float64. Factors that
lose digits in float32 (1 - beta, bias corrections, lr * weight_decay) are computed by the caller in double.
Nothing is checked here, not even sizes: `dps.kernels.optimizers` does that. No kernel holds the GIL or runs in
parallel.

Each dense kernel has two loops over one element rule, because LLVM does not vectorise a loop over two arrays that may
be the same. `dps.kernels.fused` has the passes for arrays that are too large for the caches: they write another buffer
without reading it first, take several gradients, and check for NaN.

More than 9 parameters: kernels are compiled for arrays and numbers, not for objects that hold them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels.elements import entry, number, put_entry, put_number
from dps.kernels.gradients import add, add_divide, same
from dps.kernels.jit import compiled
from dps.kernels.looking import all_finite
from dps.kernels.rows import gather, prefetch, rows_in_range, sum_duplicate_rows
from dps.kernels.rowwise import adagrad_rowwise, adagrad_rowwise_rows
from dps.kernels.rules import adagrad_rule, adam_rule, ftrl_root_rule, ftrl_rule, momentum_rule, rmsprop_rule, sgd_rule

__all__ = [
    "adagrad",
    "adagrad_rows",
    "adagrad_rowwise",
    "adagrad_rowwise_rows",
    "adam",
    "adam_rows",
    "add",
    "add_divide",
    "all_finite",
    "follow",
    "follow_rows",
    "ftrl",
    "ftrl_rows",
    "gather",
    "momentum",
    "momentum_rows",
    "rmsprop",
    "rmsprop_rows",
    "rows_in_range",
    "sgd",
    "sgd_rows",
    "sum_duplicate_rows",
]

Array: TypeAlias = npt.NDArray[Any]
Rows: TypeAlias = npt.NDArray[np.int64]
Scalar: TypeAlias = "np.floating[Any]"


@compiled
def sgd(out: Array, w: Array, g: Array, lr: Scalar, weight_decay: Scalar) -> None:
    """out = w - lr * (g + weight_decay * w)."""
    if same(out, w):
        for i in range(w.size):
            w[i] = sgd_rule(w[i], g[i], lr, weight_decay)
    else:
        for i in range(w.size):
            out[i] = sgd_rule(w[i], g[i], lr, weight_decay)


@compiled
def sgd_rows(w: Array, rows: Rows, g: Array, lr: Scalar, weight_decay: Scalar) -> None:
    """`sgd` on the named rows."""
    for i in range(rows.size):
        prefetch(w, rows, i)
        r = rows[i]
        for j in range(w.shape[1]):
            put_entry(w, r, j, sgd_rule(entry(w, r, j), entry(g, i, j), lr, weight_decay))


@compiled
def momentum(out: Array, w: Array, velocity: Array, g: Array, lr: Scalar, mu: Scalar, nesterov: bool) -> None:
    """velocity = mu * velocity + g; out = w - lr * velocity, with Nesterov w - lr * (g + mu * velocity)."""
    if same(out, w):
        for i in range(w.size):
            w[i], velocity[i] = momentum_rule(w[i], velocity[i], g[i], lr, mu, nesterov)
    else:
        for i in range(w.size):
            out[i], velocity[i] = momentum_rule(w[i], velocity[i], g[i], lr, mu, nesterov)


@compiled
def momentum_rows(w: Array, velocity: Array, rows: Rows, g: Array, lr: Scalar, mu: Scalar, nesterov: bool) -> None:
    """`momentum` on the named rows."""
    for i in range(rows.size):
        prefetch(w, rows, i)
        prefetch(velocity, rows, i)
        r = rows[i]
        for j in range(w.shape[1]):
            new = momentum_rule(entry(w, r, j), velocity[r, j], entry(g, i, j), lr, mu, nesterov)
            velocity[r, j] = new[1]
            put_entry(w, r, j, new[0])


@compiled
def adagrad(out: Array, w: Array, accumulator: Array, g: Array, lr: Scalar, epsilon: Scalar) -> None:
    """accumulator += g**2; out = w - lr * g / (sqrt(accumulator) + epsilon). Duchi, Hazan and Singer 2011."""
    if same(out, w):
        for i in range(w.size):
            w[i], accumulator[i] = adagrad_rule(w[i], accumulator[i], g[i], lr, epsilon)
    else:
        for i in range(w.size):
            out[i], accumulator[i] = adagrad_rule(w[i], accumulator[i], g[i], lr, epsilon)


@compiled
def adagrad_rows(w: Array, accumulator: Array, rows: Rows, g: Array, lr: Scalar, epsilon: Scalar) -> None:
    """`adagrad` on the named rows."""
    for i in range(rows.size):
        prefetch(w, rows, i)
        prefetch(accumulator, rows, i)
        r = rows[i]
        for j in range(w.shape[1]):
            new = adagrad_rule(entry(w, r, j), accumulator[r, j], entry(g, i, j), lr, epsilon)
            accumulator[r, j] = new[1]
            put_entry(w, r, j, new[0])


@compiled
def rmsprop(
    out: Array, w: Array, square: Array, mean: Array | None, velocity: Array | None, g: Array,
    lr: Scalar, decay: Scalar, one_minus_decay: Scalar, mu: Scalar, epsilon: Scalar,
) -> None:  # fmt: skip
    """square and mean decay towards g**2 and g; velocity = mu * velocity + g / (sqrt(square - mean**2) + epsilon).

    out = w - lr * velocity. `mean` is None if not centered, `velocity` if there is no momentum: numba compiles a loop
    without them. If `out` is not `w`, an additional pass is needed. Source: torch.optim.RMSprop.
    """
    if not same(out, w):
        for i in range(w.size):
            out[i] = w[i]
    centered, moving = mean is not None, velocity is not None
    for i in range(out.size):
        wi, si = number(out, i), square[i]
        mi, vi = (mean[i] if mean is not None else si), (velocity[i] if velocity is not None else si)
        wi, si, mi, vi = rmsprop_rule(
            wi, si, mi, vi, number(g, i), lr, decay, one_minus_decay, mu, epsilon, centered, moving
        )  # fmt: skip
        square[i] = si
        if mean is not None:
            mean[i] = mi
        if velocity is not None:
            velocity[i] = vi
        put_number(out, i, wi)


@compiled
def rmsprop_rows(
    w: Array, square: Array, mean: Array | None, velocity: Array | None, rows: Rows, g: Array,
    lr: Scalar, decay: Scalar, one_minus_decay: Scalar, mu: Scalar, epsilon: Scalar,
) -> None:  # fmt: skip
    """`rmsprop` on the named rows."""
    for i in range(rows.size):
        prefetch(w, rows, i)
        prefetch(square, rows, i)
        r = rows[i]
        m = None if mean is None else mean[r]
        v = None if velocity is None else velocity[r]
        rmsprop(w[r], w[r], square[r], m, v, g[i], lr, decay, one_minus_decay, mu, epsilon)


@compiled
def adam(
    out: Array, w: Array, m: Array, v: Array, g: Array, step_size: Scalar, decay: Scalar,
    beta1: Scalar, one_minus_beta1: Scalar, beta2: Scalar, one_minus_beta2: Scalar, root: Scalar, epsilon: Scalar,
) -> None:  # fmt: skip
    """out = (w - decay * w) - step_size * m / (sqrt(v) / root + epsilon), after m and v moved towards g and g**2.

    step_size = lr / (1 - beta1**t) and root = sqrt(1 - beta2**t) hold the bias corrections of update t; decay is
    lr * weight_decay for AdamW and 0 for Adam. Sources: Kingma and Ba 2015, torch.optim.Adam and AdamW.
    """
    s, d, b1, c1, b2, c2, e = (step_size, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon)
    if same(out, w):
        for i in range(w.size):
            w[i], m[i], v[i] = adam_rule(w[i], m[i], v[i], g[i], s, d, b1, c1, b2, c2, root, e)
    else:
        for i in range(w.size):
            out[i], m[i], v[i] = adam_rule(w[i], m[i], v[i], g[i], s, d, b1, c1, b2, c2, root, e)


@compiled
def adam_rows(
    w: Array, m: Array, v: Array, rows: Rows, g: Array, step_size: Scalar, decay: Scalar,
    beta1: Scalar, one_minus_beta1: Scalar, beta2: Scalar, one_minus_beta2: Scalar, root: Scalar, epsilon: Scalar,
) -> None:  # fmt: skip
    """`adam` on the named rows, the lazy form: moments of rows that are not named do not decay."""
    s, d, b1, c1, b2, c2, e = (step_size, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon)
    for i in range(rows.size):
        prefetch(w, rows, i)
        prefetch(m, rows, i)
        prefetch(v, rows, i)
        r = rows[i]
        for j in range(w.shape[1]):
            wij, gij = entry(w, r, j), entry(g, i, j)
            wij, m[r, j], v[r, j] = adam_rule(wij, m[r, j], v[r, j], gij, s, d, b1, c1, b2, c2, root, e)
            put_entry(w, r, j, wij)


@compiled
def ftrl(
    out: Array, w: Array, n: Array, z: Array, g: Array,
    lr: Scalar, power: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar,
) -> None:  # fmt: skip
    """n' = n + g**2; z += g - (n'**power - n**power) / lr * w; q = (n'**power + beta) / lr + twice_l2.

    out = (sign(z) * l1 - z) / q where |z| > l1, else 0. `power` is the negative of learning_rate_power.
    Source: McMahan et al. 2013.
    """
    if power == 0.5:
        if same(out, w):
            for i in range(w.size):
                w[i], n[i], z[i] = ftrl_root_rule(w[i], n[i], z[i], g[i], lr, l1, twice_l2, beta)
        else:
            for i in range(w.size):
                out[i], n[i], z[i] = ftrl_root_rule(w[i], n[i], z[i], g[i], lr, l1, twice_l2, beta)
    else:
        for i in range(w.size):
            out[i], n[i], z[i] = ftrl_rule(w[i], n[i], z[i], g[i], lr, power, l1, twice_l2, beta)


@compiled
def ftrl_rows(
    w: Array, n: Array, z: Array, rows: Rows, g: Array,
    lr: Scalar, power: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar,
) -> None:  # fmt: skip
    """`ftrl` on the named rows."""
    is_root = power == 0.5
    for i in range(rows.size):
        prefetch(w, rows, i)
        prefetch(n, rows, i)
        prefetch(z, rows, i)
        r = rows[i]
        if is_root:  # a separate loop, because one with powers is not vectorised
            for j in range(w.shape[1]):
                wij, gij = entry(w, r, j), entry(g, i, j)
                wij, n[r, j], z[r, j] = ftrl_root_rule(wij, n[r, j], z[r, j], gij, lr, l1, twice_l2, beta)
                put_entry(w, r, j, wij)
        else:
            for j in range(w.shape[1]):
                wij, gij = entry(w, r, j), entry(g, i, j)
                wij, n[r, j], z[r, j] = ftrl_rule(wij, n[r, j], z[r, j], gij, lr, power, l1, twice_l2, beta)
                put_entry(w, r, j, wij)


@compiled
def follow(average: Array, w: Array, share: Scalar) -> None:
    """average -= (average - w) * share. tf.train.ExponentialMovingAverage, with share = 1 - decay."""
    for i in range(average.size):
        average[i] -= (average[i] - number(w, i)) * share


@compiled
def follow_rows(average: Array, w: Array, rows: Rows, share: Scalar) -> None:
    """`follow` on the named rows."""
    for i in range(rows.size):
        prefetch(average, rows, i)
        prefetch(w, rows, i)
        r = rows[i]
        for j in range(w.shape[1]):
            average[r, j] -= (average[r, j] - entry(w, r, j)) * share
