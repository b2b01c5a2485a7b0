"""Saves checkpoints: every ps copies its shard at the same cut and writes it; a manifest commits them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dps.actors.answers import Done
from dps.actors.node import Node
from dps.actors.ref import Ref
from dps.checkpoint import (
    Manifest,
    SavedPart,
    SavedShard,
    SavedVariable,
    ShardFile,
    candidates,
    commit,
    folder_name,
    keep_position,
    load,
    parse_folder_name,
    retain,
)
from dps.chief.run import ago
from dps.errors import Aborted, CheckpointError, DpsError
from dps.messages.runs import CutShard, SaveShard, ShardCut, ShardSaved
from dps.process import config
from dps.process.telemetry import log
from dps.transport.message import Message
from dps.variables.plan import Plan
from dps.variables.saved import describe_counted, describe_table, describe_variable
from dps.variables.tables import TablePart

SAVE_TIMEOUT_S = 120.0
POSITION_NBYTES = 1 << 20
"""The longest position of the input that is kept with a checkpoint."""

Result = Callable[[str | Exception, int], None]
"""A callback that gets the checkpoint's name and step, or the error."""


def place_of(plan: Plan, part: TablePart) -> int:
    """The place of a part of a keyed table among those of its ps."""
    return plan.layouts[part.ps].tables.index(part)


