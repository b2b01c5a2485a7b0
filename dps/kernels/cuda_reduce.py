"""CUDA reductions to one result. All of them block, and add up in the same order in every run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numba import float64

from dps.kernels.cuda_arrays import scale
from dps.kernels.cuda_rules import mul
from dps.kernels.device import cuda, empty, gpu_kernel, launch, launch_each, simulated, to_device, to_host
from dps.kernels.gradients import clip_factor

Array: TypeAlias = Any
Stream: TypeAlias = Any

CHUNK = 4096
"""Elements that one block sums. The number is fixed, so that the order of a sum does not depend on the GPU."""


def all_finite(a: Array, stream: Stream = 0) -> bool:
    """Whether no element is inf or nan. True for no elements."""
    return not _found(_not_finite, a.size, stream, a)


@gpu_kernel
def _not_finite(found: Array, a: Array) -> None:
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        if not math.isfinite(a[i]):
            found[0] = 1  # all threads write the same value


def rows_in_range(rows: Array, n: int, stream: Stream = 0) -> bool:
    """Whether every row number is at least 0 and below `n`. True for no rows."""
    return not _found(_outside, rows.size, stream, rows, n)


@gpu_kernel
def _outside(found: Array, rows: Array, n: int) -> None:
    for i in range(cuda.grid(1), rows.size, cuda.gridsize(1)):
        if rows[i] < 0 or rows[i] >= n:
            found[0] = 1


def _found(kernel: Any, n: int, stream: Stream, *arguments: Any) -> bool:
    if n == 0:
        return False
    found = to_device(np.zeros(1, np.int32), stream)
    launch_each(kernel, n, stream, found, *arguments)
    return bool(to_host(found, stream=stream)[0])


def sum_of_squares(a: Array, stream: Stream = 0) -> float:
    """The sum of a**2 in double: a tree sum of each CHUNK, then of these sums in the same way, until one is left."""
    threads, chunk = (4, 64) if simulated() else (256, CHUNK)
    kernel, n = _squares_kernel(threads, chunk, True), a.size
    while n:
        blocks = -(-n // chunk)
        sums = empty(blocks, np.float64)
        launch(kernel, blocks, threads, stream, sums, a, nbytes=8 * threads)
        if blocks == 1:
            return float(to_host(sums, stream=stream)[0])
        kernel, a, n = _squares_kernel(threads, chunk, False), sums, blocks
    return 0.0


@cache
def _squares_kernel(threads: int, chunk: int, squared: bool) -> Any:
    """sums[block] = the sum of one chunk of `a`, or of its squares if `squared`."""

    @gpu_kernel
    def sum_chunk(sums: Array, a: Array) -> None:
        shared = cuda.shared.array(0, float64)  # its size is given at the launch
        thread, start = cuda.threadIdx.x, cuda.blockIdx.x * chunk
        total = np.float64(0)
        for i in range(start + thread, min(start + chunk, a.size), threads):
            x = np.float64(a[i])
            total += mul(x, x) if squared else x
        shared[thread] = total
        cuda.syncthreads()
        half = threads // 2
        while half > 0:
            if thread < half:
                shared[thread] += shared[thread + half]
            cuda.syncthreads()
            half //= 2
        if thread == 0:
            sums[cuda.blockIdx.x] = shared[0]

    return sum_chunk


def clip_by_global_norm(outs: Sequence[Array], arrays: Sequence[Array], limit: float, stream: Stream = 0) -> float:
    """out = a * limit / max(norm, limit) for all arrays, where norm = sqrt(sum of all their squares). Returns norm."""
    norm = math.sqrt(sum(sum_of_squares(a, stream) for a in arrays))
    for out, a in zip(outs, arrays, strict=True):
        scale(out, a, a.dtype.type(clip_factor(norm, limit)), stream)
    return norm
