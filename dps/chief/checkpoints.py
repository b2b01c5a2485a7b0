"""Saves checkpoints: every ps copies its shard at the same cut and writes it; a manifest commits them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
"""How long a ps may take for a cut, and for the file of a small shard."""
SLOWEST_BYTES_PER_S = 10e6
"""How fast a disk writes at least: a large shard may take longer."""
MOST_SLOTS = 3
"""How many slots of its own shape a value may have, for `_save_timeout_s`."""
POSITION_NBYTES = 1 << 20
"""The longest position of the input that is kept with a checkpoint."""

Result = Callable[[str | Exception, int], None]
"""A callback that gets the checkpoint's name and step, or the error."""


class _Asked(NamedTuple):
    """A save that was asked for: what to call with its outcome, the position of the input, and who has asked."""

    then: Result
    position: bytes
    asker: Any


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
        self._now: _Asked | None = None
        """The save that goes on."""
        self._next: list[_Asked] = []
        self._last: tuple[Any, str, int] = None, "", -1
        """Who has asked for the last checkpoint, its name and its step."""
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

    def save(self, then: Result, position: bytes = b"", asker: Any = None) -> None:
        """Write a checkpoint, unless these versions of all shards are saved already. `then` is called on the node's
        thread. `position`: of the input, read before this call, so that these versions have what it counts as done; a
        ValueError if it is too long. `asker`: who asks, and under which number: a request that is sent again is the
        same, and gets the same checkpoint."""
        if len(position) > POSITION_NBYTES:
            most = f"at most {POSITION_NBYTES} are kept with a checkpoint"
            raise ValueError(f"the position of the input: got {len(position)} bytes, {most}")
        asked = _Asked(then, position, asker)
        if asker is not None and self._is_known(asked):
            return
        if self._busy:
            self._next.append(asked)
            return
        self._busy = True
        self._now = asked
        self._number += 1
        cut = f"{self.node.incarnation:x} {self._number}"  # an earlier chief may have counted in this epoch, too
        self._ask_all({ps: CutShard(self.epoch, cut) for ps in self.ps}, ShardCut, lambda cuts: self._write(cut, cuts))

    def _is_known(self, asked: _Asked) -> bool:
        """Whether this request came before. It is answered, now or later, in place of the one before."""
        last, name, step = self._last
        if last == asked.asker:
            asked.then(name, step)
            return True
        if self._now is not None and self._now.asker == asked.asker:
            self._now = asked
            return True
        for place, waiting in enumerate(self._next):
            if waiting.asker == asked.asker:
                self._next[place] = asked
                return True
        return False

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
        for asked in [*([] if self._now is None else [self._now]), *self._next]:
            asked.then(Aborted("the checkpoint was cut short by a new run epoch"), -1)
        self._now, self._next = None, []

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
        longest_s = max(self._save_timeout_s(ps, cuts[ps]) for ps in self.ps)
        self._ask_all(orders, ShardSaved, lambda files: self._commit(step, revision, cuts, files), longest_s)

    def _save_timeout_s(self, ps: int, cut: ShardCut) -> float:
        """How long a ps may take to write its shard: of its bytes at most, on a slow disk."""
        layout = self.plan.layouts[ps]
        rows = zip(layout.tables, cut.tables, strict=False)
        tables_nbytes = sum(count * 8 * (1 + table.row_size) for table, (count, *_) in rows)
        return SAVE_TIMEOUT_S + (1 + MOST_SLOTS) * (layout.nbytes + tables_nbytes) / SLOWEST_BYTES_PER_S

    def _keep_position(self, step: int) -> None:
        """These values are saved already; a newer position of the input goes with them, too."""
        assert self._now is not None
        try:
            keep_position(self.node.runtime.storage, self.checkpoint_dir, self.saved_name, self._now.position)
        except (DpsError, OSError) as error:
            self._fail_save(error)
            return
        self._finish_save(self.saved_name, step)

    def _commit(self, step: int, revision: int, cuts: dict[int, Any], files: dict[int, Any]) -> None:
        assert self._now is not None
        storage = self.node.runtime.storage
        try:
            manifest = self._manifest(step, revision, cuts, files)
            commit(storage, self.checkpoint_dir, manifest, self._now.position)
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

    def _ask_all(
        self, messages: dict[int, Any], wanted: type[Message], then: Callable[[dict[int, Any]], None],
        timeout_s: float = SAVE_TIMEOUT_S,
    ) -> None:  # fmt: skip
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
            self.node.ask(self.ps[ps], message, timeout_s, lambda answer, ps=ps: answered(ps, answer))  # type: ignore[misc]

    def _finish_save(self, name: str | Exception, step: int) -> None:
        told, self._now = self._now, None
        self._busy = False
        assert told is not None
        if isinstance(name, str):
            self._failure = ""
            self._last = told.asker, name, step
        told.then(name, step)
        if not self._ended:
            again, self._next = self._next, []
            for asked in again:
                self.save(*asked)

    def _fail_save(self, error: Exception) -> None:
        if str(error) != self._failure:
            log.warning("%s: the checkpoint failed: %s", self.node.name, error)
        self._failure = str(error)
        self._finish_save(error, -1)