class Checkpoints:
    """Saves one checkpoint at a time. Requests that arrive during a save wait until it is over.

    More than 12 attributes: seven are facts of the run epoch, which never change; the others are the save of now, or
    the last one.
    """

    def __init__(
        self,
        node: Node,
        epoch: int,
        plan: Plan,
        ps: dict[int, Ref],
        checkpoint_dir: str,
        keep: int,
        settings: dict[str, Any],
    ) -> None:
        self.node, self.epoch, self.plan, self.ps = node, epoch, plan, ps
        self.checkpoint_dir, self.keep, self.settings = checkpoint_dir, keep, settings
        self.saved_name, self.saved_at = "", 0.0
        """The newest checkpoint, or the one from which the run epoch began. `saved_at` is wall time; 0.0 is unknown."""
        self._versions: list[int] = []
        """The version of each shard in this checkpoint."""
        self._revision = 0
        self._number = 0
        self._busy = False
        self._ended = False
        self._now: list[Result] = []
        self._next: list[tuple[Result, bytes]] = []
        self._position = b""
        """The positions of the input for this checkpoint."""
        self._failure = ""
        """What the last save failed by, if it failed; a second try that fails alike is not logged."""
        self._old_stay = ""
        """Why old checkpoints could not be removed after the last save; likewise."""

    @property
    def is_busy(self) -> bool:
        return self._busy

    @property
    def saved_ago(self) -> str:
        """The age of the newest checkpoint as text; "" if it is not known."""
        return ago(self.node.runtime.wall() - self.saved_at) if self.saved_at else ""

    def save(self, then: Result, position: bytes = b"") -> None:
        """Write a checkpoint, unless these versions of all shards are saved already. `then` is called on the node's
        thread. `position`: of the input, read before this call, so that these versions have what it counts as done; a
        ValueError if it is too long."""
        if len(position) > POSITION_NBYTES:
            most = f"at most {POSITION_NBYTES} are kept with a checkpoint"
            raise ValueError(f"the position of the input: got {len(position)} bytes, {most}")
        if self._busy:
            self._next.append((then, position))
            return
        self._busy = True
        self._now, self._position = [then], position
        self._number += 1
        cut = f"{self.node.incarnation:x} {self._number}"  # an earlier chief may have counted in this epoch, too
        self._ask_all({ps: CutShard(self.epoch, cut) for ps in self.ps}, ShardCut, lambda cuts: self._write(cut, cuts))

    def find_saved(self) -> None:
        """Find the last checkpoint that another chief saved in this run epoch."""
        for name in candidates(self.node.runtime.storage, self.checkpoint_dir):
            epoch, _ = parse_folder_name(name) or (0, 0)
            manifest = self._load_manifest(name) if epoch == self.epoch else None
            if manifest is not None:
                self._set_newest(manifest)
                return

    def _set_newest(self, manifest: Manifest) -> None:
        """This is the newest checkpoint."""
        self.saved_name, self.saved_at, self._revision = manifest.name, manifest.saved_at, manifest.revision
        self._versions = [shard.version for shard in manifest.shards]

    def _load_manifest(self, name: str) -> Manifest | None:
        try:
            return load(self.node.runtime.storage, self.checkpoint_dir, name, verify=False)
        except CheckpointError:
            return None

    def stop_saving(self) -> None:
        """The run epoch is over; drop all pending saves."""
        self._ended = True
        for then in [*self._now, *(then for then, _ in self._next)]:
            then(Aborted("the checkpoint was cut short by a new run epoch"), -1)
        self._now, self._next = [], []

    def _write(self, cut: str, cuts: dict[int, Any]) -> None:
        step = sum(cut.counted for cut in cuts.values())
        revision = 0
        if self.saved_name == folder_name(step, self.epoch, self._revision):
            if self._versions == [cuts[ps].counter for ps in self.plan.ps]:
                self._keep_position(step)
                return
            revision = self._revision + 1
        name = folder_name(step, self.epoch, revision)
        orders: dict[int, Message] = {ps: SaveShard(self.epoch, cut, self.checkpoint_dir, name) for ps in self.ps}
        self._ask_all(orders, ShardSaved, lambda files: self._commit(step, revision, cuts, files))

    def _keep_position(self, step: int) -> None:
        """These values are saved already; a newer position of the input goes with them, too."""
        try:
            keep_position(self.node.runtime.storage, self.checkpoint_dir, self.saved_name, self._position)
        except (DpsError, OSError) as error:
            self._fail_save(error)
            return
        self._finish_save(self.saved_name, step)

    def _commit(self, step: int, revision: int, cuts: dict[int, Any], files: dict[int, Any]) -> None:
        storage = self.node.runtime.storage
        try:
            manifest = self._manifest(step, revision, cuts, files)
            commit(storage, self.checkpoint_dir, manifest, self._position)
        except (DpsError, ValueError, OSError) as error:
            self._fail_save(error)
            return
        self._set_newest(manifest)
        self._remove_old()
        self.node.runtime.record("saved", name=manifest.name, epoch=self.epoch, step=step)
        log.info("%s: saved %s/%s", self.node.name, self.checkpoint_dir, manifest.name)
        self._finish_save(manifest.name, step)

    def _remove_old(self) -> None:
        """Remove all checkpoints but the last few. The newest counts, also where that fails."""
        try:
            retain(self.node.runtime.storage, self.checkpoint_dir, self.keep)
            self._old_stay = ""
        except (DpsError, ValueError, OSError) as error:
            if str(error) != self._old_stay:
                log.warning("%s: older checkpoints than the last %d stay: %s", self.node.name, self.keep, error)
            self._old_stay = str(error)

    @config.building()
    def _manifest(self, step: int, revision: int, cuts: dict[int, Any], files: dict[int, Any]) -> Manifest:
        applied: dict[int, int] = {}
        for ps, layout in self.plan.layouts.items():
            here = [part.index for arena in layout.arenas for part in arena.parts]
            applied.update(zip(here, cuts[ps].applied, strict=True))
        shard_of, alike = {ps: i for i, ps in enumerate(self.plan.ps)}, dict[Any, SavedVariable]()
        variables = []
        for spec, parts in zip(self.plan.variables, self.plan.parts_of, strict=True):
            saved = [(p.row0, p.shape[0] if p.shape else 1, shard_of[p.ps], applied[p.index]) for p in parts]
            key = spec.shape, spec.dtype, id(spec.optimizer), *saved
            found = alike.get(key)  # very many variables may have the same parts
            if found is None:
                found = alike[key] = describe_variable(spec, [SavedPart(i, *part) for i, part in enumerate(saved)])
            variables.append(found.named(spec.name))
        for table, table_parts in zip(self.plan.tables, self.plan.table_parts.values(), strict=True):
            cut = [(cuts[own.ps].tables[place_of(self.plan, own)], shard_of[own.ps]) for own in table_parts]
            variables.append(describe_table(table, [(rows, shard, updates) for (rows, updates, _), shard in cut]))
            if table.admit > 1:
                variables.append(describe_counted(table, [(counted, shard) for (_, _, counted), shard in cut]))
        shards = tuple(
            SavedShard(ShardFile(files[ps].file, files[ps].nbytes, files[ps].digest), cuts[ps].counter)
            for ps in self.plan.ps
        )
        about = self.settings, self.node.runtime.wall(), self._is_even(cuts)
        return Manifest(step, self.epoch, shards, tuple(variables), *about, revision, dict(self.plan.tied))

    def _is_even(self, cuts: dict[int, Any]) -> bool:
        """Whether all shards hold the same pushes; in async mode each was copied at its own version. The digest tells
        of a push that only some have applied: of a session that ended on its way, or dropped by one ps alone. Where
        another ps than the step ps counts pushes, the same numbers are not always the same pushes."""
        first, *others = ((cut.pushes, cut.digest) for cut in cuts.values())
        apart = any(cut.counted for ps, cut in cuts.items() if ps != self.plan.ps[0])
        return not apart and all(pushes == first for pushes in others)

    def _ask_all(self, messages: dict[int, Any], wanted: type[Message], then: Callable[[dict[int, Any]], None]) -> None:
        answers: dict[int, Message] = {}
        failed = False

        def answered(ps: int, answer: Message | Exception) -> None:
            nonlocal failed
            if failed or self._ended:
                return
            if isinstance(answer, Exception):
                failed = True
                self._fail_save(answer)
            elif isinstance(answer, wanted | Done):
                answers[ps] = answer
                if len(answers) == len(messages):
                    then(answers)

        for ps, message in messages.items():
            self.node.ask(self.ps[ps], message, SAVE_TIMEOUT_S, lambda answer, ps=ps: answered(ps, answer))  # type: ignore[misc]

    def _finish_save(self, name: str | Exception, step: int) -> None:
        told, self._now = self._now, []
        self._busy = False
        if isinstance(name, str):
            self._failure = ""
        for then in told:
            then(name, step)
        if not self._ended:
            again, self._next = self._next, []
            for then, position in again:
                self.save(then, position)

    def _fail_save(self, error: Exception) -> None:
        if str(error) != self._failure:
            log.warning("%s: the checkpoint failed: %s", self.node.name, error)
        self._failure = str(error)
        self._finish_save(error, -1)
