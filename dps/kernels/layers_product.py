"""The matrix product of the layers on CUDA: double-buffered tiles in shared memory, fused bias and activation.

`product` chooses the implementation; the tiled kernel here is the only one so far. One with cuBLASDx (nvmath-python's
device API) would be a second `Product`, for the dtypes and sizes for which it is faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numba
import numpy as np

from dps.kernels.device import cuda, gpu_function, gpu_kernel, launch, simulated
from dps.kernels.layers_cpu import ACTIVATIONS

CODES = {name: code for code, name in enumerate(ACTIVATIONS)}
"""The number of each activation for kernels. It is the same for a whole launch, so the branch costs nothing."""
_RELU, _TANH, _SIGMOID = CODES["relu"], CODES["tanh"], CODES["sigmoid"]


@cache
def activations(dtype: str) -> tuple[Any, Any]:
    """`activated(z, code)` and `derived(dout, out, code)` = dout * activation'(z), where out = activation(z).

    NaN gives NaN. The constants exist because a Python number would turn float32 work into float64.
    """
    zero, one = np.dtype(dtype).type(0), np.dtype(dtype).type(1)

    @gpu_function
    def activated(z: Any, code: int) -> Any:
        if code == _RELU:
            return zero if z < zero else z
        if code == _TANH:
            return math.tanh(z)
        if code == _SIGMOID:
            shrunk = math.exp(-abs(z))  # at most 1, so nothing overflows
            return shrunk / (one + shrunk) if z < zero else one / (one + shrunk)
        return z

    @gpu_function
    def derived(dout: Any, out: Any, code: int) -> Any:
        if code == _RELU:
            return dout if out > zero else zero
        if code == _TANH:
            return dout * (one - out * out)
        if code == _SIGMOID:
            return dout * (out * (one - out))
        return dout

    return activated, derived


class Product(Protocol):
    """Starts out = activation(left @ right + bias) on `stream`, without a bias if it is None. Does not wait."""

    def __call__(self, out: Any, left: Any, right: Any, bias: Any, activation: int, stream: Any) -> None: ...


@dataclass(frozen=True)
class Tile:
    """The tiling of `out`: a block computes (rows, cols) of it, `depth` of the inner dimension at a time.

    A thread computes thread_rows x thread_cols values and keeps their sums in registers. All threads load equal shares
    of each tile, so the number of threads divides rows * depth and cols * depth.
    """

    rows: int
    cols: int
    depth: int
    thread_rows: int
    thread_cols: int

    @property
    def threads(self) -> int:
        return (self.rows // self.thread_rows) * (self.cols // self.thread_cols)

    @property
    def stage_sizes(self) -> tuple[int, int]:
        """Values in shared memory for one stage of the left and of the right operand."""
        return self.depth * (self.rows + padding(self.depth)), self.depth * (self.cols + padding(self.depth))


def padding(depth: int) -> int:
    """Padding values after each row of a tile, so that a warp that writes by depth has no bank conflicts."""
    return max(32 // depth, 1)


LARGE = Tile(rows=128, cols=128, depth=8, thread_rows=8, thread_cols=8)
SMALL = Tile(rows=32, cols=32, depth=16, thread_rows=4, thread_cols=2)
TINY = Tile(rows=8, cols=6, depth=4, thread_rows=4, thread_cols=3)
"""For the simulator, where a thread is a Python thread: four threads, and all sides different."""
TINY_WIDE = Tile(rows=8, cols=64, depth=4, thread_rows=8, thread_cols=16)
"""For larger products in the simulator: fewer blocks and barriers."""
ENOUGH_BLOCKS = 128
"""Large tiles are used only if they give at least about as many blocks as a large GPU has multiprocessors."""


def product(layout: str, out: Any, inner: int) -> Product:
    """The implementation for `out` (m, n) and an inner dimension of `inner`.

    `layout` gives the operands' shapes: "nn" is (m, k) and (k, n), "nt" is (m, k) and (n, k), "tn" is (k, m) and (k,
    n).
    """
    m, n = out.shape
    if simulated():
        tile = TINY if m * n * inner <= 16384 else TINY_WIDE
    elif out.dtype == np.float32 and -(-m // LARGE.rows) * -(-n // LARGE.cols) >= ENOUGH_BLOCKS:
        tile = LARGE
    else:
        tile = SMALL
    return tiled(layout, tile, np.dtype(out.dtype).name)


@cache
def tiled(layout: str, tile: Tile, dtype: str) -> Product:
    """The tiled product for one layout, tile and dtype. The kernel is compiled at its first call."""
    with_bias, without = (_kernel(tile, layout[0] == "n", layout[1] == "t", bias, dtype) for bias in (True, False))
    nbytes = 2 * sum(tile.stage_sizes) * np.dtype(dtype).itemsize

    def start(out: Any, left: Any, right: Any, bias: Any, activation: int, stream: Any) -> None:
        m, n = out.shape
        if m and n:
            inner = left.shape[1 if layout[0] == "n" else 0]
            blocks = -(-m // tile.rows), -(-n // tile.cols)
            kernel, bias = (without, right) if bias is None else (with_bias, bias)
            launch(kernel, blocks, tile.threads, stream, out, left, right, bias, activation, inner, nbytes=nbytes)

    return start


def _kernel(tile: Tile, left_by_depth: bool, right_by_depth: bool, with_bias: bool, dtype: str) -> Any:
    """The kernel. An operand is stored "by depth" if neighbours in memory differ in the inner dimension.

    Both tiles are stored as [stage][depth][outer], so that in the inner loop the threads of a warp read neighbouring
    values, or all the same value. While one stage is multiplied, the next is loaded from global memory to registers and
    then written to the other stage, so one barrier per iteration is enough. Shared memory is allocated at the launch
    ("dynamic"), because in the simulator two threads sometimes both allocate the other kind.
    """
    rows, cols, depth, thread_rows, thread_cols = tile.rows, tile.cols, tile.depth, tile.thread_rows, tile.thread_cols
    down, across = rows // thread_rows, cols // thread_cols
    left_loads, right_loads = rows * depth // tile.threads, cols * depth // tile.threads
    kind, zero = numba.from_dtype(np.dtype(dtype)), np.dtype(dtype).type(0)
    fetch_left, keep_left = _loader(rows, depth, tile.threads, left_by_depth, zero)
    fetch_right, keep_right = _loader(cols, depth, tile.threads, right_by_depth, zero)
    left_stage, right_stage = tile.stage_sizes
    first_right = 2 * left_stage
    multiply = _multiplier(tile, kind)
    activated, _ = activations(dtype)
    add_bias = _bias_adder(tile, with_bias)

    @gpu_kernel
    def tiled_product(out: Any, left: Any, right: Any, bias: Any, activation: int, inner: int) -> None:
        tiles = cuda.shared.array(0, kind)
        sums = cuda.local.array((thread_rows, thread_cols), kind)
        next_left = cuda.local.array(left_loads, kind)
        next_right = cuda.local.array(right_loads, kind)
        thread = cuda.threadIdx.x
        first_row, first_col = cuda.blockIdx.x * rows, cuda.blockIdx.y * cols
        m, n = out.shape
        for i in range(thread_rows):
            for j in range(thread_cols):
                sums[i, j] = zero
        fetch_left(next_left, left, first_row, m, 0, inner, thread)
        fetch_right(next_right, right, first_col, n, 0, inner, thread)
        keep_left(tiles, 0, next_left, thread)
        keep_right(tiles, first_right, next_right, thread)
        cuda.syncthreads()
        stage = 0
        for begin in range(depth, inner + depth, depth):
            if begin < inner:
                fetch_left(next_left, left, first_row, m, begin, inner, thread)
                fetch_right(next_right, right, first_col, n, begin, inner, thread)
            left_at, right_at = (
                stage * left_stage + thread // across,
                first_right + stage * right_stage + thread % across,
            )
            multiply(sums, tiles, left_at, right_at)
            stage = 1 - stage
            if begin < inner:
                keep_left(tiles, stage * left_stage, next_left, thread)
                keep_right(tiles, first_right + stage * right_stage, next_right, thread)
            cuda.syncthreads()
        first_row, first_col = first_row + thread // across, first_col + thread % across
        add_bias(sums, bias, first_col, n)
        for i in range(thread_rows):
            for j in range(thread_cols):
                row, col = first_row + i * down, first_col + j * across
                if row < m and col < n:
                    out[row, col] = activated(sums[i, j], activation) if activation else sums[i, j]

    return tiled_product


def _loader(outer: int, depth: int, threads: int, by_depth: bool, zero: Any) -> tuple[Any, Any]:
    """Functions that load one tile of (depth, outer): `fetch` to registers, `keep` from there to shared memory.

    Neighbouring threads read neighbouring values. Values outside the matrix are 0.
    """
    loads, pitch = outer * depth // threads, outer + padding(depth)

    @gpu_function
    def fetch(registers: Any, source: Any, first: int, end: int, begin: int, inner: int, thread: int) -> None:
        for i in range(loads):
            n = thread + i * threads
            if by_depth:
                o, d = first + n // depth, begin + n % depth
                registers[i] = source[o, d] if o < end and d < inner else zero
            else:
                o, d = first + n % outer, begin + n // outer
                registers[i] = source[d, o] if o < end and d < inner else zero

    @gpu_function
    def keep(tiles: Any, first: int, registers: Any, thread: int) -> None:
        for i in range(loads):
            n = thread + i * threads
            if by_depth:
                tiles[first + n % depth * pitch + n // depth] = registers[i]
            else:
                tiles[first + n // outer * pitch + n % outer] = registers[i]

    return fetch, keep


def _multiplier(tile: Tile, kind: Any) -> Any:
    """sums += left.T @ right for one stage. Each operand is read from shared memory once per depth.

    A thread's rows and columns are strided, so that a warp reads adjacent values. `left` and `right` are the positions
    of the thread's first row and column in `tiles`.
    """
    depth, thread_rows, thread_cols = tile.depth, tile.thread_rows, tile.thread_cols
    down, across = tile.rows // thread_rows, tile.cols // thread_cols
    left_pitch, right_pitch = tile.rows + padding(depth), tile.cols + padding(depth)

    @gpu_function
    def multiply(sums: Any, tiles: Any, left: int, right: int) -> None:
        of_right = cuda.local.array(thread_cols, kind)
        for d in range(depth):
            for j in range(thread_cols):
                of_right[j] = tiles[right + d * right_pitch + j * across]
            for i in range(thread_rows):
                of_left = tiles[left + d * left_pitch + i * down]
                for j in range(thread_cols):
                    sums[i, j] += of_left * of_right[j]

    return multiply


def _bias_adder(tile: Tile, with_bias: bool) -> Any:
    """sums += bias for a thread's columns from `first` on; without a bias it does nothing, and `bias` is any array."""
    thread_rows, thread_cols = tile.thread_rows, tile.thread_cols
    across = tile.cols // thread_cols

    @gpu_function
    def add_bias(sums: Any, bias: Any, first: int, n: int) -> None:
        for j in range(thread_cols):
            if first + j * across < n:
                for i in range(thread_rows):
                    sums[i, j] += bias[first + j * across]

    @gpu_function
    def no_bias(sums: Any, bias: Any, first: int, n: int) -> None:
        return

    return add_bias if with_bias else no_bias
