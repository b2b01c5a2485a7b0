"""Adagrad with one accumulator per row, on CUDA: see `dps.kernels.rowwise`.

First each thread adds up one row, in the same order as the CPU; then each thread updates one element.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numba import from_dtype

from dps.kernels.device import cuda, gpu_function, gpu_kernel, launch_each
from dps.kernels.vectors import LINE
from dps.training.optimizers import mul, sqrt

Array: TypeAlias = Any
Rows: TypeAlias = Any
Scalar: TypeAlias = Any
Stream: TypeAlias = Any


def adagrad_rowwise(
    out: Array, w: Array, row_accumulator: Array, g: Array, lr: Scalar, epsilon: Scalar, dim: Scalar,
    stream: Stream = 0,
) -> None:  # fmt: skip
    """row_accumulator += mean of g**2 over the row; out = w - lr * g / (sqrt(row_accumulator) + epsilon)."""
    launch_each(_accumulate(str(g.dtype))[0], w.shape[0], stream, row_accumulator, g, dim)
    launch_each(_update, w.size, stream, out, w, row_accumulator, g, lr, epsilon)


def adagrad_rowwise_rows(
    w: Array, row_accumulator: Array, rows: Rows, g: Array, lr: Scalar, epsilon: Scalar, dim: Scalar,
    stream: Stream = 0,
) -> None:  # fmt: skip
    """`adagrad_rowwise` on the named rows."""
    launch_each(_accumulate(str(g.dtype))[1], rows.size, stream, row_accumulator, rows, g, dim)
    launch_each(_update_rows, g.size, stream, w, row_accumulator, rows, g, lr, epsilon)


@cache
def _accumulate(dtype: str) -> tuple[Any, Any]:
    """The kernels that add the mean square of all rows, and of the named rows, to their accumulators."""
    number, sums = from_dtype(np.dtype(dtype)), LINE // np.dtype(dtype).itemsize  # as many as the lanes of a CPU vector

    @gpu_function
    def sum_of_row(g: Array, i: int) -> Scalar:
        s = cuda.local.array(sums, number)
        for k in range(sums):
            s[k] = 0
        whole = g.shape[1] // sums * sums
        for j in range(whole):
            s[j % sums] += mul(g[i, j], g[i, j])
        half = sums // 2
        while half > 0:
            for k in range(half):
                s[k] += s[k + half]
            half //= 2
        total = s[0]
        for j in range(whole, g.shape[1]):
            total += mul(g[i, j], g[i, j])
        return total

    @gpu_kernel
    def of_all(row_accumulator: Array, g: Array, dim: Scalar) -> None:
        for i in range(cuda.grid(1), g.shape[0], cuda.gridsize(1)):
            row_accumulator[i] = row_accumulator[i] + sum_of_row(g, i) / dim

    @gpu_kernel
    def of_rows(row_accumulator: Array, rows: Rows, g: Array, dim: Scalar) -> None:
        for i in range(cuda.grid(1), rows.size, cuda.gridsize(1)):
            r = rows[i]
            row_accumulator[r] = row_accumulator[r] + sum_of_row(g, i) / dim

    return of_all, of_rows


@gpu_kernel
def _update(out: Array, w: Array, row_accumulator: Array, g: Array, lr: Scalar, epsilon: Scalar) -> None:
    dim = w.shape[1]
    for k in range(cuda.grid(1), w.shape[0] * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        out[i, j] = w[i, j] - mul(lr, g[i, j]) / (sqrt(row_accumulator[i]) + epsilon)


@gpu_kernel
def _update_rows(w: Array, row_accumulator: Array, rows: Rows, g: Array, lr: Scalar, epsilon: Scalar) -> None:
    dim = w.shape[1]
    for k in range(cuda.grid(1), rows.size * dim, cuda.gridsize(1)):
        i, j = k // dim, k % dim
        r = rows[i]
        w[r, j] = w[r, j] - mul(lr, g[i, j]) / (sqrt(row_accumulator[r]) + epsilon)
