"""The memory of one arena: up to three value buffers under leases, and the optimizer's slots.

The store knows an arena by the methods of `ArenaMemory`; `dps.ps.device_memory` has an arena of a GPU under them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from dps.errors import Unavailable
from dps.kernels import rows as row_kernels
from dps.optim import Optimizer
from dps.ps import optimizers
from dps.transport.endpoint import Memory, Runtime
from dps.transport.wire import Array
from dps.variables.plan import Arena, Part

log = logging.getLogger("dps")

BUFFERS, SMALL_BUFFERS = 3, 32
"""The most buffers of one arena; more where they are small, for their readers return them late."""
WHOLE = (0, -1)


@dataclass(slots=True)
class Buffer:
    """One copy of the values. `missed` are the element ranges in which it is older than the current one."""

    values: Array
    memory: Memory | None = None
    """Where readers on this machine find the values; None where memory cannot be shared."""
    leases: int = 0
    abandoned: bool = False
    """A reader of another process that was given up may still read it: it is never written again."""
    missed: list[tuple[int, int]] = field(default_factory=list)


class ArenaMemory:
    """Values and slots of one arena. Only the ps's thread writes; the store's lock guards indices and leases.

    A buffer under a lease is never written. A lease is granted only while another buffer is (or can be made)
    free, so a writer always finds either an unleased current buffer or a free one.
    """

    on_device = False
    """Whether values and slots are in the memory of a GPU, and the buffers are copies."""

    def __init__(self, arena: Arena, optimizer: Optimizer | None, runtime: Runtime | None = None) -> None:
        """`runtime`: shares the values with readers on this machine; None keeps them to this process."""
        self.arena, self.optimizer, self._runtime = arena, optimizer, runtime
        self._most = SMALL_BUFFERS if runtime is not None and arena.nbytes <= runtime.small_nbytes else BUFFERS
        self.buffers = [self._buffer()]
        self.current = 0
        self.slots = self._initial_slots()
        self.applied = np.zeros(len(arena.parts), np.int64)
        """For each part, how often its optimizer was applied: the t of Adam."""

    def _initial_slots(self) -> dict[str, Array]:
        if self.optimizer is None:
            return {}
        return optimizers.initial_slots(self.optimizer, self.arena.size, np.dtype(self.arena.dtype))

    def _buffer(self) -> Buffer:
        """New values, zeros."""
        if self._runtime is not None:
            try:
                memory = self._runtime.share(self.arena.nbytes)
                return Buffer(memory.array.view(self.arena.dtype), memory)
            except Unavailable as error:
                log.debug("%s", error)
        return Buffer(np.zeros(self.arena.size, self.arena.dtype))

    def _empty(self) -> Buffer:
        made = self._buffer()
        made.missed = [WHOLE]
        return made

    def is_still(self) -> bool:
        """Whether somebody may be reading the current buffer."""
        return self.buffers[self.current].leases > 0 or self.buffers[self.current].abandoned

    @property
    def values(self) -> Array:
        """The current values, flat. Read-only for everybody but the ps's thread."""
        return self.buffers[self.current].values

    def may_lease(self) -> bool:
        """Whether a writer would still find a free buffer with one more lease on the current one."""
        return len(self.buffers) < self._most or any(
            b.leases == 0 for i, b in enumerate(self.buffers) if i != self.current
        )

    def free_buffer(self) -> int | None:
        """Index of a buffer to write the next version into, made on demand; None when all are leased."""
        for index, buffer in enumerate(self.buffers):
            if index != self.current and buffer.leases == 0:
                if buffer.abandoned:
                    self.buffers[index] = self._empty()
                return index
        if len(self.buffers) < self._most:
            self.buffers.append(self._empty())
            return len(self.buffers) - 1
        return None

    def catch_up(self, index: int) -> None:
        """Copy into a free buffer the ranges that it missed."""
        buffer, now = self.buffers[index], self.values
        for start, stop in buffer.missed:
            end = len(now) if stop == -1 else stop
            buffer.values[start:end] = now[start:end]
        buffer.missed = []

    def wrote(self, index: int, ranges: list[tuple[int, int]]) -> None:
        """Buffer `index` becomes current; the others have missed the ranges that were written."""
        self.current = index
        for other, buffer in enumerate(self.buffers):
            if other == index:
                buffer.missed = []
            elif WHOLE not in buffer.missed:
                buffer.missed = [WHOLE] if WHOLE in ranges or len(buffer.missed) + len(ranges) > 64 else [
                    *buffer.missed, *ranges,
                ]  # fmt: skip

    # -- values and slots by their elements, on the ps's thread -----------------------------------------------

    def read(self, slot: str | None, start: int, stop: int) -> Array:
        """A copy of a range of a slot, or of the values."""
        return (self.values if slot is None else self.slots[slot])[start:stop].copy()

    def write(self, slot: str | None, start: int, data: Array) -> None:
        """Fill a range of a slot, or of the values, before the shard is published."""
        (self.values if slot is None else self.slots[slot])[start : start + data.size] = data

    def gather(self, part: Part, start: int, rows: Array, out: Array | None = None) -> Array:
        """Copies of rows of the part that begins at `start`, shape (len(rows), dim), in `out` where it is given.

        The row numbers are in range."""
        table = self.values[start : start + part.size].reshape(part.shape[0], part.row_size)
        out = np.empty((len(rows), part.row_size), table.dtype) if out is None else out
        row_kernels.gather(table, rows, out)
        return out

    def refresh(self) -> None:
        """Have the current version where readers may lease it. Here it always is."""

    def update(self, index: int, start: int, gradient: Array, t: int, step: int, scale: float) -> None:
        """The fused kernel over the elements that `gradient` is for, from the current values to buffer `index`."""
        assert self.optimizer is not None
        stop = start + gradient.size
        slots = {name: slot[start:stop] for name, slot in self.slots.items()}
        target, values = self.buffers[index].values[start:stop], self.values[start:stop]
        optimizers.apply(self.optimizer, target, values, slots, gradient, t, step, scale)

    def update_rows(
        self, index: int, part: Part, start: int, rows: Array, gradient: Array, t: int, step: int, scale: float
    ) -> None:
        """The fused kernel over rows of the part that begins at `start`, in place in buffer `index`."""
        assert self.optimizer is not None
        stop, shape = start + part.size, (part.shape[0], part.row_size)
        slots = {name: slot[start:stop].reshape(shape) for name, slot in self.slots.items()}
        table = self.buffers[index].values[start:stop].reshape(shape)
        optimizers.apply_rows(self.optimizer, table, slots, rows, gradient, t, step, scale)

    def close(self) -> None:
        """The shard is over: nothing reads or writes here any more but readers under leases."""
