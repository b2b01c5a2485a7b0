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

from dps.kernels.cuda_loops import indented, kernel
from dps.kernels.device import gpu_function, launch, simulated
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
    """Padding values after each row of a tile: a multiple of 4, so that four neighbours stay aligned, and few threads
    of a warp that writes by depth want one bank."""
    return max(32 // depth, 4)


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
    """The tiled product for one layout, tile and dtype. Kernels are compiled at their first calls."""
    nbytes = 2 * sum(tile.stage_sizes) * np.dtype(dtype).itemsize

    def start(out: Any, left: Any, right: Any, bias: Any, activation: int, stream: Any) -> None:
        m, n = out.shape
        if m and n:
            inner = left.shape[1 if layout[0] == "n" else 0]
            blocks = -(-m // tile.rows), -(-n // tile.cols)
            tiles = _kernel(layout, tile, dtype, bias is not None, activation)
            launch(
                tiles, blocks, tile.threads, stream, out, left, right, right if bias is None else bias, inner,
                nbytes=nbytes,
            )  # fmt: skip

    return start


@cache
def _kernel(layout: str, tile: Tile, dtype: str, with_bias: bool, activation: int) -> Any:
    number = np.dtype(dtype)
    return kernel(
        ProductText(layout, tile).kernel(with_bias, activation), "_tiled_product", __name__,
        kind=numba.from_dtype(number), put=_putter(dtype), unsigned=np.uint32, zero=number.type(0),
    )  # fmt: skip


@cache
def _putter(dtype: str) -> Any:
    """A function that writes one activated value of a product, if its column is one of `out`."""
    activated, _ = activations(dtype)

    @gpu_function
    def put(out: Any, row: int, col: int, total: Any, activation: int) -> None:
        if col < out.shape[1]:
            out[row, col] = activated(total, activation) if activation else total

    return put


@dataclass(frozen=True)
class Operand:
    """One side of a product, as its text reads it. It is stored "by depth" if neighbours in memory differ in the inner
    dimension, else they differ in the outer one: the rows of `left`, the columns of `right`.

    Both are kept in shared memory as [stage][depth][outer]. A thread multiplies `own` values of the outer dimension,
    in groups of neighbours, which one instruction reads from shared memory.
    """

    name: str
    by_depth: bool
    outer: int
    depth: int
    threads: int
    own: int
    base: int
    """The position of the first stage in shared memory."""

    @property
    def pitch(self) -> int:
        return self.outer + padding(self.depth)

    @property
    def loads(self) -> int:
        """How many values a thread loads of a tile; neighbouring threads read neighbouring values."""
        return self.outer * self.depth // self.threads

    def offset(self, i: int) -> int:
        """Of a thread's i-th value, from its first one."""
        group = math.gcd(self.own, 4)
        return i // group * (group * self.outer // self.own) + i % group

    def position(self, i: int) -> tuple[str, str]:
        """The outer and the inner position, within the tile, of the i-th value that a thread loads."""
        width, step = self.depth if self.by_depth else self.outer, i * self.threads
        if self.threads % width:
            slow, fast = f"(thread + {step}) // {width}", f"(thread + {step}) % {width}"
        else:
            slow, fast = f"thread // {width} + {step // width}", f"thread % {width}"
        return (slow, fast) if self.by_depth else (fast, slow)

    def prepare(self, first: str, end: str) -> list[str]:
        """Where a thread's loads and reads begin. Loads beyond the matrix repeat its last row or column: no result
        that is kept depends on them."""
        lines = []
        for i in range(self.loads):
            outer, inner = self.position(i)
            lines.append(f"{self.name}_outer_{i} = min({first} + {outer}, {end} - 1)")
            lines.append(f"{self.name}_inner_{i} = {inner}")
            lines.append(f"{self.name}_kept_{i} = {self.base} + ({inner}) * {self.pitch} + {outer}")
        return lines

    def fetch(self, within: bool) -> list[str]:
        """Load a tile from global memory to registers; what lies beyond the inner dimension is 0."""
        lines = []
        for i in range(self.loads):
            depth = f"begin + {self.name}_inner_{i}"
            index = f"{self.name}_outer_{i}, {depth}" if self.by_depth else f"{depth}, {self.name}_outer_{i}"
            otherwise = "" if within else f" if {depth} < inner else zero"
            lines.append(f"{self.name}_next_{i} = {self.name}[{index}]{otherwise}")
        return lines

    def keep(self, stage: int) -> list[str]:
        """Write the registers to shared memory."""
        at = stage * self.depth * self.pitch
        return [f"tiles[{self.name}_kept_{i} + {at}] = {self.name}_next_{i}" for i in range(self.loads)]

    def read(self, stage: int) -> list[str]:
        """Read a thread's values of one depth."""
        at = self.base + stage * self.depth * self.pitch
        return [
            f"{self.name}_{i} = tiles[{self.name}_at + d * {self.pitch} + {at + self.offset(i)}]"
            for i in range(self.own)
        ]


class ProductText:
    """The text of a product's kernel. Sums and loaded values are variables of their own, one for each: arrays that a
    loop indexes lie in memory where the compiler does not unroll the loop, and not in registers.

    While one stage is multiplied, the next is loaded from global memory to registers and then written to the other
    stage, so one barrier for each is enough. Shared memory is allocated at the launch ("dynamic"), because in the
    simulator two threads sometimes both allocate the other kind.
    """

    def __init__(self, layout: str, tile: Tile) -> None:
        self._tile = tile
        first_right = 2 * tile.stage_sizes[0]
        self._left = Operand("left", layout[0] == "n", tile.rows, tile.depth, tile.threads, tile.thread_rows, 0)
        self._right = Operand(
            "right", layout[1] == "t", tile.cols, tile.depth, tile.threads, tile.thread_cols, first_right
        )
        self._operands = (self._left, self._right)

    def kernel(self, with_bias: bool, activation: int) -> str:
        """The whole text, for a launch with `tile.threads` threads a block, and blocks of (rows, cols) of `out`."""
        tile, across = self._tile, self._tile.cols // self._tile.thread_cols
        alignment = "" if simulated() else ", alignment=16"
        lines = [
            f"tiles = cuda.shared.array(0, kind{alignment})",
            "thread = unsigned(cuda.threadIdx.x)",  # then the compiler knows that no index is negative
            f"first_row, first_col = cuda.blockIdx.x * {tile.rows}, cuda.blockIdx.y * {tile.cols}",
            "m, n = out.shape",
            f"left_at = thread // {across} * {math.gcd(tile.thread_rows, 4)}",
            f"right_at = thread % {across} * {math.gcd(tile.thread_cols, 4)}",
            *self._left.prepare("first_row", "m"),
            *self._right.prepare("first_col", "n"),
            *(f"{s} = zero" for row in self._sums() for s in row),
            "begin = 0",
            *self._fetch(),
            *self._keep(0),
            "cuda.syncthreads()",
            "while True:",
            *indented(self._multiplied(0) + self._multiplied(1)),
            *self._finish(with_bias, activation),
        ]
        return "\n".join(["def _tiled_product(out, left, right, bias, inner):", *indented(lines), ""])

    def _sums(self) -> list[list[str]]:
        return [[f"s_{i}_{j}" for j in range(self._tile.thread_cols)] for i in range(self._tile.thread_rows)]

    def _fetch(self) -> list[str]:
        inside, edge = ([line for o in self._operands for line in o.fetch(within)] for within in (True, False))
        return [f"if begin + {self._tile.depth} <= inner:", *indented(inside), "else:", *indented(edge)]

    def _keep(self, stage: int) -> list[str]:
        return [line for operand in self._operands for line in operand.keep(stage)]

    def _multiplied(self, stage: int) -> list[str]:
        """One stage: its product, while the next is on its way."""
        reads = self._left.read(stage) + self._right.read(stage)
        products = [f"{s} += left_{i} * right_{j}" for i, row in enumerate(self._sums()) for j, s in enumerate(row)]
        return [
            f"begin += {self._tile.depth}",
            "more = begin < inner",
            "if more:",
            *indented(self._fetch()),
            f"for d in range({self._tile.depth}):",
            *indented(reads + products),
            "if not more:",
            "    break",
            *self._keep(1 - stage),
            "cuda.syncthreads()",
        ]

    def _finish(self, with_bias: bool, activation: int) -> list[str]:
        """Add the bias, and write the activated sums that lie in `out`."""
        lines = []
        cols, rows = range(self._tile.thread_cols), range(self._tile.thread_rows)
        for j in cols:
            lines.append(f"col_{j} = first_col + right_at + {self._right.offset(j)}")
            if with_bias:
                lines.append(f"bias_{j} = bias[col_{j}] if col_{j} < n else zero")
        for i in rows:
            lines += [f"row = first_row + left_at + {self._left.offset(i)}", "if row < m:"]
            for j in cols:
                total = f"s_{i}_{j} + bias_{j}" if with_bias else f"s_{i}_{j}"
                lines += indented([f"put(out, row, col_{j}, {total}, {activation})"])
        return lines
