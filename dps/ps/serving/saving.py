"""Saves checkpoints of one shard: copies it at the cut, and writes the copy to disk in a task of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dps.actors.ref import Sender
from dps.checkpoint import (
    Manifest,
    RowReader,
    SavedVariable,
    ShardHeader,
    TensorRun,
    applied_to,
    read_part,
    tensor_name,
    write_runs,
)
from dps.errors import CheckpointError
from dps.messages.runs import SaveShard, ShardCut, ShardSaved
from dps.process import config
from dps.ps.store.arena import ArenaMemory, rows_of
from dps.ps.store.store import Store
from dps.ps.store.table import KeyedTable, SavedTable
from dps.training.averages import SLOT
from dps.training.optimizers import Optimizer
from dps.transport.wire import Array
from dps.variables.plan import Plan
from dps.variables.saved import KEYS, STAMPS, counted_name, saved, saved_counted, saved_table, share_slots
from dps.variables.tables import codes_of, positions_of_part

if TYPE_CHECKING:
    from dps.actors.node import Node
    from dps.ps.shard import Shard


@dataclass
class _Save:
    copies: list[tuple[ArenaMemory, str | None, Array]] | None = None
    """Copies of the values and of each slot of each arena, flat."""
    tables: Sequence[SavedTable] = ()
    """Copies of the keyed tables."""
    cut: ShardCut | None = None
    cut_asked: Sender | None = None
    written_asked: Sender | None = None
    writing: bool = False
    answer: ShardSaved | CheckpointError | None = None


class Saving:
    """Saves a shard in two halves: the copy, at its cut, and the file, when all ps have made their copies."""

    def __init__(self, shard: Shard) -> None:
        self._shard, self.node = shard, shard.node
        self._saves: dict[str, _Save] = {}
        self._to_write: deque[tuple[str, _Save]] = deque()
        """Writes are made one after the other: two chiefs may ask for the same step, and the file must be the one that
        was answered last."""

    def answer_when_cut(self, sender: Sender, cut: str) -> None:
        """The chief asks to be told when the copy is made."""
        save = self._save(cut)
        save.cut_asked = sender
        if save.cut is not None:
            self._shard.gate.answer(sender, save.cut)

    def perform_cut(self, cut: str) -> None:
        """Copy values and slots as they are now."""
        save = self._save(cut)
        if save.cut is None:
            store = self._shard.store
            save.copies = [
                (memory, slot, memory.read(slot, 0, None)) for memory in store.arenas for slot in (None, *memory.slots)
            ]
            save.tables = [table.copy(store.step) for table in store.tables.values()]
            applied = [count for memory in store.arenas for count in memory.applied.counts()]
            tables = [
                [len(table.keys), table.updates, 0 if table.counted is None else len(table.counted[0])]
                for table in save.tables
            ]
            about = store.step, store.counter, applied
            save.cut = ShardCut(*about, *self._shard.results(), tables, self._shard.counted)
            if save.cut_asked is not None:
                self._shard.gate.answer(save.cut_asked, save.cut)

    def write_copy(self, sender: Sender, message: SaveShard) -> None:
        """The chief wants the copy in a checkpoint's folder. It is answered when the file is on disk."""
        save = self._save(message.cut)
        save.written_asked = sender
        if save.answer is not None:
            self.node.answer(sender, save.answer)
        elif save.copies is None:
            self.node.answer(sender, CheckpointError(f"{self.node.name} has no copy {message.cut!r} to write"))
        elif not save.writing:
            save.writing = True
            self._to_write.append((f"{message.checkpoint_dir}/{message.name}", save))
            if len(self._to_write) == 1:
                self._write_next()

    def _save(self, cut: str) -> _Save:
        if cut not in self._saves:
            while len(self._saves) >= self.node.runtime.tuning.serving.kept_saves:
                del self._saves[next(iter(self._saves))]
            self._saves[cut] = _Save()
        return self._saves[cut]

    def _write_next(self) -> None:
        folder, save = self._to_write[0]
        copies, tables = save.copies, save.tables
        assert copies is not None, "what is to be written was copied"
        plan, storage = self._shard.plan, self.node.runtime.storage
        index, count = plan.ps.index(self._shard.ps), len(plan.ps)

        def work() -> None:
            answer: ShardSaved | CheckpointError
            try:
                runs = [named(plan, *copy) for copy in copies]
                runs += [run for table in tables for run in table_runs(table)]
                file = write_runs(storage, folder, index, count, runs, {})
                answer = ShardSaved(file.file, file.nbytes, file.digest)
            except CheckpointError as error:
                answer = error
            except Exception as error:
                answer = CheckpointError(f"cannot write {folder}: {type(error).__name__}: {error}")
            self.node.post(lambda: self._written(save, answer))

        self.node.runtime.spawn(f"save {folder}", work)

    def _written(self, save: _Save, answer: ShardSaved | CheckpointError) -> None:
        save.answer, save.copies, save.tables = answer, None, ()
        self._to_write.popleft()
        if self._to_write:
            self._write_next()
        if save.written_asked is not None:
            self.node.answer(save.written_asked, answer)


