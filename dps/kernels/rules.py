"""Each optimizer's update of one element, or of a vector, on CPU. Scalars have the dtype of the elements.

`dps.kernels.cuda_rules` has the same rules for CUDA.

More than 9 parameters: kernels are compiled for arrays and numbers, not for objects that hold them.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from dps.kernels.jit import compiled
from dps.kernels.vectors import above

Scalar: TypeAlias = "np.floating[Any]"


@compiled
def sgd_rule(w: Scalar, g: Scalar, lr: Scalar, weight_decay: Scalar) -> Scalar:
    if weight_decay == 0:  # w may be inf, and 0 * inf is nan
        return w - lr * g
    return w - lr * (g + weight_decay * w)


@compiled
def momentum_rule(w: Scalar, v: Scalar, g: Scalar, lr: Scalar, mu: Scalar, nesterov: bool) -> tuple[Scalar, Scalar]:
    v = mu * v + g
    return (w - lr * (g + mu * v) if nesterov else w - lr * v), v


@compiled
def adagrad_rule(w: Scalar, a: Scalar, g: Scalar, lr: Scalar, epsilon: Scalar) -> tuple[Scalar, Scalar]:
    a = a + g * g
    return w - lr * g / (math.sqrt(a) + epsilon), a


@compiled
def rmsprop_rule(
    w: Scalar, s: Scalar, m: Scalar, v: Scalar, g: Scalar,
    lr: Scalar, decay: Scalar, one_minus_decay: Scalar, mu: Scalar, epsilon: Scalar, centered: bool, moving: bool,
) -> tuple[Scalar, Scalar, Scalar, Scalar]:  # fmt: skip
    s = decay * s + one_minus_decay * (g * g)
    variance = s
    if centered:
        m = decay * m + one_minus_decay * g
        difference, zero = s - m * m, epsilon - epsilon
        variance = above(zero, difference, zero, difference)  # rounding can make it negative; its root would be nan
    u = g / (math.sqrt(variance) + epsilon)
    if moving:
        v = mu * v + u
        u = v
    return w - lr * u, s, m, v


@compiled
def adam_rule(
    w: Scalar, m: Scalar, v: Scalar, g: Scalar, step_size: Scalar, decay: Scalar,
    beta1: Scalar, one_minus_beta1: Scalar, beta2: Scalar, one_minus_beta2: Scalar, root: Scalar, epsilon: Scalar,
) -> tuple[Scalar, Scalar, Scalar]:  # fmt: skip
    m = beta1 * m + one_minus_beta1 * g
    v = beta2 * v + one_minus_beta2 * (g * g)
    return (w - decay * w) - step_size * m / (math.sqrt(v) / root + epsilon), m, v


@compiled
def ftrl_rule(
    w: Scalar, n: Scalar, z: Scalar, g: Scalar,
    lr: Scalar, power: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar,
) -> tuple[Scalar, Scalar, Scalar]:  # fmt: skip
    """For scalars only, because vectors have no powers."""
    after = n + g * g
    was, now = n**power, after**power
    w, z = _ftrl(w, z, g, was, now, lr, l1, twice_l2, beta)
    return w, after, z


@compiled
def ftrl_root_rule(
    w: Scalar, n: Scalar, z: Scalar, g: Scalar, lr: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar
) -> tuple[Scalar, Scalar, Scalar]:
    """`ftrl_rule` with the power 0.5."""
    after = n + g * g
    w, z = _ftrl(w, z, g, math.sqrt(n), math.sqrt(after), lr, l1, twice_l2, beta)
    return w, after, z


@compiled
def _ftrl(
    w: Scalar, z: Scalar, g: Scalar, was: Any, now: Any, lr: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar
) -> tuple[Scalar, Scalar]:
    z = z + (g - (now - was) / lr * w)
    q = (now + beta) / lr + twice_l2
    return above(abs(z), l1, (math.copysign(l1, z) - z) / q, l1 - l1), z
