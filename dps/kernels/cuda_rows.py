"""CUDA kernels for rows of tables: updates and reads, as in `dps.kernels.cpu`.

Each thread handles one element of a row. Rows are unique, so no two threads write the same element.

More than 9 parameters: kernels are compiled for arrays and numbers, not for objects that hold them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from dps.kernels import cuda_rules as rules
from dps.kernels.device import cuda, gpu_kernel, launch_each

Array: TypeAlias = Any
Rows: TypeAlias = Any
Scalar: TypeAlias = Any
Stream: TypeAlias = Any


def sgd_rows(w: Array, rows: Rows, g: Array, lr: Scalar, weight_decay: Scalar, stream: Stream = 0) -> None:
    """`sgd` on the named rows."""
    launch_each(_sgd_rows, g.size, stream, w, rows, g, lr, weight_decay)


@gpu_kernel
def _sgd_rows(w: Array, rows: Rows, g: Array, lr: Scalar, weight_decay: Scalar) -> None:
    dim = w.shape[1]
    for k in range(cuda.grid(1), rows.size * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        r = rows[i]
        w[r, j] = rules.sgd(w[r, j], g[i, j], lr, weight_decay)


def momentum_rows(
    w: Array, velocity: Array, rows: Rows, g: Array, lr: Scalar, mu: Scalar, nesterov: bool, stream: Stream = 0
) -> None:
    """`momentum` on the named rows."""
    launch_each(_momentum_rows, g.size, stream, w, velocity, rows, g, lr, mu, nesterov)


@gpu_kernel
def _momentum_rows(w: Array, velocity: Array, rows: Rows, g: Array, lr: Scalar, mu: Scalar, nesterov: bool) -> None:
    dim = w.shape[1]
    for k in range(cuda.grid(1), rows.size * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        r = rows[i]
        w[r, j], velocity[r, j] = rules.momentum(w[r, j], velocity[r, j], g[i, j], lr, mu, nesterov)


def adagrad_rows(
    w: Array, accumulator: Array, rows: Rows, g: Array, lr: Scalar, epsilon: Scalar, stream: Stream = 0
) -> None:
    """`adagrad` on the named rows."""
    launch_each(_adagrad_rows, g.size, stream, w, accumulator, rows, g, lr, epsilon)


@gpu_kernel
def _adagrad_rows(w: Array, accumulator: Array, rows: Rows, g: Array, lr: Scalar, epsilon: Scalar) -> None:
    dim = w.shape[1]
    for k in range(cuda.grid(1), rows.size * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        r = rows[i]
        w[r, j], accumulator[r, j] = rules.adagrad(w[r, j], accumulator[r, j], g[i, j], lr, epsilon)


def rmsprop_rows(
    w: Array, square: Array, mean: Array | None, velocity: Array | None, rows: Rows, g: Array,
    lr: Scalar, decay: Scalar, one_minus_decay: Scalar, mu: Scalar, epsilon: Scalar, stream: Stream = 0,
) -> None:  # fmt: skip
    """`rmsprop` on the named rows."""
    centered, moving = mean is not None, velocity is not None
    mean, velocity = (mean if centered else square), (velocity if moving else square)  # unused arguments
    launch_each(
        _rmsprop_rows, g.size, stream, w, square, mean, velocity, rows, g, lr, decay, one_minus_decay, mu, epsilon,
        centered, moving,
    )  # fmt: skip


@gpu_kernel
def _rmsprop_rows(
    w: Array, square: Array, mean: Array, velocity: Array, rows: Rows, g: Array,
    lr: Scalar, decay: Scalar, one_minus_decay: Scalar, mu: Scalar, epsilon: Scalar, centered: bool, moving: bool,
) -> None:  # fmt: skip
    dim, zero = w.shape[1], epsilon - epsilon
    for k in range(cuda.grid(1), rows.size * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        r = rows[i]
        variance = rules.decayed(square[r, j], rules.mul(g[i, j], g[i, j]), decay, one_minus_decay)
        square[r, j] = variance
        if centered:
            m = rules.decayed(mean[r, j], g[i, j], decay, one_minus_decay)
            mean[r, j] = m
            variance = rules.centered(variance, m, zero)
        u = rules.scaled(g[i, j], variance, epsilon)
        if moving:
            u = rules.mul(mu, velocity[r, j]) + u
            velocity[r, j] = u
        w[r, j] -= rules.mul(lr, u)


def adam_rows(
    w: Array, m: Array, v: Array, rows: Rows, g: Array, step_size: Scalar, decay: Scalar,
    beta1: Scalar, one_minus_beta1: Scalar, beta2: Scalar, one_minus_beta2: Scalar, root: Scalar, epsilon: Scalar,
    stream: Stream = 0,
) -> None:  # fmt: skip
    """`adam` on the named rows, the lazy form: moments of rows that are not named do not decay."""
    launch_each(
        _adam_rows, g.size, stream, w, m, v, rows, g, step_size, decay, beta1, one_minus_beta1, beta2,
        one_minus_beta2, root, epsilon,
    )  # fmt: skip


@gpu_kernel
def _adam_rows(
    w: Array, m: Array, v: Array, rows: Rows, g: Array, step_size: Scalar, decay: Scalar,
    beta1: Scalar, one_minus_beta1: Scalar, beta2: Scalar, one_minus_beta2: Scalar, root: Scalar, epsilon: Scalar,
) -> None:  # fmt: skip
    s, d, b1, c1, b2, c2, e = (step_size, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon)
    dim = w.shape[1]
    for k in range(cuda.grid(1), rows.size * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        r = rows[i]
        new = rules.adam(w[r, j], m[r, j], v[r, j], g[i, j], s, d, b1, c1, b2, c2, root, e)
        w[r, j], m[r, j], v[r, j] = new


def ftrl_rows(
    w: Array, n: Array, z: Array, rows: Rows, g: Array,
    lr: Scalar, power: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar, stream: Stream = 0,
) -> None:  # fmt: skip
    """`ftrl` on the named rows."""
    launch_each(_ftrl_rows, g.size, stream, w, n, z, rows, g, lr, power, l1, twice_l2, beta, bool(power == 0.5))


@gpu_kernel
def _ftrl_rows(
    w: Array, n: Array, z: Array, rows: Rows, g: Array,
    lr: Scalar, power: Scalar, l1: Scalar, twice_l2: Scalar, beta: Scalar, is_root: bool,
) -> None:  # fmt: skip
    dim = w.shape[1]
    for k in range(cuda.grid(1), rows.size * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        r = rows[i]
        new = rules.ftrl(w[r, j], n[r, j], z[r, j], g[i, j], lr, power, l1, twice_l2, beta, is_root)
        w[r, j], n[r, j], z[r, j] = new


def follow_rows(average: Array, w: Array, rows: Rows, share: Scalar, stream: Stream = 0) -> None:
    """`follow` on the named rows."""
    launch_each(_follow_rows, rows.size * w.shape[1], stream, average, w, rows, share)


@gpu_kernel
def _follow_rows(average: Array, w: Array, rows: Rows, share: Scalar) -> None:
    dim = w.shape[1]
    for k in range(cuda.grid(1), rows.size * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        r = rows[i]
        average[r, j] -= rules.mul(average[r, j] - w[r, j], share)


def gather(table: Array, rows: Rows, out: Array, stream: Stream = 0) -> None:
    """out[i] = table[rows[i]]; `out` has shape (len(rows), dim). The row numbers were checked before."""
    launch_each(_gather, out.size, stream, table, rows, out)


@gpu_kernel
def _gather(table: Array, rows: Rows, out: Array) -> None:
    dim = table.shape[1]
    for k in range(cuda.grid(1), rows.size * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        out[i, j] = table[rows[i], j]