@config.building()
def named(plan: Plan, memory: ArenaMemory, slot: str | None, values: Array) -> TensorRun:
    """The values of an arena, or one of its slots, under the names that its parts have in a checkpoint."""
    names, shapes = [], []
    for place, part in enumerate(memory.arena.parts):
        parts = plan.parts_of[part.variable]
        names.append(tensor_name(plan.variables[part.variable].name, part.index - parts[0].index, len(parts), slot))
        shapes.append(memory.extent(slot, place)[2])
    return TensorRun(names, shapes, values)


def table_runs(table: SavedTable) -> list[TensorRun]:
    """The rows of a keyed table, its slots and its keys, under the names that they have in a checkpoint."""
    spec, number = table.part.spec, table.part.number
    arrays = {(spec.name, slot): array for slot, array in [(None, table.values), *table.slots.items()]}
    arrays[spec.name, KEYS] = table.keys
    if table.stamps is not None:
        arrays[spec.name, STAMPS] = table.stamps
    if table.counted is not None:
        counted = counted_name(spec)
        arrays[counted, KEYS], arrays[counted, None] = table.counted
    return [
        TensorRun([tensor_name(name, number, len(spec.ps), slot)], [array.shape], array.reshape(-1))
        for (name, slot), array in arrays.items()
    ]


@config.building()
def restore(store: Store, plan: Plan, ps: int, node: Node, checkpoint_dir: str, manifest: Manifest) -> None:
    """Fill a shard from a checkpoint that may have been written with other parts and another number of ps. Raises
    CheckpointError if the checkpoint lacks a variable or has it in another shape or dtype.
    """
    storage, headers = node.runtime.storage, dict[str, ShardHeader]()
    for memory in store.arenas:
        found = [saved(plan.variables[part.variable], checkpoint_dir, manifest) for part in memory.arena.parts]
        goes_on = [share_slots(variable.optimizer, memory.arena.optimizer) for variable in found]
        counts = [
            applied_to(variable, part.row0, rows_of(part)) if same else 0
            for part, variable, same in zip(memory.arena.parts, found, goes_on, strict=True)
        ]
        memory.applied.restore_counts(counts)
        for slot in (None, *memory.slots):
            gathering = RowReader(storage, checkpoint_dir, manifest, slot, headers)
            for number, (part, variable) in enumerate(zip(memory.arena.parts, found, strict=True)):
                if slot is None or (slot in variable.slots and (goes_on[number] or slot == SLOT)):
                    start, stop, _ = memory.extent(slot, number)
                    got = gathering.add(variable, part.row0, rows_of(part), start)
                    if got != stop - start:
                        raise CheckpointError(
                            f"{slot} of {variable.name} has {got} elements in {checkpoint_dir}/{manifest.name}, wanted "
                            f"{stop - start}; use the optimizer that was saved, or another checkpoint_dir"
                        )
            for start, values in gathering.runs():
                if slot is not None and memory.optimizer is not None:
                    _check_slot(memory.optimizer, slot, values, f"{checkpoint_dir}/{manifest.name}")
                if slot is None:
                    memory.fill_values(start, values)
                else:
                    memory.write(slot, start, values)
    for table in store.tables.values():
        variable = saved_table(table.part.spec, checkpoint_dir, manifest)
        read = partial(read_part, storage, checkpoint_dir, manifest, variable.name, headers=headers)
        _restore_table(table, variable, read, f"{checkpoint_dir}/{manifest.name}", manifest.step)
        if table.key_counts is not None and (counted := saved_counted(table.part.spec, manifest)) is not None:
            read = partial(read_part, storage, checkpoint_dir, manifest, counted.name, headers=headers)
            _restore_counted(table, counted.rows, read)
    store.step = manifest.step


