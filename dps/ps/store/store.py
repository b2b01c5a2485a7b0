"""A shard's memory: arenas, versions and leases, and the one pass that applies an update."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dps.kernels import rows as row_kernels
from dps.kernels.fused import MOST
from dps.ps.store.arena import WHOLE, ArenaMemory, Buffer
from dps.ps.store.crew import crew_of
from dps.ps.store.gradients import Mean, Pieces, RowGradient, Update, arrays_of, cut, is_finite, not_finite
from dps.ps.store.memory import memory_of
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array
from dps.variables.layout import out_of_range
from dps.variables.plan import Part, ShardLayout

NOTHING = np.empty(0, np.uint8)
_ALL = [WHOLE]


class Lease:
    """One version of a shard, held still: the values may be read until `release`. Any thread may release."""

    def __init__(
        self, store: Store, arrays: list[Array], buffers: list[Buffer], memories: list[list[int]], times: int = 1
    ) -> None:
        self.counter, self.step = store.counter, store.step
        self.arrays, self.memories = arrays, memories
        self._store, self._buffers, self._open = store, buffers, times

    def release(self, abandon: bool = False) -> None:
        """Give the buffers back, as often as they were leased; a further call does nothing. `abandon`: the reader
        cannot be asked whether it is done, so what it may still read is left as it is, and other memory takes its
        place."""
        if self._open:
            self._open -= 1
            self._store.give_back(self._buffers, abandon)


class Store:
    """The values, slots and version of one shard. One writer (the ps's thread), readers under leases."""

    leases_on = True
    """Off only in the test that shows what leases are for."""

    def __init__(self, layout: ShardLayout, runtime: Runtime, device: str = "", threads: int = 1) -> None:
        """`device`: where variables live whose placement says nothing of it: "GPU:0", else this process's memory.

        `threads`: how many share a long pass on the CPU. AUTO: as many as cores are free at that moment; see `crew_of`.

        Raises ConfigError for a GPU that cannot be used."""
        self.layout, self.runtime = layout, runtime
        shared = runtime if layout.nbytes >= runtime.tuning.shard_nbytes else None
        tuning = runtime.tuning
        self.tuning, self._block = tuning.store, tuning.block_nbytes // 4
        self._crew = crew_of(threads, tuning.store)
        self.arenas = [memory_of(arena, shared, device, self._crew, tuning) for arena in layout.arenas]
        self._trained = [(a, memory) for a, memory in enumerate(self.arenas) if memory.optimizer is not None]
        self.is_large = layout.nbytes >= tuning.store.large_pieces * tuning.piece_nbytes
        """Whether one more copy of the values is worth waiting for."""
        self.looks_first = not all(memory.looks() for _, memory in self._trained)
        """Whether some gradients are looked at before they are applied, and not by the same pass."""
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

    def lease(
        self, shared: bool = False, arenas: list[int] | None = None, times: int = 1, sparing: bool = False
    ) -> Lease | None:
        """Hold the current version; None when it is being written in place, no buffer would remain free, or it is
        on a GPU alone (see `refresh`).

        `shared`: for others of this machine, by the names of its memories; only where they can read all of it in place.
        `arenas`: only these, by number; what the lease has of the others is empty. `times`: for so many readers.
        `sparing`: not where the next update might have to make one more buffer than two; only for shards that
        are large.
        """
        held = self.arenas if arenas is None else [self.arenas[number] for number in arenas]
        sparing = sparing and self.is_large
        with self._lock:
            if self.leases_on and (self._writing or not all(a.may_lease(sparing) for a in held)):
                return None
            buffers = [a.buffers[a.current] for a in held]
            names = [b.memory.name for b in buffers if b.memory is not None]
            if shared and len(names) < len(buffers):
                return None
            if self.leases_on:
                for buffer in buffers:
                    buffer.leases += times
            arrays = [] if shared else [_read_only(b.values) for b in buffers]
            if arenas is not None:
                found = dict(zip(arenas, arrays, strict=True))
                arrays = [found.get(number, NOTHING) for number in range(len(self.arenas))]
            return Lease(self, arrays, buffers, names, times)

    def lease_next(self, buffers: Mapping[int, int], step: int) -> Lease | None:
        """Hold the version that comes next, step `step`: it is being written to these buffers, by arena, and has the
        values of now in the other arenas. For those who know which of it is written.

        None where somebody reads the current version, or no second buffer would be left for the next update: memory
        for a third is not for this. And None on a GPU."""
        if not self.leases_on or self._on_device:
            return None
        with self._lock:
            if any(a.buffers[a.current].leases for a in self.arenas):
                return None
            if not all(self.arenas[number].leaves_one(index) for number, index in buffers.items()):
                return None
            held = [a.buffers[buffers.get(number, a.current)] for number, a in enumerate(self.arenas)]
            for buffer in held:
                buffer.leases += 1
            lease = Lease(self, [_read_only(b.values) for b in held], held, [])
            lease.counter, lease.step = self.counter + 1, step
            return lease

    def give_back(self, buffers: list[Buffer], abandon: bool = False) -> None:
        """End a lease on these buffers; `abandon`: somebody may read them all the same."""
        if self.leases_on:
            with self._lock:
                for buffer in buffers:
                    buffer.leases -= 1
                    buffer.abandoned |= abandon

    @property
    def may_grow(self) -> bool:
        """Whether a lease that is not `sparing` could be had where a sparing one is not."""
        return self.is_large and all(a.may_lease() for a in self.arenas)

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

    def apply(
        self, update: Update, step: int, scale: float = 1.0, check: bool = False,
        certain: Callable[[], None] | None = None,
    ) -> str:  # fmt: skip
        """Apply one update as one new version: whole or not at all for every reader. "" when it was applied.

        `certain` is called before the pass of an update of all of the shard, if nothing can fail any more, a lack of
        memory included. Nobody can lease a version until the pass is over, so whoever is told finds the new one.

        `check`: nobody has looked for NaN and infinity. Where there is some, the first variable that has it comes back
        as a sentence, and the shard is as it was: values, slots, counts and version.
        """
        if update.empty:
            return ""
        before = step - 1  # what a schedule is a function of: the first update takes its rate at 0
        if update.run is not None:
            return self._apply_run(update.run, step, before, scale, check, certain)
        if check and (problem := self._problem(update)):
            return problem
        targets, touched = self._begin(update)
        try:
            for number, gradient in update.parts.items():
                arena = self.layout.place[number][0]
                self._apply_part(self.arenas[arena], targets[arena], number, gradient, before, scale)
        finally:
            self._publish(targets, touched, step)
        return ""

    def look(self, run: Sequence[Array]) -> str:
        """The first variable that has NaN or infinity in a gradient of all of the shard, as a sentence; or ""."""
        good = all(_is_finite(memory, run[a]) for a, memory in self._trained)
        return "" if good else self._problem(Update(run, {}))

    def apply_mean(self, gradients: tuple[Array, ...], step: int) -> None:
        """`apply` of the mean of gradients of all of a shard with one arena, which were looked at."""
        (_, memory), *_ = self._trained
        if len(gradients) > MOST or not memory.small or memory.counts_differ:
            self._apply_run([Mean(gradients) if len(gradients) > 1 else gradients[0]], step, step - 1, 1.0, False)
            return
        with self._lock:
            index = memory.target(False) if self.leases_on else memory.current
            self._writing = index == memory.current
        try:
            if not self._block:
                memory.update_small(index, gradients, step - 1)
            for start in range(0, memory.arena.size if self._block else 0, self._block or 1):
                memory.update_small(index, gradients, step - 1, slice(start, start + self._block))
                self.runtime.preempt()
        finally:
            with self._lock:
                memory.applied += 1
                memory.wrote(index, _ALL)
                self._writing = False
                self.counter += 1
                self.step = step

    # all of the shard

    def _apply_run(
        self, run: Sequence[Array | Mean | Pieces], step: int, before: int, scale: float, check: bool,
        certain: Callable[[], None] | None = None,
    ) -> str:  # fmt: skip
        chosen: list[tuple[int, ArenaMemory, int]] = []
        with self._lock:
            for a, memory in self._trained:
                chosen.append((a, memory, memory.target(check) if self.leases_on else memory.current))
            self._writing = certain is not None or any(index == memory.current for _, memory, index in chosen)
        good = False
        try:
            if certain is not None and not check and all(_takes_pieces(memory) for _, memory, _ in chosen):
                certain()
            left = self._checked(chosen, run, before, scale) if check else chosen
            good = left is not None
            for a, memory, index in left or ():
                self._pass_over(memory, index, run[a], before, scale)
        finally:
            with self._lock:
                for _, memory, index in chosen:
                    if good:
                        memory.applied += 1
                        memory.wrote(index, _ALL)
                    elif index != memory.current:
                        memory.spoilt(index)
                self._writing = False
                if good:
                    self.counter += 1
                    self.step = step
        if good:
            return ""
        # A session that goes on writing in its memory may have made it finite again.
        return self._problem(Update(run, {})) or "the gradient has NaN or infinite values"

    def _checked(
        self, chosen: list[tuple[int, ArenaMemory, int]], run: Sequence[Array | Mean | Pieces], step: int, scale: float
    ) -> list[tuple[int, ArenaMemory, int]] | None:
        """What is still to be applied once all is known to be finite; None where it is not, and nothing has changed.

        What is only looked at comes first; then what finds out while it writes where nobody reads.
        """
        left, aside = [], []
        for one in chosen:
            a, memory, index = one
            if memory.looks_itself(index):
                aside.append(one)
            elif _is_finite(memory, run[a]):
                left.append(one)
            else:
                return None
        for a, memory, index in aside:
            gradient = run[a]
            gradient = Pieces(gradient.arrays) if isinstance(gradient, Pieces) else gradient  # a bad one is read again
            if not self._pass_over(memory, index, gradient, step, scale):
                return None
        return left

    def _pass_over(
        self, memory: ArenaMemory, index: int, gradient: Array | Mean | Pieces, step: int, scale: float
    ) -> bool:
        """Update all of an arena into buffer `index`; False for a gradient that was found not to be finite."""
        counts = memory.applied
        if isinstance(gradient, Pieces):
            if _takes_pieces(memory):
                return self._pass_pieces(memory, index, gradient, step, scale)
            gradient = gradient.array()
        if not memory.counts_differ:
            return self._pass(memory, index, 0, gradient, int(counts[0]) + 1, step, scale)
        for part, start, t in zip(memory.arena.parts, memory.arena.starts, counts, strict=True):
            self._pass(memory, index, start, cut(gradient, start, start + part.size), int(t) + 1, step, scale)
        return True

    def _pass_pieces(self, memory: ArenaMemory, index: int, gradient: Pieces, step: int, scale: float) -> bool:
        begin, t, good = 0, int(memory.applied[0]) + 1, True
        for pieces in gradient.taken(self.tuning.group_nbytes):
            starts = [*itertools.accumulate((piece.size for piece in pieces), initial=0)]

            def work(
                start: int, stop: int, begin: int = begin, pieces: list[Array] = pieces, starts: list[int] = starts
            ) -> bool:
                good = True
                for piece, at in zip(pieces, starts, strict=False):
                    cut = piece[max(0, start - at) : max(0, stop - at)]
                    if cut.size:
                        good &= self._pass(memory, index, begin + max(start, at), cut, t, step, scale)
                return good

            good &= memory.shared(starts[-1], work)
            begin += starts[-1]
            pieces.clear()
        return good

    # all of the shard, piece by piece

    def set_aside(self) -> dict[int, int] | None:
        """For each trained arena the number of a buffer that is for one update alone, until `publish_aside` or
        `take_back`; None where there are none, another update has them, or the optimizers want one pass."""
        aside: dict[int, int] = {}
        with self._lock:
            taken = any(buffer.aside for _, memory in self._trained for buffer in memory.buffers)
            for a, memory in self._trained:
                index = memory.set_aside() if self.leases_on and not taken else None
                if index is None:
                    break
                aside[a] = index
        if len(aside) == len(self._trained):
            return aside
        self.take_back(aside)
        return None

    def write(
        self, memory: ArenaMemory, index: int, start: int, gradient: Array | Mean, step: int, scale: float
    ) -> bool:
        """Update a range into a buffer that was set aside; False where it `looks_itself` and found it not finite."""
        return self._pass(memory, index, start, gradient, int(memory.applied[0]) + 1, step - 1, scale)

    def publish_aside(self, aside: Mapping[int, int], step: int) -> None:
        """What was written to these buffers is the next version."""
        with self._lock:
            for a, index in aside.items():
                memory = self.arenas[a]
                memory.buffers[index].aside = False
                memory.applied += 1
                memory.wrote(index, _ALL)
            self.counter += 1
            self.step = step

    def take_back(self, aside: Mapping[int, int]) -> None:
        """Nothing comes of what was written to these buffers."""
        with self._lock:
            for a, index in aside.items():
                self.arenas[a].buffers[index].aside = False

    # some of its parts

    def _begin(self, update: Update) -> tuple[dict[int, int], dict[int, list[tuple[int, int]]]]:
        """For each arena that the parts are of: the buffer to write, in place or aside, and the ranges in it."""
        targets: dict[int, int] = {}
        touched: dict[int, list[tuple[int, int]]] = {}
        for number in update.parts:
            a, start = self.layout.place[number]
            memory = self.arenas[a]
            size = memory.arena.parts[memory.places[number][0]].size
            touched.setdefault(a, []).append((start, start + size))
        with self._lock:
            for a in touched:
                targets[a] = self.arenas[a].target(False) if self.leases_on else self.arenas[a].current
                self._writing |= targets[a] == self.arenas[a].current
        for a, index in targets.items():
            if index != self.arenas[a].current:
                self.arenas[a].catch_up(index)
        return targets, touched

    def _publish(self, targets: dict[int, int], touched: dict[int, list[tuple[int, int]]], step: int) -> None:
        """The buffers that were written are the next version."""
        with self._lock:
            for a, index in targets.items():
                self.arenas[a].wrote(index, touched[a])
            self._writing = False
            self.counter += 1
            self.step = step

    def _apply_part(
        self, memory: ArenaMemory, index: int, number: int, gradient: Array | RowGradient, step: int, scale: float
    ) -> None:
        if memory.optimizer is None:
            return
        place, start = memory.places[number]
        memory.applied[place] += 1
        part, t = memory.arena.parts[place], int(memory.applied[place])
        if isinstance(gradient, RowGradient):
            memory.update_rows(index, part, start, gradient.rows, gradient.values, t, step, scale)
        else:
            self._pass(memory, index, start, gradient.reshape(-1), t, step, scale)

    def _pass(
        self, memory: ArenaMemory, index: int, start: int, gradient: Array | Mean, t: int, step: int, scale: float
    ) -> bool:
        """The fused kernel over a range; in the simulator in blocks, so that readers come in between."""
        if not self._block or memory.by_rows:
            return memory.update(index, start, gradient, t, step, scale)
        size = gradient.arrays[0].size if isinstance(gradient, Mean) else gradient.size
        good = True
        for at in range(0, size, self._block):
            good &= memory.update(index, start + at, cut(gradient, at, at + self._block), t, step, scale)
            self.runtime.preempt()
        return good

    def _problem(self, update: Update) -> str:
        """The first variable whose gradient is not finite, as a sentence; "" where there is none."""
        if update.run is not None:
            found = (not_finite(m.arena, m.on_host(g), 0) for a, m in self._trained for g in arrays_of(update.run[a]))
        else:
            found = (_part_not_finite(self.arenas[self.layout.place[n][0]], n, g) for n, g in update.parts.items())
        return next((problem for problem in found if problem), "")

    def close(self) -> None:
        """Another run epoch has begun: give the memory of GPUs back, and let the threads go."""
        for memory in self.arenas:
            memory.close()
        if self._crew is not None:
            self._crew.close()


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _check_rows(part: Part, rows: Array) -> None:
    if not row_kernels.rows_in_range(rows, part.shape[0]):
        raise ValueError(out_of_range(part.name, part.shape[0], rows))


def _takes_pieces(memory: ArenaMemory) -> bool:
    """Whether a gradient that came in pieces is applied as it is, and not put together before."""
    return not (memory.by_rows or memory.on_device or memory.counts_differ)


def _part_not_finite(memory: ArenaMemory, number: int, gradient: Array | RowGradient) -> str:
    if is_finite(gradient.values if isinstance(gradient, RowGradient) else gradient):
        return ""
    return f"the gradient of {memory.arena.parts[memory.places[number][0]].name} has NaN or infinite values"


def _is_finite(memory: ArenaMemory, gradient: Array | Mean | Pieces) -> bool:
    if isinstance(gradient, Pieces):
        return all(memory.is_finite(piece) for piece in gradient.arrays)
    return memory.is_finite(gradient)
