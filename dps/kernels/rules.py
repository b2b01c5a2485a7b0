"""What an optimizer does to one element, or to a vector of them, on CPU. Scalars have the dtype of the elements.

`dps.kernels.cuda_rules` has the same for CUDA.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from dps.kernels.jit import compiled

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
    lr: Scalar, power: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar, is_root: bool,
) -> tuple[Scalar, Scalar, Scalar]:  # fmt: skip
    after = n + g * g
    was, now = (math.sqrt(n), math.sqrt(after)) if is_root else (n**power, after**power)
    z = z + (g - (now - was) / lr * w)
    q = (now + beta) / lr + twice_l2
    return ((math.copysign(l1, z) - z) / q if abs(z) > l1 else l1 - l1), after, z