def _restore_table(
    table: KeyedTable, variable: SavedVariable, read: Callable[..., Array], where: str, step: int
) -> None:
    """Fill a keyed table with the rows of its slices, in blocks. `read(row0, rows, slot)` reads rows, whoever wrote
    them. `step`: of the checkpoint, which is that of rows that were saved without stamps."""
    part, block = table.part, max(1, BLOCK_NBYTES // (table.dim * table.dtype.itemsize))
    kept = [slot for slot in table.slots if slot in variable.slots]
    table.updates = max([saved_part.t for saved_part in variable.parts])
    for row in range(0, variable.rows, block):
        n = min(block, variable.rows - row)
        codes = codes_of(read(row, n, KEYS))
        here = positions_of_part(part, codes)
        if not here.size:
            continue
        if text := table.no_room_text(here.size):
            raise CheckpointError(f"{where}: {text}")
        slots = {slot: read(row, n, slot)[here] for slot in kept}
        for slot, rows in slots.items():
            _check_slot(table.optimizer, slot, rows, where)
            if rows.shape[1:] != table.slots[slot].shape[1:]:
                raise CheckpointError(
                    f"{slot} of {variable.name} has rows of shape {rows.shape[1:]} in {where}, wanted "
                    f"{table.slots[slot].shape[1:]}; use the optimizer that was saved, or another checkpoint_dir"
                )
        stamps = read(row, n, STAMPS)[here] if part.spec.expire_steps and STAMPS in variable.slots else step
        table.load_rows(codes[here], read(row, n)[here], slots.items(), stamps)


def _restore_counted(table: KeyedTable, rows: int, read: Callable[..., Array]) -> None:
    """Count the keys of its slices that were not admitted yet. `read(row0, rows, slot)` reads keys and counts."""
    assert table.key_counts is not None, "the caller has looked"
    block = BLOCK_NBYTES // 8
    for row in range(0, rows, block):
        n = min(block, rows - row)
        codes = codes_of(read(row, n, KEYS))
        here = positions_of_part(table.part, codes)
        table.key_counts.load(codes[here], read(row, n)[here])


BLOCK_NBYTES = 16 << 20
"""Bytes of values, or of keys, of a keyed table that are read at a time."""


def _check_slot(optimizer: Optimizer, slot: str, values: Array, where: str) -> None:
    """Raise CheckpointError for accumulators of 0 with an optimizer without epsilon, which would divide by their
    root."""
    if "accumulator" in slot and getattr(optimizer, "epsilon", 1.0) == 0 and not (values > 0).all():
        raise CheckpointError(
            f"{where} holds accumulators of 0 and the optimizer of this program has epsilon=0: it would divide by 0; "
            "use the optimizer that was saved, or another checkpoint_dir"
        )
