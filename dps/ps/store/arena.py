"""The memory of one arena: buffers of its values, which readers lease, and the slots of its optimizer.

The store knows an arena by the methods of `ArenaMemory`; `dps.ps.store.device_memory` has an arena of a GPU under them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.errors import Unavailable
from dps.kernels import cpu, optimizers
from dps.kernels import rows as row_kernels
from dps.kernels.passes import MOST
from dps.process.telemetry import log
from dps.ps.store.gradients import GradientSum, is_finite, summed
from dps.ps.store.hold import Buffer
from dps.ps.store.slots import Applied
from dps.ps.store.thread_pool import ThreadPool
from dps.training.optimizers import Optimizer
from dps.transport.endpoint import Runtime
from dps.transport.tuning import ORDINARY, Tuning
from dps.transport.wire import Array
from dps.variables.plan import Arena, Part

if TYPE_CHECKING:
    from dps.ps.store.slots import Averages


def rows_of(part: Part) -> int:
    """How many rows a part has; a scalar is one."""
    return part.shape[0] if part.shape else 1


class ArenaMemory:
    """Values and slots of one arena. Only the ps's thread writes them, and takes leases; any thread may release one.

    More than 12 attributes: half of them are facts of the optimizer and sizes, found once, that each push asks for.

    A buffer under a lease is never written. A lease is granted only while another buffer is (or can be made)
    free, so a writer always finds either an unleased current buffer or a free one.
    """

    on_device = False
    """Whether values and slots are in the memory of a GPU, and the buffers are copies."""
    kernels: ModuleType = cpu
    only_fused = False
    """Whether the values need the fused kernels, because plain kernels do not take them."""

    def __init__(
        self, arena: Arena, optimizer: Optimizer | None, runtime: Runtime | None = None, pool: ThreadPool | None = None,
        tuning: Tuning = ORDINARY,
    ) -> None:  # fmt: skip
        """`runtime`: shares the values with readers on this machine; None: they are not shared. `pool`: the threads
        that share long passes; None: the calling thread does all.
        """
        self.arena, self.optimizer, self._runtime, self._pool = arena, optimizer, runtime, pool
        self._tuning = own = tuning.store
        self.places = {p.index: (n, start) for n, (p, start) in enumerate(zip(arena.parts, arena.starts, strict=True))}
        """The number here and the first element of each part, by its index."""
        small = runtime is not None and arena.nbytes <= tuning.small_nbytes
        most = min(own.small_buffers, own.small_buffers_nbytes // max(arena.nbytes, 1)) if small else own.buffers
        self._most = max(most, own.buffers)
        self._shared_size = sys.maxsize if pool is None else own.pool_nbytes // arena.itemsize
        """Passes over so many elements and more are shared."""
        self._row_starts = [0, *itertools.accumulate(rows_of(part) for part in arena.parts)]
        self.buffers = [self._buffer()]
        self.current = 0
        averaged = arena.optimizer is not None and "moving_average" in arena.optimizer
        self.slots = self._initial_slots(("average",) if averaged else ())
        self.averages = self._averages(arena.optimizer) if arena.optimizer is not None and averaged else None
        """The moving averages of the values; None if none are kept."""
        self.applied = Applied(len(arena.parts))
        self._bound = (
            None if optimizer is None else optimizers.BoundOptimizer(optimizer, self._precision(), self.kernels)
        )
        self._ordered = [] if self._bound is None else self._bound.ordered(self.slots)
        self.by_rows = self._bound is not None and self._bound.by_rows
        """Whether rows must not be cut: an update of one needs all of it."""
        self.counts = self._bound is not None and self._bound.counts
        """Whether `applied` matters to an update: the t of Adam."""
        self.is_plain = self._bound is not None and not self.counts and self.averages is None
        """Whether a pass over the values is all that an update takes, whatever was updated before."""
        self._fused = self._bound is not None and self._bound.fused is not None
        self.reversible = self._fused and not self.slots
        """Whether an update of all values may go to a free buffer and be dropped: it changes nothing else."""
        self._streams = self._fused and arena.nbytes >= own.stream_nbytes
        """Whether an update to a free buffer is written past the caches."""
        self.looks_itself = self.reversible and self._streams and arena.nbytes >= own.looking_nbytes
        """Whether the pass that writes all values to a free buffer also checks the gradient."""
        self._is_short = not (
            self.by_rows or self.only_fused or self._streams or arena.size >= self._shared_size or self._bound is None
        )
        """Whether a pass with one gradient over all values is one call of the plain kernel."""
        self._all_finite = cpu.all_finite if np.dtype(arena.dtype).char in "fd" else is_finite
        self._scratch: Array | None = None

    def _initial_slots(self, more: tuple[str, ...]) -> dict[str, Array]:
        """The slots of the optimizer, and `more` slots that have the variables' shapes."""
        if self.optimizer is None:
            return {}
        size, dtype = self.arena.size, self._precision()
        found = optimizers.initial_slots(self.optimizer, size, dtype, self._row_starts[-1])
        return found | {name: np.zeros(size, dtype) for name in more}

    def _averages(self, optimizer: Mapping[str, Any]) -> Averages:
        from dps.ps.store.slots import Averages  # here: most runs keep none

        return Averages(optimizer, self.slots["average"], self.kernels)

    def _precision(self) -> np.dtype[Any]:
        """The dtype that updates are computed in, and that slots have."""
        return np.dtype(self.arena.dtype)

    def _buffer(self) -> Buffer:
        """New values, zeros."""
        if self._runtime is not None:
            try:
                memory = self._runtime.share(self.arena.nbytes)
                values = memory.array.view(self.arena.dtype)
                return Buffer(values, self._given(values), memory)
            except Unavailable as error:
                log.debug("%s", error)
        values = np.zeros(self.arena.size, self.arena.dtype)
        return Buffer(values, self._given(values))

    def _empty(self) -> Buffer:
        made = self._buffer()
        made.missed = None
        return made

    def is_read(self) -> bool:
        """Whether a reader may be reading the current buffer."""
        buffer = self.buffers[self.current]
        return buffer.leases > 0 or buffer.abandoned

    @property
    def values(self) -> Array:
        """The current values, flat. Read-only for everybody but the ps's thread."""
        return self.buffers[self.current].values

    def may_lease(self, sparing: bool = False, index: int | None = None) -> bool:
        """Whether a writer would still find a free buffer with one more lease on buffer `index` (None: the current
        one).

        `sparing`: no third buffer may be made for it."""
        if len(self.buffers) < (min(self._most, self._tuning.sparing_buffers) if sparing else self._most):
            return True
        leased = self.buffers[self.current if index is None else index]
        return any(buffer.is_free for buffer in self.buffers if buffer is not leased)

    def free_buffer(self) -> int:
        """The index of a buffer to write the next version into, made on demand. There always is one, because of
        `may_lease`."""
        for index, buffer in enumerate(self.buffers):
            if index != self.current and buffer.is_free:
                if buffer.abandoned:
                    self.buffers[index] = self._empty()
                return index
        if len(self.buffers) < self._most:
            self.buffers.append(self._empty())
            return len(self.buffers) - 1
        raise RuntimeError("readers hold every buffer: an error inside dps; please report it")

    def target(self) -> int:
        """The buffer to which an update is written that cannot be dropped: the current one, unless a reader has it."""
        return self.free_buffer() if self.is_read() else self.current

    def reversible_target(self) -> int | None:
        """A buffer for a draft that may be dropped; None if there is such a draft already, or no other buffer would
        remain for further updates."""
        if not self.reversible or any(buffer.drafted for buffer in self.buffers):
            return None
        left = self._most - len(self.buffers) + sum(b.is_free for i, b in enumerate(self.buffers) if i != self.current)
        return None if left < 1 + self.is_read() else self.free_buffer()

    def catch_up(self, index: int) -> None:
        """Copy into a free buffer the ranges that it missed."""
        buffer, now = self.buffers[index], self.values
        for start, stop in [(0, len(now))] if buffer.missed is None else buffer.missed:
            buffer.values[start:stop] = now[start:stop]
        buffer.missed = []

    def wrote(self, index: int, ranges: list[tuple[int, int]] | None) -> None:
        """Buffer `index` becomes current; the others have missed the ranges that were written, None: all values."""
        self.current = index
        for buffer in self.buffers:
            if ranges is None or buffer.missed is None or len(buffer.missed) + len(ranges) > 64:
                buffer.missed = None
            else:
                buffer.missed = buffer.missed + ranges
        self.buffers[index].missed = []

    def wrote_parts(self, index: int, parts: Collection[int], values: Collection[int] = ()) -> None:
        """Note that gradients were applied to these parts, or `values` set, in buffer `index`, as far as the parts are
        in this arena."""
        ranges = []
        for number in parts:
            if number in self.places:
                self.applied.add_updates(self.places[number][0])
        for place, start in [self.places[number] for number in (*parts, *values) if number in self.places]:
            ranges.append((start, start + self.arena.parts[place].size))
        self.wrote(index, ranges)

    # -- values and slots by their elements, on the ps's thread -----------------------------------------------

    def read(self, slot: str | None, start: int, stop: int | None) -> Array:
        """A copy of a range of a slot, or of the values; `stop` None: to the end."""
        return (self.values if slot is None else self.slots[slot])[start:stop].copy()

    def write(self, slot: str | None, start: int, data: Array) -> None:
        """Fill a range of a slot, or of the values, before the shard is published."""
        (self.values if slot is None else self.slots[slot])[start : start + data.size] = data

    def set(self, index: int, start: int, data: Array) -> None:
        """Set elements of buffer `index` from `start` on; slots stay."""
        self.buffers[index].values[start : start + data.size] = data

    def fill_values(self, start: int, data: Array) -> None:
        """Fill a range of the values before the shard is published; averages begin at these values."""
        self.write(None, start, data)
        if self.averages is not None:
            self.write("average", start, data)

    def make_values(self, start: int, size: int, fill: Callable[[Array, int], None], first: int) -> None:
        """Fill a range of the values before the shard is published. `fill(out, n)` writes a variable's elements from
        number `n` on, `first` at `start`; threads of the pool call it."""
        out = np.empty(size, self.arena.dtype) if self.on_device else self.values[start : start + size]

        def piece(begin: int, stop: int) -> bool:
            fill(out[begin:stop], first + begin)
            return True

        self.share_pass(size, piece)
        if self.on_device or self.averages is not None:
            self.fill_values(start, out)

    def averaged(self) -> Array:
        """A copy of the averages in the dtype of the values, flat; of the values where no averages are kept."""
        if self.averages is None:
            return self.read(None, 0, None)
        return self.read("average", 0, None).astype(self.arena.dtype, copy=False)

    def extent(self, slot: str | None, place: int) -> tuple[int, int, tuple[int, ...]]:
        """Where the values or a slot of the part at that place begin and end, and their shape."""
        part, start = self.arena.parts[place], self.arena.starts[place]
        if self.optimizer is not None and slot in self.optimizer.row_slots:
            return self._row_starts[place], self._row_starts[place + 1], part.shape[:1]
        return start, start + part.size, part.shape

    def _tables(self, place: int) -> list[Array | None]:
        """The slots of a part as its kernels for rows take them: (rows, dim), or (rows,)."""
        part, start = self.arena.parts[place], self.arena.starts[place]
        if self.by_rows:
            return [None if s is None else s[slice(*self._row_starts[place : place + 2])] for s in self._ordered]
        stop, shape = start + part.size, (rows_of(part), part.row_size)
        return [None if slot is None else slot[start:stop].reshape(shape) for slot in self._ordered]

    def gather(self, part: Part, start: int, rows: Array, out: Array | None = None) -> Array:
        """Copies of rows of the part that begins at `start`, shape (len(rows), dim), in `out` where it is given.

        The row numbers are in range."""
        table = self.buffers[self.current].given[start : start + part.size].reshape(part.shape[0], part.row_size)
        out = np.empty((len(rows), part.row_size), self.arena.dtype) if out is None else out
        row_kernels.gather(table, rows, self._given(out))
        return out

    def refresh(self) -> None:
        """Make sure that the current version is in a buffer that readers may lease. Here it always is."""

    def on_host(self, gradient: Array) -> Array:
        """A gradient in memory that numpy can read."""
        return gradient

    def is_finite(self, gradient: Array) -> bool:
        """Whether no element is NaN or infinite."""
        if gradient.size < self._shared_size:
            return self._all_finite(gradient)
        return self.share_pass(gradient.size, lambda start, stop: is_finite(gradient[start:stop]))

    def update(self, index: int, start: int, gradient: Array | GradientSum, t: int, step: int, scale: float) -> bool:
        """One pass over the elements that `gradient` is for, from the current values to buffer `index`.

        Returns False if the pass found NaN or infinity in the gradient; it looks for them if `looks_itself`."""
        buffers, current, bound = self.buffers, self.current, self._bound
        out, w, slots = buffers[index].given, buffers[current].given, self._ordered
        if self._is_short and not isinstance(gradient, GradientSum) and gradient.size == out.size:
            return bound.apply(out, w, slots, (gradient,), 0, t, step, scale)  # type: ignore[union-attr]  # it is trained
        if self.by_rows:
            self._update_rows_of_parts(index, start, gradient, t, step, scale)
            return True
        if isinstance(gradient, GradientSum):
            gs, n = self._gradients(gradient)
            if len(gs) > 1 and (len(gs) > MOST or not self._fused):
                gs = self._reduced(gs, n)
        else:
            gs, n = (self._given(gradient),), 1
        if not (self.only_fused or len(gs) > 1 or (self._streams and index != current)):
            n = 0
        size = gs[0].size
        if size < out.size:
            out, w = out[start : start + size], w[start : start + size]
            slots = [None if slot is None else slot[start : start + size] for slot in slots]
        if size < self._shared_size:
            return bound.apply(out, w, slots, gs, n, t, step, scale)  # type: ignore[union-attr]  # it is trained
        return self.share_pass(size, partial(self._update_piece, out, w, slots, gs, (n, t, step, scale)))

    def _update_piece(self, out: Array, w: Array, slots: Any, gs: Any, how: Any, begin: int, end: int) -> bool:
        """One thread's piece of a shared pass. `how`: the divisor, and what else an update needs."""
        assert self._bound is not None
        cut, part = [None if s is None else s[begin:end] for s in slots], tuple(g[begin:end] for g in gs)
        return self._bound.apply(out[begin:end], w[begin:end], cut, part, *how)

    @property
    def may_take_pieces(self) -> bool:
        """Whether a gradient that came in pieces is applied as it is, and not put together before."""
        return not (self.by_rows or self.on_device or self.counts_differ)

    @property
    def counts_differ(self) -> bool:
        """Whether the parts are to be updated with different counts."""
        return self.counts and self.applied.has_different

    def _update_rows_of_parts(
        self, index: int, start: int, gradient: Array | GradientSum, t: int, step: int, scale: float
    ) -> None:
        """`update`, of whole parts, by an optimizer that takes all elements of a row together."""
        assert self._bound is not None
        g = self._reduced(*self._gradients(gradient))[0]
        values, new = self.buffers[self.current].given, self.buffers[index].given
        for place, part, begin in self._parts_within(start, start + g.size):
            at, shape = slice(begin, begin + part.size), (rows_of(part), part.row_size)
            part_g = g[begin - start : begin - start + part.size].reshape(shape)
            out, w = new[at].reshape(shape), values[at].reshape(shape)
            self._bound.apply(out, w, self._tables(place), (part_g,), 0, t, step, scale)

    def _parts_within(self, start: int, stop: int) -> Iterator[tuple[int, Part, int]]:
        """The parts that lie whole between two elements: place, part and first element of each that has elements."""
        for place, (part, begin) in enumerate(zip(self.arena.parts, self.arena.starts, strict=True)):
            if part.size and start <= begin and begin + part.size <= stop:
                yield place, part, begin

    def _given(self, array: Array) -> Array:
        """Values, or a gradient, as they are given to kernels."""
        return array

    def _gradients(self, gradient: Array | GradientSum) -> tuple[tuple[Array, ...], int]:
        """The gradients as kernels take them, and the number by which their sum is divided."""
        if isinstance(gradient, GradientSum):
            return tuple(map(self._given, gradient.arrays)), gradient.divisor
        return (self._given(gradient),), 1

    def _reduced(self, gs: tuple[Array, ...], divisor: int) -> tuple[Array, ...]:
        """As many gradients as one pass takes, with the same sum in the same order; or one, which is divided
        already."""
        if len(gs) == 1:
            return gs
        if self._scratch is None or self._scratch.size < gs[0].size:
            self._scratch = np.empty(gs[0].size, self._precision())
        scratch = self._scratch[: gs[0].size]
        if self._fused:
            return (summed(gs[: 1 - MOST], scratch), *gs[1 - MOST :])
        return (GradientSum(gs, divisor).array(scratch),)

    def share_pass(self, size: int, work: Callable[[int, int], bool]) -> bool:
        """Call `work(start, stop)` for all of `size` elements, by the pool if they are many."""
        if self._pool is None or size < self._shared_size:
            return work(0, size)
        return self._pool.share_pass(size, self._tuning.pool_piece_nbytes // self.arena.itemsize, work)

    def update_rows(
        self, index: int, part: Part, start: int, rows: Array, gradient: Array, t: int, step: int, scale: float
    ) -> None:
        """The fused kernel over rows of the part that begins at `start`, in place in buffer `index`."""
        assert self._bound is not None
        stop, shape = start + part.size, (part.shape[0], part.row_size)
        slots = self._tables(self.places[part.index][0])
        table = self.buffers[index].given[start:stop].reshape(shape)
        self._bound.apply_rows(table, slots, rows, self._given(gradient).reshape(-1, shape[1]), t, step, scale)

    def follow(self, index: int, start: int, size: int, step: int) -> None:
        """Update the averages of these elements with their new values, those in buffer `index`."""
        assert self.averages is not None
        values = self.buffers[index].given[start : start + size]
        self.averages.follow(start, values, step, self.share_pass)

    def follow_rows(self, index: int, part: Part, start: int, rows: Array, step: int) -> None:
        """As `follow`, for these rows of the part that begins at `start`."""
        assert self.averages is not None
        values = self.buffers[index].given[start : start + part.size]
        self.averages.follow_rows(start, values.reshape(part.shape[0], part.row_size), rows, step)

    def close(self) -> None:
        """The shard has ended: nothing reads or writes here any more, except readers with leases."""
