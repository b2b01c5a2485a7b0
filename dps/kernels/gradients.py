"""CPU kernels that add, scale, clip and cast gradients and sums. 1-D arrays, as in `dps.kernels.cpu`.

`out` is the first array after it, or does not overlap any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels.elements import number, put_number
from dps.kernels.jit import compiled

Array: TypeAlias = npt.NDArray[Any]
Scalar: TypeAlias = "np.floating[Any]"


@compiled
def same(a: Array, b: Array) -> bool:
    """Whether two arrays begin at one address."""
    return bool(a.ctypes.data == b.ctypes.data)


@compiled
def add(out: Array, a: Array, b: Array) -> None:
    """out = a + b. A mean is a running sum by `add`, then `scale` by 1 / n or `divide` by n.

    Here and in `add_divide` a and b may be halves, as `dps.kernels.widening` has them, with `out` in float32.
    """
    if same(out, a):
        for i in range(a.size):
            put_number(a, i, number(a, i) + number(b, i))
    else:
        for i in range(a.size):
            out[i] = number(a, i) + number(b, i)


@compiled
def scale(out: Array, a: Array, s: Scalar) -> None:
    """out = a * s."""
    if same(out, a):
        for i in range(a.size):
            a[i] *= s
    else:
        for i in range(a.size):
            out[i] = a[i] * s


@compiled
def divide(out: Array, a: Array, n: Scalar) -> None:
    """out = a / n, correctly rounded, which a * (1 / n) is not."""
    if same(out, a):
        for i in range(a.size):
            a[i] /= n
    else:
        for i in range(a.size):
            out[i] = a[i] / n


@compiled
def add_divide(out: Array, a: Array, b: Array, n: Scalar) -> None:
    """out = (a + b) / n: the end of a mean, in one pass with the bits of `add` and then `divide`."""
    if same(out, a):
        for i in range(a.size):
            put_number(a, i, (number(a, i) + number(b, i)) / n)
    else:
        for i in range(a.size):
            out[i] = (number(a, i) + number(b, i)) / n


@compiled
def compensate(out: Array, g: Array, w: Array, backup: Array, lam: Scalar) -> None:
    """out = g + lam * g * g * (w - backup): the gradient as it may be at `w`, when it was computed at `backup`.

    DC-ASGD, Zheng et al. 2017, equation 10: lam * g * g stands for the diagonal of the Hessian.
    """
    if same(out, g):
        for i in range(g.size):
            g[i] += lam * g[i] * g[i] * (w[i] - backup[i])
    else:
        for i in range(g.size):
            out[i] = g[i] + lam * g[i] * g[i] * (w[i] - backup[i])


@compiled
def accumulate(total: Array, a: Array, s: Scalar) -> None:
    """total += a * s."""
    for i in range(total.size):
        total[i] += a[i] * s


@compiled
def cast(out: Array, a: Array) -> None:
    """out = a in the dtype of `out`, float32 or float64, rounded to nearest; too large a number becomes inf."""
    for i in range(a.size):
        out[i] = a[i]


@compiled
def clip_by_value(out: Array, a: Array, low: Scalar, high: Scalar) -> None:
    """out = a, but `low` where it is below and `high` where it is above. NaN stays NaN. `out` may be `a`."""
    for i in range(a.size):
        x = a[i]
        x = low if x < low else x
        out[i] = high if x > high else x


@compiled
def sum_of_squares(a: Array) -> float:
    """The sum of a**2 in double, in a fixed order: eight running sums, then their sum. 0 for no elements."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float64(0)
    whole = a.size // 8 * 8
    for i in range(0, whole, 8):
        s0 += np.float64(a[i]) * np.float64(a[i])
        s1 += np.float64(a[i + 1]) * np.float64(a[i + 1])
        s2 += np.float64(a[i + 2]) * np.float64(a[i + 2])
        s3 += np.float64(a[i + 3]) * np.float64(a[i + 3])
        s4 += np.float64(a[i + 4]) * np.float64(a[i + 4])
        s5 += np.float64(a[i + 5]) * np.float64(a[i + 5])
        s6 += np.float64(a[i + 6]) * np.float64(a[i + 6])
        s7 += np.float64(a[i + 7]) * np.float64(a[i + 7])
    for i in range(whole, a.size):
        s0 += np.float64(a[i]) * np.float64(a[i])
    return float(((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)))


def clip_by_global_norm(outs: Sequence[Array], arrays: Sequence[Array], limit: float) -> float:
    """out = a * limit / max(norm, limit) for all arrays, where norm = sqrt(sum of all their squares). Returns norm.

    The outs may be the arrays. All become NaN if the norm is infinite or NaN, so that they are not applied.
    Source: Pascanu, Mikolov and Bengio 2013, as tf.clip_by_global_norm.
    """
    norm = math.sqrt(sum(sum_of_squares(a) for a in arrays))
    for out, a in zip(outs, arrays, strict=True):
        scale(out, a, a.dtype.type(clip_factor(norm, limit)))
    return norm


def clip_factor(norm: float, limit: float) -> float:
    """The factor that reduces gradients of this norm to a norm of at most `limit`."""
    return limit / max(norm, limit) if math.isfinite(norm) else math.nan
