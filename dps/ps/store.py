"""A shard's memory: arenas, versions and leases, and the one pass that applies an update."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps.kernels import cpu
from dps.kernels import rows as row_kernels
from dps.ps.arena import WHOLE, ArenaMemory, Buffer
from dps.ps.memory import memory_of
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array
from dps.variables.plan import Part, ShardLayout

NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True)
class RowGradient:
    """Gradient of some rows of a part: distinct sorted rows (n,), values (n, dim)."""

    rows: Array
    values: Array


@dataclass(frozen=True)
class Update:
    """What one pass applies. Either `run` (per arena a flat gradient of all of it) or `parts`."""

    run: list[Array] | None
    parts: dict[int, Array | RowGradient]

    @property
    def empty(self) -> bool:
        return self.run is None and not self.parts


class Lease:
    """One version of a shard, held still: the values may be read until `release`. Any thread may release."""

    def __init__(self, store: Store, arrays: list[Array], buffers: list[Buffer], memories: list[list[int]]) -> None:
        self.counter, self.step = store.counter, store.step
        self.arrays, self.memories = arrays, memories
        self._store, self._buffers, self._open = store, buffers, True

    def release(self, abandon: bool = False) -> None:
        """Give the buffers back; a second call does nothing. `abandon`: the reader cannot be asked whether it is done,
        so what it may still read is left as it is, and other memory takes its place."""
        if self._open:
            self._open = False
            self._store.give_back(self._buffers, abandon)


class Store:
    """The values, slots and version of one shard. One writer (the ps's thread), readers under leases."""

    leases_on = True
    """Off only in the test that shows what leases are for."""

    def __init__(self, layout: ShardLayout, runtime: Runtime, device: str = "") -> None:
        """`device`: where variables live whose placement says nothing of it: "GPU:0", else this process's memory.

        Raises ConfigError for a GPU that cannot be used."""
        self.layout, self.runtime = layout, runtime
        shared = runtime if layout.nbytes >= runtime.shared_nbytes else None
        self.arenas = [memory_of(arena, shared, device) for arena in layout.arenas]
        self._on_device = any(memory.on_device for memory in self.arenas)
        self.counter = 0
        self.step = 0
        self._lock = threading.Lock()
        self._writing = False

    # -- reading ----------------------------------------------------------------------------------------------

    def refresh(self, parts: list[int]) -> list[int] | None:
        """Have the current version of these parts, or of all, where it can be leased: copied out by the GPU.

        For the ps's thread, which waits for it. Returns the numbers of the arenas to lease, None for all.
        """
        if not self._on_device:
            return None
        arenas = sorted({self.layout.place[part][0] for part in parts}) if parts else None
        for number in range(len(self.arenas)) if arenas is None else arenas:
            self.arenas[number].refresh()
        return arenas

    def lease(self, shared: bool = False, arenas: list[int] | None = None) -> Lease | None:
        """Hold the current version; None when it is being written in place, no buffer would remain free, or it is
        on a GPU alone (see `refresh`).

        `shared`: only where others of this machine can read all of it in place. `arenas`: only these, by number; what
        the lease has of the others is empty.
        """
        held = self.arenas if arenas is None else [self.arenas[number] for number in arenas]
        with self._lock:
            if self.leases_on and (self._writing or not all(a.may_lease() for a in held)):
                return None
            buffers = [a.buffers[a.current] for a in held]
            if shared and any(b.memory is None for b in buffers):
                return None
            if self.leases_on:
                for buffer in buffers:
                    buffer.leases += 1
            names = [b.memory.name for b in buffers if b.memory is not None]
            arrays = [_read_only(b.values) for b in buffers]
            if arenas is not None:
                found = dict(zip(arenas, arrays, strict=True))
                arrays = [found.get(number, NOTHING) for number in range(len(self.arenas))]
            return Lease(self, arrays, buffers, names)

    def give_back(self, buffers: list[Buffer], abandon: bool = False) -> None:
        """End a lease on these buffers; `abandon`: somebody may read them all the same."""
        if self.leases_on:
            with self._lock:
                for buffer in buffers:
                    buffer.leases -= 1
                    buffer.abandoned |= abandon

    def leased(self) -> int:
        """Leases held now, over all buffers of the first arena."""
        return sum(b.leases for b in self.arenas[0].buffers) if self.arenas else 0

    def part(self, part: Part) -> Array:
        """A part's current values, in place; for the ps's thread."""
        index, start = self.layout.place[part.index]
        return self.arenas[index].values[start : start + part.size].reshape(part.shape)

    def gather(self, part: Part, rows: Array, out: Array | None = None) -> Array:
        """Copies of rows of a part, shape (len(rows), ...), in `out` (len(rows), elements of one) where it is given;
        ValueError when a row is not there."""
        if not part.shape:
            raise ValueError(f"{part.name} is a scalar; it has no rows to look up")
        _check_rows(part, rows)
        index, start = self.layout.place[part.index]
        return self.arenas[index].gather(part, start, rows, out).reshape(len(rows), *part.shape[1:])

    # -- writing, on the ps's thread -------------------------------------------------------------------------

    def fill(self, offset: int, data: Array) -> None:
        """Write bytes of the run at an offset, before the shard is published."""
        self.layout.check_range(offset, data.nbytes)
        for memory in self.arenas:
            arena = memory.arena
            if arena.offset <= offset < arena.offset + arena.nbytes:
                values = data.reshape(-1).view(np.uint8).view(arena.dtype)
                memory.write(None, (offset - arena.offset) // values.itemsize, values)

    def apply(self, update: Update, step: int, scale: float = 1.0) -> None:
        """Apply one update as one new version: whole or not at all for every reader."""
        if update.empty:
            return
        touched = self._touched(update)
        before = step - 1  # what a schedule is a function of: the first update takes its rate at 0
        with self._writable(touched, step) as targets:
            if update.run is not None:
                for memory, index, gradient in zip(self.arenas, targets, update.run, strict=True):
                    self._apply_run(memory, index, gradient, before, scale)
            else:
                for number, gradient_of_part in update.parts.items():
                    arena, start = self.layout.place[number]
                    self._apply_part(self.arenas[arena], targets[arena], start, number, gradient_of_part, before, scale)

    def _touched(self, update: Update) -> list[list[tuple[int, int]]]:
        """Per arena the element ranges that the update writes."""
        touched: list[list[tuple[int, int]]] = [[] for _ in self.arenas]
        if update.run is not None:
            return [[WHOLE] if m.optimizer is not None else [] for m in self.arenas]
        for index in update.parts:
            arena, start = self.layout.place[index]
            size = next(p.size for p in self.arenas[arena].arena.parts if p.index == index)
            touched[arena].append((start, start + size))
        return touched

    @contextmanager
    def _writable(self, touched: list[list[tuple[int, int]]], step: int) -> Iterator[list[int]]:
        """Buffers to write the next version into, in place or aside; published at the end, under its number."""
        with self._lock:
            indices = [self._target(memory, ranges) for memory, ranges in zip(self.arenas, touched, strict=True)]
            in_place = any(
                ranges and index == memory.current
                for memory, ranges, index in zip(self.arenas, touched, indices, strict=True)
            )
            self._writing = in_place
        for memory, index, ranges in zip(self.arenas, indices, touched, strict=True):
            if ranges and index != memory.current and ranges != [WHOLE]:
                memory.catch_up(index)
        try:
            yield indices
        finally:
            with self._lock:
                for memory, index, ranges in zip(self.arenas, indices, touched, strict=True):
                    if ranges:
                        memory.wrote(index, ranges)
                self._writing = False
                self.counter += 1
                self.step = step

    def _target(self, memory: ArenaMemory, ranges: list[tuple[int, int]]) -> int:
        if not ranges or not (memory.is_still() and self.leases_on):
            return memory.current
        free = memory.free_buffer()
        if free is None:
            raise RuntimeError("every buffer is leased; a lease was granted that should not have been")
        return free

    def _apply_run(self, memory: ArenaMemory, index: int, gradient: Array, step: int, scale: float) -> None:
        if memory.optimizer is None:
            return
        memory.applied += 1
        counts = memory.applied
        if len(counts) and (counts == counts[0]).all():
            self._pass(memory, index, 0, gradient, int(counts[0]), step, scale)
            return
        for part, start, t in zip(memory.arena.parts, memory.arena.starts, counts, strict=True):
            g = gradient[start : start + part.size]
            self._pass(memory, index, start, g, int(t), step, scale)

    def _apply_part(
        self, memory: ArenaMemory, index: int, start: int, number: int, gradient: Any, step: int, scale: float
    ) -> None:
        if memory.optimizer is None:
            return
        place = next(i for i, p in enumerate(memory.arena.parts) if p.index == number)
        memory.applied[place] += 1
        part, t = memory.arena.parts[place], int(memory.applied[place])
        if isinstance(gradient, RowGradient):
            memory.update_rows(index, part, start, gradient.rows, gradient.values, t, step, scale)
        else:
            self._pass(memory, index, start, gradient.reshape(-1), t, step, scale)

    def _pass(
        self, memory: ArenaMemory, index: int, start: int, gradient: Array, t: int, step: int, scale: float
    ) -> None:
        """The fused kernel over a range; in the simulator in blocks of a piece, so that readers come in between."""
        block = max(1, self.runtime.piece_nbytes // 4 if self.runtime.simulated else gradient.size)
        for at in range(0, gradient.size, block):
            memory.update(index, start + at, gradient[at : at + block], t, step, scale)
            self.runtime.preempt()

    def close(self) -> None:
        """Another run epoch has begun: give the memory of GPUs back."""
        for memory in self.arenas:
            memory.close()


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _check_rows(part: Part, rows: Array) -> None:
    if not row_kernels.rows_in_range(rows, part.shape[0]):
        raise ValueError(
            f"a row number of {part.name} is out of range: got {rows.min()} to {rows.max()}, "
            f"wanted 0 to {part.shape[0] - 1}"
        )


def is_finite(array: Array) -> bool:
    """Whether no element is NaN or infinite; integers always are finite."""
    return array.dtype.kind != "f" or bool(cpu.all_finite(array.reshape(-1)))
