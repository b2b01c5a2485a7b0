"""Adagrad with one accumulator per row, on CUDA: see `dps.kernels.rowwise`.

First the threads of a block add up rows, in the same order as the lanes of a CPU; then each updates elements.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numba import from_dtype

from dps.kernels.cuda_loops import kernel, over_rows
from dps.kernels.device import (
    MOST_BLOCKS_OF_ROWS,
    THREADS,
    cuda,
    gpu_function,
    gpu_kernel,
    launch,
    launch_rows,
    simulated,
)
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
    _accumulate(False, stream, row_accumulator, g, dim)
    launch_rows(_update, w.size, stream, out, w, row_accumulator, g, lr, epsilon)


def adagrad_rowwise_rows(
    w: Array, row_accumulator: Array, rows: Rows, g: Array, lr: Scalar, epsilon: Scalar, dim: Scalar,
    stream: Stream = 0,
) -> None:  # fmt: skip
    """`adagrad_rowwise` on the named rows."""
    _accumulate(True, stream, row_accumulator, rows, g, dim)
    launch_rows(_update_rows, g.size, stream, w, row_accumulator, rows, g, lr, epsilon)


def _accumulate(named: bool, stream: Stream, *arguments: Any) -> None:
    """Add the mean square of each row, or of each named row, to its accumulator."""
    g = arguments[-2]
    lanes = LINE // g.dtype.itemsize
    at_once = 1 if simulated() else THREADS // lanes
    if g.shape[0]:
        kernel, threads = _accumulator(str(g.dtype), lanes, at_once)[named], lanes * at_once
        blocks = min(-(-g.shape[0] // at_once), MOST_BLOCKS_OF_ROWS)
        launch(kernel, blocks, threads, stream, *arguments, nbytes=threads * g.dtype.itemsize)


@cache
def _accumulator(dtype: str, lanes: int, at_once: int) -> tuple[Any, Any]:
    """The kernels of `_accumulate`, for all rows and for named ones. A block handles `at_once` rows together, with one
    thread for each lane of a CPU's vector."""
    number, zero = from_dtype(np.dtype(dtype)), np.dtype(dtype).type(0)

    @gpu_function
    def sum_of_row(partial: Array, g: Array, i: int, inside: bool) -> Scalar:
        """The sum of squares of a row, for the thread of its first lane. All threads of the block call this."""
        thread = cuda.threadIdx.x
        lane, whole, total = thread % lanes, g.shape[1] // lanes * lanes, zero
        if inside:
            for j in range(lane, whole, lanes):
                total += mul(g[i, j], g[i, j])
        partial[thread] = total
        half = lanes // 2
        while half > 0:
            cuda.syncthreads()
            if lane < half:
                partial[thread] += partial[thread + half]
            half //= 2
        total = partial[thread]
        cuda.syncthreads()  # before `partial` is used again
        if inside and lane == 0:
            for j in range(whole, g.shape[1]):
                total += mul(g[i, j], g[i, j])
        return total

    @gpu_kernel
    def of_all(row_accumulator: Array, g: Array, dim: Scalar) -> None:
        partial = cuda.shared.array(0, number)
        rows = g.shape[0]
        for first in range(cuda.blockIdx.x * at_once, rows, cuda.gridDim.x * at_once):
            i = first + cuda.threadIdx.x // lanes
            total = sum_of_row(partial, g, i, i < rows)
            if i < rows and cuda.threadIdx.x % lanes == 0:
                row_accumulator[i] = row_accumulator[i] + total / dim

    @gpu_kernel
    def of_rows(row_accumulator: Array, rows: Rows, g: Array, dim: Scalar) -> None:
        partial = cuda.shared.array(0, number)
        for first in range(cuda.blockIdx.x * at_once, rows.size, cuda.gridDim.x * at_once):
            i = first + cuda.threadIdx.x // lanes
            total = sum_of_row(partial, g, i, i < rows.size)
            if i < rows.size and cuda.threadIdx.x % lanes == 0:
                r = rows[i]
                row_accumulator[r] = row_accumulator[r] + total / dim

    return of_all, of_rows


_update = kernel(
    over_rows(
        "_update(out, w, row_accumulator, g, lr, epsilon)", "w.shape[0]", "w.shape[1]",
        ["w{k}, g{k}, a{k} = w[{i}, {j}], g[{i}, {j}], row_accumulator[{i}]"],
        ["out[{i}, {j}] = w{k} - mul(lr, g{k}) / (sqrt(a{k}) + epsilon)"],
    ),
    "_update", __name__, mul=mul, sqrt=sqrt,
)  # fmt: skip
_update_rows = kernel(
    over_rows(
        "_update_rows(w, row_accumulator, rows, g, lr, epsilon)", "rows.size", "w.shape[1]",
        ["r{k} = size(rows[{i}])", "w{k}, g{k}, a{k} = w[r{k}, {j}], g[{i}, {j}], row_accumulator[r{k}]"],
        ["w[r{k}, {j}] = w{k} - mul(lr, g{k}) / (sqrt(a{k}) + epsilon)"],
    ),
    "_update_rows", __name__, mul=mul, sqrt=sqrt,
)  # fmt: skip
