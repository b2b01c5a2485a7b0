"""Checkpoints of one shard: a copy at the cut, written to disk beside the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dps.actors.ref import Sender
from dps.checkpoint import Manifest, part_t, read_part, tensor_name, write_shard
from dps.errors import CheckpointError
from dps.protocol import SaveShard, ShardCut, ShardSaved
from dps.ps.store import Store
from dps.transport.wire import Array
from dps.variables.plan import Part, Plan

if TYPE_CHECKING:
    from dps.actors.system import Node

KEPT = 2
"""Finished or unfinished saves that are remembered, for a chief that asks again."""


@dataclass
class _Save:
    tensors: dict[str, Array] | None = None
    cut: ShardCut | None = None
    cut_asked: Sender | None = None
    written_asked: Sender | None = None
    writing: bool = False
    answer: ShardSaved | CheckpointError | None = None


class Saving:
    """A checkpoint of a shard has two halves: the copy, at its cut, and the file, when all copies are made."""

    def __init__(self, store: Store, plan: Plan, ps: int, node: Node) -> None:
        self.store, self.plan, self.ps, self.node = store, plan, ps, node
        self._saves: dict[str, _Save] = {}

    def ask_cut(self, sender: Sender, cut: str) -> None:
        """The chief wants to know when the copy is made."""
        save = self._save(cut)
        save.cut_asked = sender
        if save.cut is not None:
            self.node.answer(sender, save.cut)

    def cut(self, cut: str) -> None:
        """Copy values and slots as they are now."""
        save = self._save(cut)
        if save.cut is None:
            save.tensors = dict(self._tensors())
            applied = [int(t) for memory in self.store.arenas for t in memory.applied]
            save.cut = ShardCut(self.store.step, self.store.counter, applied)
            if save.cut_asked is not None:
                self.node.answer(save.cut_asked, save.cut)

    def write(self, sender: Sender, message: SaveShard) -> None:
        """The chief wants the copy in a checkpoint's folder; it is answered when the file is on disk."""
        save = self._save(message.cut)
        save.written_asked = sender
        if save.answer is not None:
            self.node.answer(sender, save.answer)
        elif save.tensors is None:
            self.node.answer(sender, CheckpointError(f"{self.node.name} has no copy {message.cut!r} to write"))
        elif not save.writing:
            self._write(f"{message.checkpoint_dir}/{message.name}", save, save.tensors)

    def _save(self, cut: str) -> _Save:
        if cut not in self._saves:
            while len(self._saves) >= KEPT:
                del self._saves[next(iter(self._saves))]
            self._saves[cut] = _Save()
        return self._saves[cut]

    def _tensors(self) -> list[tuple[str, Array]]:
        found: list[tuple[str, Array]] = []
        for memory in self.store.arenas:
            for place, part in enumerate(memory.arena.parts):
                for slot in (None, *memory.slots):
                    start, stop, shape = memory.extent(slot, place)
                    found.append((self._name(part, slot), memory.read(slot, start, stop).reshape(shape)))
        return found

    def _name(self, part: Part, slot: str | None = None) -> str:
        parts = self.plan.parts_of[part.variable]
        return tensor_name(self.plan.variables[part.variable].name, parts.index(part), len(parts), slot)

    def _write(self, folder: str, save: _Save, tensors: dict[str, Array]) -> None:
        save.writing = True
        index, count, storage = self.plan.ps.index(self.ps), len(self.plan.ps), self.node.runtime.storage

        def work() -> None:
            answer: ShardSaved | CheckpointError
            try:
                file = write_shard(storage, folder, index, count, tensors, {})
                answer = ShardSaved(file.file, file.nbytes, file.digest)
            except CheckpointError as error:
                answer = error
            except Exception as error:
                answer = CheckpointError(f"cannot write {folder}: {type(error).__name__}: {error}")
            self.node.post(lambda: self._written(save, answer))

        self.node.runtime.spawn(f"save {folder}", work)

    def _written(self, save: _Save, answer: ShardSaved | CheckpointError) -> None:
        save.answer, save.tensors = answer, None
        if save.written_asked is not None:
            self.node.answer(save.written_asked, answer)


def restore(store: Store, plan: Plan, ps: int, node: Node, checkpoint_dir: str, manifest: Manifest) -> None:
    """Fill a shard from a checkpoint that may have been written with other parts and another number of ps.

    Raises CheckpointError where the checkpoint lacks a variable or has it in another shape or dtype.
    """
    storage, headers = node.runtime.storage, dict[str, object]()
    for memory in store.arenas:
        for number, (part, start) in enumerate(zip(memory.arena.parts, memory.arena.starts, strict=True)):
            spec = plan.variables[part.variable]
            rows = part.shape[0] if part.shape else 1
            saved = manifest.variable(spec.name)
            if tuple(saved.shape) != spec.shape or np.dtype(saved.dtype) != np.dtype(spec.dtype):
                raise CheckpointError(
                    f"{spec.name} is {saved.dtype} {tuple(saved.shape)} in {checkpoint_dir}/{manifest.name} and "
                    f"{np.dtype(spec.dtype).name} {spec.shape} in this program; use another checkpoint_dir"
                )

            def read(slot: str | None, name: str = spec.name, row0: int = part.row0, rows: int = rows) -> Array:
                return read_part(storage, checkpoint_dir, manifest, name, row0, rows, slot, headers).reshape(-1)  # type: ignore[arg-type]

            memory.write(None, start, read(None))
            for slot in memory.slots:
                if slot in saved.slots:
                    memory.write(slot, memory.extent(slot, number)[0], read(slot))
            memory.applied[number] = part_t(manifest, spec.name, part.row0, rows)
    store.step = manifest.step
