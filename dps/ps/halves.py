"""The memory of an arena of float16 or bfloat16: two bytes an element, updated in float32.

An update goes block by block: values and gradient become float32 in a scratch, the optimizer's own float32 kernel
updates the scratch, and its numbers are rounded (to nearest, ties to even) into the next version. Slots are float32
throughout, so small gradients add up in them; what an update leaves below half a unit in the last place of a value is
lost, for no more exact copy of the values is kept. A number too large for the dtype becomes infinite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.kernels import cpu, halves
from dps.kernels import rows as row_kernels
from dps.ps.arena import ArenaMemory, Mean, rows_of
from dps.transport.wire import Array
from dps.variables.plan import Part

BLOCK = 1 << 14
"""Elements of a scratch; what an update of a block needs stays in the second cache."""


class HalvesMemory(ArenaMemory):
    """`ArenaMemory` for halves. Gradients are halves of the same dtype, or float32 where a mean was taken before."""

    def _precision(self) -> np.dtype[Any]:
        """Of the arithmetic, and of the slots."""
        return np.dtype(np.float32)

    def _looks(self) -> bool:
        return False

    def gather(self, part: Part, start: int, rows: Array, out: Array | None = None) -> Array:
        out = np.empty((len(rows), part.row_size), self.arena.dtype) if out is None else out
        table = self.values[start : start + part.size].view(np.uint16).reshape(part.shape[0], part.row_size)
        row_kernels.gather(table, rows, out.view(np.uint16))
        return out

    def update(self, index: int, start: int, gradient: Array | Mean, t: int, step: int, scale: float) -> bool:
        gs = gradient.arrays if isinstance(gradient, Mean) else (gradient,)
        if self.by_rows:
            for place, part, begin in self._parts_within(start, start + gs[0].size):
                cut = tuple(g[begin - start : begin - start + part.size] for g in gs)
                self._update_part_by_rows(index, place, begin, cut, t, step, scale)
            return True
        for at in range(0, gs[0].size, BLOCK):
            block = tuple(g[at : at + BLOCK] for g in gs)
            first, last = start + at, start + at + block[0].size
            slots = [None if slot is None else slot[first:last] for slot in self._ordered]
            self._update_block(index, first, last, block, slots, (block[0].size,), t, step, scale)
        return True

    def _update_part_by_rows(
        self, index: int, place: int, begin: int, gs: tuple[Array, ...], t: int, step: int, scale: float
    ) -> None:
        """Blocks of whole rows."""
        part, tables = self.arena.parts[place], self._tables(place)
        dim = part.row_size
        each = max(1, BLOCK // dim)
        for row in range(0, rows_of(part), each):
            block = tuple(g[row * dim : (row + each) * dim] for g in gs)
            first, size = begin + row * dim, block[0].size
            slots = [None if table is None else table[row : row + each] for table in tables]
            self._update_block(index, first, first + size, block, slots, (size // dim, dim), t, step, scale)

    def _update_block(
        self, index: int, first: int, last: int, gs: tuple[Array, ...], slots: list[Array | None],
        shape: tuple[int, ...], t: int, step: int, scale: float,
    ) -> None:  # fmt: skip
        """Elements `first` to `last`, from the current values to buffer `index`; kernels see them in this shape."""
        assert self._bound is not None
        w, g = self._scratch_of(last - first)
        halves.WIDEN[self._name](w, self.values[first:last].view(np.uint16))
        g = self._mean(gs, g)
        self._bound.apply(w.reshape(shape), w.reshape(shape), slots, g.reshape(shape), t, step, scale)
        halves.NARROW[self._name](self.buffers[index].values[first:last].view(np.uint16), w)

    def _mean(self, gs: tuple[Array, ...], out: Array) -> Array:
        """The gradients' sum in float32, in their order, divided by their number."""
        first = self._wide(gs[0], out)
        if len(gs) == 1:
            return first
        if first is not out:
            out[:] = first
        other = np.empty_like(out)
        for g in gs[1:-1]:
            cpu.add(out, out, self._wide(g, other))
        cpu.add_divide(out, out, self._wide(gs[-1], other), np.float32(len(gs)))
        return out

    def _wide(self, g: Array, out: Array) -> Array:
        if not halves.is_half(g.dtype):
            return g
        halves.WIDEN[self._name](out, halves.bits_in(g))
        return out

    def update_rows(
        self, index: int, part: Part, start: int, rows: Array, gradient: Array, t: int, step: int, scale: float
    ) -> None:
        """Blocks of rows are gathered with their slots, updated as a table of their own, and put back."""
        assert self._bound is not None
        if not gradient.size:
            return
        dim, tables = part.row_size, self._tables(self.places[part.index][0])
        table = self.buffers[index].values[start : start + part.size].view(np.uint16).reshape(part.shape[0], dim)
        gradient = halves.widened(gradient).reshape(len(rows), dim)
        for at in range(0, len(rows), max(1, BLOCK // dim)):
            some = rows[at : at + max(1, BLOCK // dim)]
            bits, (w, _) = np.empty((len(some), dim), np.uint16), self._scratch_of(len(some) * dim)
            row_kernels.gather(table, some, bits)
            halves.WIDEN[self._name](w, bits.reshape(-1))
            slots = [None if slot is None else slot[some] for slot in tables]
            shape = (len(some), dim) if self.by_rows else (len(some) * dim,)
            flat = [slot if slot is None or self.by_rows else slot.reshape(-1) for slot in slots]
            g = gradient[at : at + len(some)].reshape(shape)
            self._bound.apply(w.reshape(shape), w.reshape(shape), flat, g, t, step, scale)
            halves.NARROW[self._name](bits.reshape(-1), w)
            table[some] = bits
            for slot, found in zip(tables, slots, strict=True):
                if slot is not None:
                    slot[some] = found

    @property
    def _name(self) -> str:
        return "float16" if self.arena.dtype == "<f2" else "bfloat16"

    def _scratch_of(self, size: int) -> tuple[Array, Array]:
        """Values and gradient of a block in float32."""
        if self._scratch is None or len(self._scratch) < 2 * size:
            self._scratch = np.empty(2 * max(size, min(BLOCK, self.arena.size)), np.float32)
        return self._scratch[:size], self._scratch[size : 2 * size]
