"""CUDA kernels of a ps: optimizers and reads of `dps.kernels.cpu` with the same arguments, on GPU arrays.

That module documents them. Every function starts kernels on `stream` (0: the default one), in order, and does not wait,
except `all_finite`. Arrays are those of `dps.kernels.device`, in the scope of their GPU.
No kernel uses atomic operations, so the same arrays give the same bits in every run.

More than 9 parameters: kernels are compiled for arrays and numbers, not for objects that hold them.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from dps.kernels import cuda_rules as rules
from dps.kernels.cuda_rows import (
    adagrad_rows,
    adam_rows,
    follow_rows,
    ftrl_rows,
    gather,
    momentum_rows,
    rmsprop_rows,
    sgd_rows,
)
from dps.kernels.cuda_rowwise import adagrad_rowwise, adagrad_rowwise_rows
from dps.kernels.device import cuda, gpu_kernel, launch_each, to_device, to_host

Array: TypeAlias = Any
Stream: TypeAlias = Any


def all_finite(a: Array, stream: Stream = 0) -> bool:
    """Whether no element is inf or nan. True for no elements."""
    if a.size == 0:
        return True
    found = to_device(np.zeros(1, np.int32), stream)
    launch_each(_not_finite, a.size, stream, found, a)
    return not to_host(found, stream=stream)[0]


@gpu_kernel
def _not_finite(found: Array, a: Array) -> None:
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        if not math.isfinite(a[i]):
            found[0] = 1  # all threads write the same value


__all__ = [
    "adagrad",
    "adagrad_rows",
    "adagrad_rowwise",
    "adagrad_rowwise_rows",
    "adam",
    "adam_rows",
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
    "sgd",
    "sgd_rows",
]

Scalar: TypeAlias = Any


def sgd(out: Array, w: Array, g: Array, lr: Scalar, weight_decay: Scalar, stream: Stream = 0) -> None:
    """out = w - lr * (g + weight_decay * w)."""
    launch_each(_sgd, w.size, stream, out, w, g, lr, weight_decay)


@gpu_kernel
def _sgd(out: Array, w: Array, g: Array, lr: Scalar, weight_decay: Scalar) -> None:
    for i in range(cuda.grid(1), w.size, cuda.gridsize(1)):
        out[i] = rules.sgd(w[i], g[i], lr, weight_decay)


def follow(average: Array, w: Array, share: Scalar, stream: Stream = 0) -> None:
    """average -= (average - w) * share."""
    launch_each(_follow, w.size, stream, average, w, share)


@gpu_kernel
def _follow(average: Array, w: Array, share: Scalar) -> None:
    for i in range(cuda.grid(1), w.size, cuda.gridsize(1)):
        average[i] -= rules.mul(average[i] - w[i], share)


def momentum(
    out: Array, w: Array, velocity: Array, g: Array, lr: Scalar, mu: Scalar, nesterov: bool, stream: Stream = 0
) -> None:
    """velocity = mu * velocity + g; out = w - lr * velocity, with Nesterov w - lr * (g + mu * velocity)."""
    launch_each(_momentum, w.size, stream, out, w, velocity, g, lr, mu, nesterov)


@gpu_kernel
def _momentum(out: Array, w: Array, velocity: Array, g: Array, lr: Scalar, mu: Scalar, nesterov: bool) -> None:
    for i in range(cuda.grid(1), w.size, cuda.gridsize(1)):
        out[i], velocity[i] = rules.momentum(w[i], velocity[i], g[i], lr, mu, nesterov)


def adagrad(
    out: Array, w: Array, accumulator: Array, g: Array, lr: Scalar, epsilon: Scalar, stream: Stream = 0
) -> None:
    """accumulator += g**2; out = w - lr * g / (sqrt(accumulator) + epsilon)."""
    launch_each(_adagrad, w.size, stream, out, w, accumulator, g, lr, epsilon)


@gpu_kernel
def _adagrad(out: Array, w: Array, accumulator: Array, g: Array, lr: Scalar, epsilon: Scalar) -> None:
    for i in range(cuda.grid(1), w.size, cuda.gridsize(1)):
        out[i], accumulator[i] = rules.adagrad(w[i], accumulator[i], g[i], lr, epsilon)


def rmsprop(
    out: Array, w: Array, square: Array, mean: Array | None, velocity: Array | None, g: Array,
    lr: Scalar, decay: Scalar, one_minus_decay: Scalar, mu: Scalar, epsilon: Scalar, stream: Stream = 0,
) -> None:  # fmt: skip
    """As `cpu.rmsprop`, in one pass: `mean` is None if not centered, `velocity` if there is no momentum."""
    centered, moving = mean is not None, velocity is not None
    mean, velocity = (mean if centered else square), (velocity if moving else square)  # unused arguments
    launch_each(
        _rmsprop, w.size, stream, out, w, square, mean, velocity, g, lr, decay, one_minus_decay, mu, epsilon,
        centered, moving,
    )  # fmt: skip


@gpu_kernel
def _rmsprop(
    out: Array, w: Array, square: Array, mean: Array, velocity: Array, g: Array,
    lr: Scalar, decay: Scalar, one_minus_decay: Scalar, mu: Scalar, epsilon: Scalar, centered: bool, moving: bool,
) -> None:  # fmt: skip
    zero = epsilon - epsilon
    for i in range(cuda.grid(1), w.size, cuda.gridsize(1)):
        variance = rules.decayed(square[i], rules.mul(g[i], g[i]), decay, one_minus_decay)
        square[i] = variance
        if centered:
            m = rules.decayed(mean[i], g[i], decay, one_minus_decay)
            mean[i] = m
            variance = rules.centered(variance, m, zero)
        u = rules.scaled(g[i], variance, epsilon)
        if moving:
            u = rules.mul(mu, velocity[i]) + u
            velocity[i] = u
        out[i] = w[i] - rules.mul(lr, u)


def adam(
    out: Array, w: Array, m: Array, v: Array, g: Array, step_size: Scalar, decay: Scalar,
    beta1: Scalar, one_minus_beta1: Scalar, beta2: Scalar, one_minus_beta2: Scalar, root: Scalar, epsilon: Scalar,
    stream: Stream = 0,
) -> None:  # fmt: skip
    """out = (w - decay * w) - step_size * m / (sqrt(v) / root + epsilon), after m and v moved towards g and g**2."""
    launch_each(
        _adam, w.size, stream, out, w, m, v, g, step_size, decay, beta1, one_minus_beta1, beta2, one_minus_beta2,
        root, epsilon,
    )  # fmt: skip


@gpu_kernel
def _adam(
    out: Array, w: Array, m: Array, v: Array, g: Array, step_size: Scalar, decay: Scalar,
    beta1: Scalar, one_minus_beta1: Scalar, beta2: Scalar, one_minus_beta2: Scalar, root: Scalar, epsilon: Scalar,
) -> None:  # fmt: skip
    for i in range(cuda.grid(1), w.size, cuda.gridsize(1)):
        out[i], m[i], v[i] = rules.adam(
            w[i], m[i], v[i], g[i], step_size, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, root, epsilon
        )


def ftrl(
    out: Array, w: Array, n: Array, z: Array, g: Array,
    lr: Scalar, power: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar, stream: Stream = 0,
) -> None:  # fmt: skip
    """out = (sign(z) * l1 - z) / q where |z| > l1, else 0, after n and z moved: see `cpu.ftrl`."""
    launch_each(_ftrl, w.size, stream, out, w, n, z, g, lr, power, l1, twice_l2, beta, bool(power == 0.5))


@gpu_kernel
def _ftrl(
    out: Array, w: Array, n: Array, z: Array, g: Array,
    lr: Scalar, power: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar, is_root: bool,
) -> None:  # fmt: skip
    for i in range(cuda.grid(1), w.size, cuda.gridsize(1)):
        out[i], n[i], z[i] = rules.ftrl(w[i], n[i], z[i], g[i], lr, power, l1, twice_l2, beta, is_root)
