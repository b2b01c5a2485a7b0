"""A shard's memory: its arenas, its current version, holds on it, and the drafts of the next one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from dps.ps.store.arena import ArenaMemory
from dps.ps.store.draft import Draft
from dps.ps.store.gradients import Gradient, GradientPieces, GradientSum, RowGradient, not_finite
from dps.ps.store.hold import Hold
from dps.ps.store.memory import memory_of
from dps.ps.store.table import KeyedTable
from dps.ps.store.thread_pool import pool_of
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array
from dps.variables.plan import Part, ShardLayout

NOTHING = np.empty(0, np.uint8)


class Store:
    """The values, slots and version of one shard. One writer (the ps's thread), readers with holds."""

    def __init__(self, layout: ShardLayout, runtime: Runtime, device: str = "", threads: int = 1) -> None:
        """`device`: the device of variables whose placement names none: "GPU:0", else this process's memory. `threads`:
        how many share a long pass on the CPU; AUTO: as many as there are idle cores, see `pool_of`. Raises ConfigError
        for a GPU that cannot be used."""
        self.layout, self.runtime = layout, runtime
        shared = runtime if layout.nbytes >= runtime.tuning.shard_nbytes else None
        tuning = runtime.tuning
        self._pool = pool_of(threads, tuning.store)
        self.arenas = [memory_of(arena, shared, device, self._pool, tuning) for arena in layout.arenas]
        self.tables: Mapping[int, KeyedTable] = {part.index: KeyedTable(part) for part in layout.tables}
        """The keyed tables, by the indices of their parts."""
        self._trained = {a: memory for a, memory in enumerate(self.arenas) if memory.optimizer is not None}
        self.is_large = layout.nbytes >= tuning.store.large_pieces * tuning.piece_nbytes
        """Whether the shard has so many pieces that memory is saved (see `large_pieces`)."""
        self._looks_itself = bool(self._trained) and all(m.looks_itself for m in self._trained.values())
        self.on_device = any(memory.on_device for memory in self.arenas)
        self.counter = 0
        self.step = 0
        self.seen_step = 0
        """The largest step in the headers of pushes, where others count steps, too: rates follow it. It is no more than
        the pushes that were made."""

    # -- reading ----------------------------------------------------------------------------------------------

    def refresh(self, parts: list[int]) -> list[int] | None:
        """Make sure that the current version of these parts, or of all, can be leased: a GPU copies it out. For the
        ps's thread, which waits for that. Returns the numbers of the arenas to lease, None for all.
        """
        if not self.on_device:
            return None
        arenas = sorted({self.layout.place[part][0] for part in parts}) if parts else None
        for number in range(len(self.arenas)) if arenas is None else arenas:
            self.arenas[number].refresh()
        return arenas

    def hold(self, arenas: list[int] | None = None, sparing: bool = False) -> Hold | None:
        """Hold the current version; None if no buffer would remain free, or if it is on a GPU alone (see `refresh`).
        For the ps's thread, which writes a version without interruption: nobody takes a hold in between.

        `arenas`: only these, by number; what the hold has of the others is empty. `sparing`: not if the next update
        might have to make a third buffer; only for large shards.
        """
        numbers = range(len(self.arenas)) if arenas is None else arenas
        memories, sparing = [self.arenas[number] for number in numbers], sparing and self.is_large
        if not all(memory.may_lease(sparing) for memory in memories):
            return None
        buffers = [memory.buffers[memory.current] for memory in memories]
        values = [NOTHING] * len(self.arenas)
        for number, buffer in zip(numbers, buffers, strict=True):
            values[number] = _read_only(buffer.values)
        return Hold(self.counter, self.step, values, [], buffers)

    def hold_shared(self) -> Hold | None:
        """`hold` of all arenas for others on this machine, by the names of its memories; None, too, if they cannot read
        all of it in place."""
        buffers, names = [], []
        for memory in self.arenas:
            buffer = memory.buffers[memory.current]
            shared = buffer.memory
            if shared is None or not memory.may_lease():
                return None
            buffers.append(buffer)
            names.append(shared.name)
        return Hold(self.counter, self.step, (), names, buffers)

    def hold_draft(self, draft: Draft) -> Hold | None:
        """Hold the version that a reversible draft will be, for those who know which ranges of it are written.

        None if somebody reads the current version, or no second buffer would be left for the next update: memory for a
        third is not for this. And None on a GPU."""
        if self.on_device:
            return None
        if any(a.buffers[a.current].leases for a in self.arenas):
            return None
        if not all(self.arenas[a].may_lease(True, index) for a, index in draft.targets.items()):
            return None
        buffers = [memory.buffers[draft.targets.get(a, memory.current)] for a, memory in enumerate(self.arenas)]
        arrays = [_read_only(b.values) for b in buffers]
        return Hold(draft.counter, draft.step, arrays, [], buffers)

    def copy(self) -> Hold:
        """A copy of the current version, if it cannot be held. For the ps's thread."""
        return Hold(self.counter, self.step, [a.values.copy() for a in self.arenas], [])

    def averages(self) -> Hold:
        """Copies of the current moving averages, or of the values if no averages are kept. For the ps's thread."""
        return Hold(self.counter, self.step, [a.averaged() for a in self.arenas], [])

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
        """Copies of rows of a part, which are in range, shape (len(rows), ...), in `out` (len(rows), elements of one)
        where it is given."""
        index, start = self.layout.place[part.index]
        return self.arenas[index].gather(part, start, rows, out).reshape(len(rows), *part.shape[1:])

    def full_text(self, updates: Sequence[Gradient], now: int) -> str:
        """Why updates that are still to be applied find no room in a keyed table; "" if they do. `now`: the step by
        which rows expire."""
        for index, table in self.tables.items():
            found = [update.parts[index] for update in updates if index in update.parts]
            many = [gradient for gradient in found if isinstance(gradient, RowGradient)]
            if many and (text := table.full_text(many, now)):
                return text
        return ""

    @property
    def tables_nbytes(self) -> int:
        """Bytes that the values of all keyed tables may have, and their keys."""
        return sum(table.part.rows * (table.dim * table.dtype.itemsize + 8) for table in self.tables.values())

    def described_tables(self) -> dict[str, dict[str, int]]:
        """For people, of each keyed table here: its rows, how many it may have, the bytes that are in use, and what has
        happened to keys since the run epoch began."""
        return {
            table.part.spec.name: {
                "rows": table.count,
                "most": table.part.rows,
                "nbytes": table.nbytes,
                "counted": table.key_counts.keys if table.key_counts else 0,
                **table.counts,
            }
            for table in self.tables.values()
        }

    # -- writing, on the ps's thread -------------------------------------------------------------------------

    def fill_values(self, offset: int, data: Array) -> None:
        """Write bytes of the run at an offset, before the shard is published."""
        self.layout.check_range(offset, data.nbytes)
        for memory in self.arenas:
            arena = memory.arena
            if arena.offset <= offset < arena.offset + arena.nbytes:
                values = data.reshape(-1).view(np.uint8).view(arena.dtype)
                memory.fill_values((offset - arena.offset) // values.itemsize, values)

    def apply_update(
        self, update: Gradient, step: int, scale: float = 1.0, record: Callable[[int], None] = lambda counter: None
    ) -> str:
        """Make one update the next version, whole or not at all for every reader. "" when it was applied.

        `record(counter)` is called when it is certain that the update will be this version; nobody takes a hold between
        the call and the publication. An update that is not `checked` is checked here: if it has NaN or infinity, the
        first variable that has it comes back as a sentence, and the shard is as it was: values, slots, counts and
        version. So it is if a keyed table has no room for new keys.
        """
        if update.run is None and update.is_empty:
            record(self.counter)
            self.step = step
            return ""
        if self.tables and (full := self.full_text([update], max(self.step, step - 1))):
            return full
        run, values = update.run, update.values
        if not update.checked:
            if self._looks_itself and self._apply_looking(update, step, scale, record):
                return ""
            if problem := self.problem(update):
                return problem
        elif run is not None:  # what came in pieces was checked
            update.run = self._put_together(run)
        draft = self.open_draft(step, scale, update.parts if run is None else None, False, values or ())
        assert draft is not None, "an irreversible draft can always be opened"
        try:
            record(draft.counter)
            draft.write(update)
        except BaseException:
            draft.drop()
            raise
        draft.publish()
        return ""

    def _apply_looking(self, update: Gradient, step: int, scale: float, record: Callable[[int], None]) -> bool:
        """Apply an update to free buffers by passes that also check it. Returns False if it is not finite or no buffer
        is free; then nothing has changed.

        This takes one pass over memory instead of two. It may go once it brings less than 20 % for a push of the ResNet
        set in place (`benchmarks/two_commits.py --works W2 --sizes resnet --lanes shared`)."""
        if update.values or len(update.flats()) < len(self.arenas):
            return False
        draft = self.open_draft(step, scale, reversible=True)
        if draft is None:
            return False
        try:
            good = draft.write(update)
            if good:
                record(draft.counter)
                draft.publish()
            return good
        finally:
            draft.drop()

    def open_draft(
        self, step: int, scale: float = 1.0, parts: Collection[int] | None = None, reversible: bool = False,
        values: Collection[int] = (),
    ) -> Draft | None:  # fmt: skip
        """Begin the next version, step `step`: an update whose rate is multiplied by `scale`.

        `parts`: an update of these parts alone, by index; None: of all that is trained. `values`: parts that are set,
        trained or not. `reversible`: to free buffers; None if optimizers have slots, a GPU has the values, another
        such draft is open, or no free buffer would remain for others.
        """
        written = self._trained if parts is None and not values else self._written(parts, values)
        if reversible:
            free = {a: memory.reversible_target() for a, memory in written.items()}
            targets = {a: index for a, index in free.items() if index is not None}
            if len(targets) < len(free):
                return None
            for a, index in targets.items():
                buffer = self.arenas[a].buffers[index]
                buffer.drafted, buffer.missed = True, None
        else:
            targets = {a: memory.target() for a, memory in written.items()}
        if written is not self._trained:
            for a, index in targets.items():
                if index != self.arenas[a].current and (parts is not None or a not in self._trained):
                    self.arenas[a].catch_up(index)
        return Draft(self, targets, parts, step, scale, reversible, values)

    def _written(self, parts: Collection[int] | None, values: Collection[int]) -> dict[int, ArenaMemory]:
        """The arenas that an update of these parts and values writes, by number."""
        places = self.layout.place
        updated = None if parts is None else [places[n][0] for n in parts if n in places]  # not those of keyed tables
        written = dict(self._trained) if updated is None else {a: self.arenas[a] for a in updated}
        return written | {places[n][0]: self.arenas[places[n][0]] for n in values}

    def end_draft(self, draft: Draft, published: bool) -> None:
        """End a draft: the version that it wrote becomes the current one, or is dropped."""
        arenas, targets = self.arenas, draft.targets
        if draft.reversible:
            for a, index in targets.items():
                arenas[a].buffers[index].drafted = False
        if not published:
            return
        for a, index in targets.items():
            memory = arenas[a]
            if draft.parts is None and memory.optimizer is not None:
                memory.applied.together += 1
                memory.wrote(index, None)
            else:
                memory.wrote_parts(index, draft.parts or (), draft.values)
        self.counter, self.step = draft.counter, draft.step

    def _put_together(
        self, run: Sequence[Array | GradientPieces | GradientSum]
    ) -> Sequence[Array | GradientPieces | GradientSum]:
        """A run whose pieces are put together if a pass needs that. This is done before the update counts, because
        memory may be short."""
        for a, memory in self._trained.items():
            gradient = run[a]
            if isinstance(gradient, GradientPieces) and not memory.may_take_pieces:
                run = [*run[:a], gradient.array(), *run[a + 1 :]]
        return run

    def problem(self, update: Gradient) -> str:
        """The first variable whose gradient is not finite in a run, as a sentence; "" if there is none. Parts and
        pieces are checked when they arrive."""
        run: Sequence[Any] | None = update.run
        assert run is not None, "parts come checked"
        for a, memory in self._trained.items():
            for array in run[a].arrays if run[a].__class__ is GradientSum else (run[a],):
                if not memory.is_finite(array):
                    return not_finite(memory.arena, memory.on_host(array), 0)
        return ""

    def close(self) -> None:
        """Another run epoch has begun: free the memory on GPUs, and end the pool."""
        for memory in self.arenas:
            memory.close()
        if self._pool is not None:
            self._pool.close()


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
