"""Each optimizer's update of one element, for CUDA kernels: the formulas and the rounding of `dps.kernels.cpu`.

libNVVM fuses a product and a sum into one operation with one rounding (fma). numba has no option that forbids this:
fastmath=False, its default, concerns other things. Products here use `mul`, which becomes mul.rn in PTX; with explicit
rounding it is never fused. So a GPU gives the same bits as the CPU, except for powers (only `ftrl` with another power
than -0.5). Memory access takes longer than these operations, so they cost nothing.

More than 9 parameters: kernels are compiled for arrays and numbers, not for objects that hold them.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numba import types
from numba.extending import overload

from dps.kernels.device import cuda, gpu_function, simulated

Scalar: TypeAlias = Any


def mul(a: Scalar, b: Scalar) -> Scalar:
    """a * b, rounded; both float32 or both float64."""
    return a * b


def sqrt(a: Scalar) -> Scalar:
    """The square root, rounded to the type of `a`, which math.sqrt does in a kernel but not in the simulator."""
    return np.sqrt(a)


if not simulated():

    @overload(mul, target="cuda")
    def _mul(a, b):  # type: ignore[no-untyped-def]  # numba wants the signature of the lambdas, to the letter
        if (a, b) == (types.float32, types.float32):
            return lambda a, b: cuda.libdevice.fmul_rn(a, b)
        if (a, b) == (types.float64, types.float64):
            return lambda a, b: cuda.libdevice.dmul_rn(a, b)
        return None

    @overload(sqrt, target="cuda")
    def _sqrt(a):  # type: ignore[no-untyped-def]
        return lambda a: math.sqrt(a)


@gpu_function
def sgd(w: Scalar, g: Scalar, lr: Scalar, weight_decay: Scalar) -> Scalar:
    if weight_decay == 0:  # w may be inf, and 0 * inf is nan
        return w - mul(lr, g)
    return w - mul(lr, g + mul(weight_decay, w))


@gpu_function
def momentum(w: Scalar, v: Scalar, g: Scalar, lr: Scalar, mu: Scalar, nesterov: bool) -> tuple[Scalar, Scalar]:
    v = mul(mu, v) + g
    return (w - mul(lr, g + mul(mu, v)) if nesterov else w - mul(lr, v)), v


@gpu_function
def adagrad(w: Scalar, a: Scalar, g: Scalar, lr: Scalar, epsilon: Scalar) -> tuple[Scalar, Scalar]:
    a = a + mul(g, g)
    return w - mul(lr, g) / (sqrt(a) + epsilon), a


@gpu_function
def decayed(value: Scalar, g: Scalar, decay: Scalar, one_minus_decay: Scalar) -> Scalar:
    """The running mean after one update towards `g`."""
    return mul(decay, value) + mul(one_minus_decay, g)


@gpu_function
def centered(square: Scalar, mean: Scalar, zero: Scalar) -> Scalar:
    """The variance. Rounding can make the difference negative, and its root would then be nan."""
    variance = square - mul(mean, mean)
    return zero if variance < zero else variance


@gpu_function
def scaled(g: Scalar, variance: Scalar, epsilon: Scalar) -> Scalar:
    return g / (sqrt(variance) + epsilon)


@gpu_function
def adam(
    w: Scalar, m: Scalar, v: Scalar, g: Scalar, step_size: Scalar, decay: Scalar,
    beta1: Scalar, one_minus_beta1: Scalar, beta2: Scalar, one_minus_beta2: Scalar, root: Scalar, epsilon: Scalar,
) -> tuple[Scalar, Scalar, Scalar]:  # fmt: skip
    m = mul(beta1, m) + mul(one_minus_beta1, g)
    v = mul(beta2, v) + mul(one_minus_beta2, mul(g, g))
    return (w - mul(decay, w)) - mul(step_size, m) / (sqrt(v) / root + epsilon), m, v


@gpu_function
def ftrl(
    w: Scalar, n: Scalar, z: Scalar, g: Scalar,
    lr: Scalar, power: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar, is_root: bool,
) -> tuple[Scalar, Scalar, Scalar]:  # fmt: skip
    after = n + mul(g, g)
    was, now = (sqrt(n), sqrt(after)) if is_root else (n**power, after**power)
    z = z + (g - mul((now - was) / lr, w))
    q = (now + beta) / lr + twice_l2
    return ((math.copysign(l1, z) - z) / q if abs(z) > l1 else l1 - l1), after, z
