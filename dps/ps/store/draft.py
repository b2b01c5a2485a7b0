"""The next version of a shard in the making: it is written, and then published or dropped."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from dps.ps.store.arena import ArenaMemory
from dps.ps.store.gradients import Gradient, GradientPieces, GradientSum, RowGradient, cut, size_of
from dps.transport.wire import Array

if TYPE_CHECKING:
    from dps.ps.store.table import KeyedTable
    from dps.transport.endpoint import Runtime
    from dps.variables.plan import ShardLayout


class DraftListener(Protocol):
    """Is told which ranges of a draft are finished, and how it ends."""

    def wrote(self, offset: int, nbytes: int) -> None:
        """These bytes of the run have the values of the next version."""

    def published(self) -> None:
        """The draft is the current version."""

    def dropped(self) -> None:
        """The draft will never be a version."""


class Drafting(Protocol):
    """What a draft uses of the store that opened it."""

    arenas: list[ArenaMemory]
    tables: Mapping[int, KeyedTable]
    layout: ShardLayout
    runtime: Runtime
    counter: int
    step: int
    seen_step: int

    def end_draft(self, draft: Draft, published: bool) -> None: ...


class Draft:
    """One version between `Store.open_draft` and its publication. Used by the ps's thread.

    A *reversible* draft is written to free buffers and changes nothing else. So it may be written while its push still
    arrives, and dropped. An *irreversible* one may be written in place and change slots. So its push is checked and
    recorded first; then it is written and published without interruption, and nobody takes a hold in between.
    """

    listener: DraftListener | None = None
    _begun = _closed = False

    def __init__(
        self, store: Drafting, targets: Mapping[int, int], parts: Collection[int] | None, step: int, scale: float,
        reversible: bool, values: Collection[int] = (),
    ) -> None:  # fmt: skip
        """Made by `Store.open_draft`. `targets`: the number of the buffer that is written, for each arena that is
        written. `parts`: those that are updated, by index; None: all that are trained. `values`: those that are set."""
        self._store, self.targets, self.parts, self.step = store, targets, parts, step
        self.reversible, self.values = reversible, values
        self.counter = store.counter + 1
        """The version that it will be."""
        self._step_before = store.step
        self._rate = max(step - 1, store.seen_step), scale
        """The step that a schedule is a function of (0 for the first update), and the factor of the rate."""

    @property
    def is_valid(self) -> bool:
        """Whether the shard still has the version from which the draft is made."""
        store = self._store
        return not self._closed and (self.counter, self._step_before) == (store.counter + 1, store.step)

    def write_range(self, number: int, start: int, gradient: Array | GradientSum) -> None:
        """Write a range of arena `number`, from element `start` on. The gradient was checked."""
        memory = self._store.arenas[number]
        self._run_pass(memory, number, start, gradient, memory.applied.count_of(0) + 1)
        if self.listener is not None:
            item = memory.arena.itemsize
            self.listener.wrote(memory.arena.offset + start * item, size_of(gradient) * item)

    def write(self, update: Gradient) -> bool:
        """Write all of an update. Returns False if a pass that checks the gradient found that it is not finite."""
        self._begun, good = True, True
        if update.run is None:
            for index, of_part in update.parts.items():
                table = self._store.tables.get(index)
                if table is None:
                    self._write_part(index, of_part)
                elif isinstance(of_part, RowGradient):
                    now = max(self._store.step, self.step - 1)
                    rated_at, scale = self._rate
                    table.apply(of_part, self.step, scale, now, rated_at)
        else:
            runtime, arenas, run = self._store.runtime, self._store.arenas, update.run
            in_blocks = runtime.tuning.block_nbytes > 0
            for number, index in self.targets.items():
                memory, gradient = arenas[number], run[number]
                if memory.is_plain and not in_blocks and not isinstance(gradient, GradientPieces):
                    good &= memory.update(index, 0, gradient, memory.applied.together + 1, *self._rate)
                    runtime.charge_pass("update", memory.arena.nbytes, len(memory.slots))
                elif memory.optimizer is None:  # only values are set there
                    continue
                elif isinstance(gradient, GradientPieces):
                    self._write_pieces(memory, number, gradient)
                elif not (memory.counts and memory.counts_differ):
                    good &= self._run_pass(memory, number, 0, gradient, memory.applied.count_of(0) + 1)
                else:
                    for place, (part, start) in enumerate(zip(memory.arena.parts, memory.arena.starts, strict=True)):
                        own = cut(gradient, start, start + part.size)
                        self._run_pass(memory, number, start, own, memory.applied.count_of(place) + 1)
        if update.values:
            for index, value in update.values.items():
                self._set_part(index, value.reshape(-1))
        return good

    def publish(self) -> None:
        """Make the draft the current version."""
        self._closed = True
        self._store.end_draft(self, published=True)
        if self.listener is not None:
            self.listener.published()

    def drop(self) -> None:
        """Drop the draft. If it is irreversible and its writing has failed, it is published with the ranges that are
        written. After the draft was published or dropped this does nothing."""
        if self._closed:
            return
        if self._begun and not self.reversible:
            self.publish()
            return
        self._closed = True
        self._store.end_draft(self, published=False)
        if self.listener is not None:
            self.listener.dropped()

    def _write_pieces(self, memory: ArenaMemory, number: int, gradient: GradientPieces) -> None:
        begin, t = 0, memory.applied.count_of(0) + 1
        for pieces in gradient.taken(self._store.runtime.tuning.store.group_nbytes):
            starts = [*itertools.accumulate((piece.size for piece in pieces), initial=0)]

            def work(
                start: int, stop: int, begin: int = begin, pieces: list[Array] = pieces, starts: list[int] = starts
            ) -> bool:
                for piece, at in zip(pieces, starts, strict=False):
                    part = piece[max(0, start - at) : max(0, stop - at)]
                    if part.size:
                        self._run_pass(memory, number, begin + max(start, at), part, t)
                return True

            memory.share_pass(starts[-1], work)
            begin += starts[-1]
            pieces.clear()

    def _write_part(self, number: int, gradient: Array | RowGradient) -> None:
        a, start = self._store.layout.place[number]
        memory = self._store.arenas[a]
        place, _ = memory.places[number]
        part, t = memory.arena.parts[place], memory.applied.count_of(place) + 1
        if isinstance(gradient, RowGradient):
            index = self.targets[a]
            memory.update_rows(index, part, start, gradient.rows, gradient.values, t, *self._rate)
            self._store.runtime.charge_pass("update", gradient.values.nbytes, len(memory.slots))
            if memory.averages is not None:
                memory.follow_rows(index, part, start, gradient.rows, self.step)
        else:
            self._run_pass(memory, a, start, gradient.reshape(-1), t)

    def _set_part(self, number: int, value: Array) -> None:
        """Set values, whatever they were; in the simulator in blocks, as in `_run_pass`."""
        a, start = self._store.layout.place[number]
        memory, index, runtime = self._store.arenas[a], self.targets[a], self._store.runtime
        block = runtime.tuning.block_nbytes // 4 or max(1, value.size)
        for at in range(0, value.size, block):
            memory.set(index, start + at, value[at : at + block])
            runtime.preempt()

    def _run_pass(self, memory: ArenaMemory, number: int, start: int, gradient: Array | GradientSum, t: int) -> bool:
        """Run the kernel over a range; in the simulator in blocks, so that readers can run in between."""
        index, runtime = self.targets[number], self._store.runtime
        block = runtime.tuning.block_nbytes // 4
        if not block or memory.by_rows:
            good = memory.update(index, start, gradient, t, *self._rate)
            runtime.charge_pass("update", size_of(gradient) * memory.arena.itemsize, len(memory.slots))
        else:
            good = True
            for at in range(0, size_of(gradient), block):
                good &= memory.update(index, start + at, cut(gradient, at, at + block), t, *self._rate)
                nbytes = min(block, size_of(gradient) - at) * memory.arena.itemsize
                runtime.charge_pass("update", nbytes, len(memory.slots))
                runtime.preempt()
        if memory.averages is not None:
            memory.follow(index, start, size_of(gradient), self.step)
        return good
