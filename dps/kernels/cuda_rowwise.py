"""Adagrad with one accumulator for each row on CUDA: see `dps.kernels.rowwise`.

A thread adds up a row, in the order that the CPU has; then a thread takes an element.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from dps.kernels import cuda_rules as rules
from dps.kernels.device import cuda, gpu_function, gpu_kernel, launch_each

Array: TypeAlias = Any
Rows: TypeAlias = Any
Scalar: TypeAlias = Any
Stream: TypeAlias = Any


def adagrad_rowwise(
    out: Array, w: Array, row_accumulator: Array, g: Array, lr: Scalar, epsilon: Scalar, dim: Scalar,
    stream: Stream = 0,
) -> None:  # fmt: skip
    """row_accumulator += mean of g**2 over the row; out = w - lr * g / (sqrt(row_accumulator) + epsilon)."""
    launch_each(_accumulate, w.shape[0], stream, row_accumulator, g, dim)
    launch_each(_update, w.size, stream, out, w, row_accumulator, g, lr, epsilon)


def adagrad_rowwise_rows(
    w: Array, row_accumulator: Array, rows: Rows, g: Array, lr: Scalar, epsilon: Scalar, dim: Scalar,
    stream: Stream = 0,
) -> None:  # fmt: skip
    """`adagrad_rowwise` on the named rows."""
    launch_each(_accumulate_rows, rows.size, stream, row_accumulator, rows, g, dim)
    launch_each(_update_rows, g.size, stream, w, row_accumulator, rows, g, lr, epsilon)


@gpu_function
def sum_of_row(g: Array, i: int, zero: Scalar) -> Scalar:
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zero
    dim = g.shape[1]
    whole = dim // 8 * 8
    for j in range(0, whole, 8):
        s0 += rules.mul(g[i, j], g[i, j])
        s1 += rules.mul(g[i, j + 1], g[i, j + 1])
        s2 += rules.mul(g[i, j + 2], g[i, j + 2])
        s3 += rules.mul(g[i, j + 3], g[i, j + 3])
        s4 += rules.mul(g[i, j + 4], g[i, j + 4])
        s5 += rules.mul(g[i, j + 5], g[i, j + 5])
        s6 += rules.mul(g[i, j + 6], g[i, j + 6])
        s7 += rules.mul(g[i, j + 7], g[i, j + 7])
    for j in range(whole, dim):
        s0 += rules.mul(g[i, j], g[i, j])
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))


@gpu_kernel
def _accumulate(row_accumulator: Array, g: Array, dim: Scalar) -> None:
    for i in range(cuda.grid(1), g.shape[0], cuda.gridsize(1)):
        row_accumulator[i] = row_accumulator[i] + sum_of_row(g, i, dim - dim) / dim


@gpu_kernel
def _accumulate_rows(row_accumulator: Array, rows: Rows, g: Array, dim: Scalar) -> None:
    for i in range(cuda.grid(1), rows.size, cuda.gridsize(1)):
        r = rows[i]
        row_accumulator[r] = row_accumulator[r] + sum_of_row(g, i, dim - dim) / dim


@gpu_kernel
def _update(out: Array, w: Array, row_accumulator: Array, g: Array, lr: Scalar, epsilon: Scalar) -> None:
    dim = w.shape[1]
    for k in range(cuda.grid(1), w.shape[0] * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        out[i, j] = w[i, j] - rules.mul(lr, g[i, j]) / (rules.sqrt(row_accumulator[i]) + epsilon)


@gpu_kernel
def _update_rows(w: Array, row_accumulator: Array, rows: Rows, g: Array, lr: Scalar, epsilon: Scalar) -> None:
    dim = w.shape[1]
    for k in range(cuda.grid(1), rows.size * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        r = rows[i]
        w[r, j] = w[r, j] - rules.mul(lr, g[i, j]) / (rules.sqrt(row_accumulator[r]) + epsilon)
