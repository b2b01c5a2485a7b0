"""The run as the chief knows it: plan and settings from the first session, and the journal beside its checkpoints."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from dps.checkpoint import (
    Journal,
    JournalState,
    Manifest,
    Storage,
    candidates,
    last_epoch,
    load,
    newest_to_begin,
    newest_whole,
    parse_folder_name,
)
from dps.chief.members import RunMembers
from dps.errors import CheckpointError, ConfigError
from dps.process.telemetry import LOSE_LESS, log
from dps.training import update_modes as update
from dps.variables.plan import Plan
from dps.variables.saved import check_saved, left_out

RESERVED = 1000
"""How many incarnations the journal reserves in advance, so that none is reused after a time of failed writes."""


def ago(seconds: float) -> str:
    """An age as text for people; never below 0, even if clocks differ."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


@dataclass
class Run:
    """One run. The current run epoch began from `step` and `restore` (a checkpoint's name, "" for none). `saved_at` is
    the wall time of that checkpoint, 0.0 if it is not known."""

    plan: Plan
    settings: dict[str, Any]
    checkpoint_dir: str
    restore: str = ""
    step: int = 0
    wanted: str = ""
    """A checkpoint that a session asked to restore, once."""
    even: bool = True
    """Whether all shards of that checkpoint hold the same pushes."""
    trained: bool = False
    """Whether sessions have trained in this run, under this chief or another."""
    saved_at: float = 0.0

    def begin_from(self, storage: Storage) -> int:
        """Choose the checkpoint to begin from: the requested one, else the newest whole one; returns steps lost.

        Raises CheckpointError if that checkpoint holds another model, or if there are some and none is whole."""
        before, self.restore, self.saved_at = self.step, "", 0.0
        manifest = self._manifest(storage) if self.checkpoint_dir else None
        if manifest is not None:
            check_saved(self.plan, self.checkpoint_dir, manifest)
            if text := left_out(self.plan, self.checkpoint_dir, manifest):
                log.warning("%s", text)
            self.restore, self.step, self.saved_at = manifest.name, manifest.step, manifest.saved_at
            self.even = manifest.even or len(manifest.shards) == 1
        return max(0, before - self.step)

    def begins(self, lost: int, wall_s: float) -> str:
        """A text for people: from which checkpoint the run epoch begins, and how to lose fewer steps next time."""
        age = f", saved {ago(wall_s - self.saved_at)}" if self.saved_at else ""
        steps = "step" if lost == 1 else "steps"
        return f"{self.restore}{age}" + (f", at least {lost} {steps} lost; {LOSE_LESS}" if lost > 0 else "")

    def _manifest(self, storage: Storage) -> Manifest | None:
        wanted, self.wanted = self.wanted, ""
        if wanted:
            try:
                return load(storage, self.checkpoint_dir, wanted)
            except CheckpointError as error:
                log.error("%s", error)
        choose = newest_whole if self.trained else newest_to_begin
        return choose(storage, self.checkpoint_dir, log.warning)


def read_journal(storage: Storage, checkpoint_dir: str, members: RunMembers, same_run: bool = True) -> int:
    """Read an earlier chief's journal into `members`; returns the highest run epoch that was ever used.

    `same_run`: this chief continues that chief's run, if it had not ended. Otherwise only the numbers are used.
    """
    epoch = last_epoch(storage, checkpoint_dir)
    state = Journal(storage, checkpoint_dir).load()
    if state is None:
        return epoch
    members.next_incarnation = max(members.next_incarnation, state.next_incarnation)
    members.published = max(members.published, int(state.settings.get("published", 0)))
    members.run = str(state.settings.get("run") or members.run)
    if same_run and state.settings.get("ended") is False:
        members.has_ended, members.expected_tickets = state.has_ended, dict(state.tickets)
        took_part = [name for name in state.members if name.startswith("worker:")]
        members.joined = list(dict.fromkeys([*members.joined, *took_part]))
        for name in state.settings.get("came", ()):
            members.mark_come(name)
        for name in state.finished:
            members.mark_finished_before(name)
        for name in state.given_up:
            members.give_up(name)
    return max(epoch, state.run_epoch)


def has_ended(storage: Storage, checkpoint_dir: str, epoch: int) -> bool:
    """Whether the journal says that the run ended in this run epoch, with everything saved. False if it cannot be
    read."""
    state = None
    if checkpoint_dir:
        with contextlib.suppress(CheckpointError):
            state = Journal(storage, checkpoint_dir).load()
    return state is not None and state.run_epoch == epoch and state.settings.get("ended") is True


def newest_name(storage: Storage, checkpoint_dir: str) -> str:
    """The newest checkpoint with a readable manifest, or ""; its shards are not checked."""
    with contextlib.suppress(CheckpointError):
        for name in candidates(storage, checkpoint_dir):
            with contextlib.suppress(CheckpointError):
                return load(storage, checkpoint_dir, name, verify=False).name
    return ""


def step_of(name: str) -> int:
    """The step of a checkpoint, by its name; 0 for none."""
    return (parse_folder_name(name) or (0, 0))[1]


def write_journal(storage: Storage, checkpoint_dir: str, epoch: int, members: RunMembers, ended: bool) -> None:
    """Write run epoch, members and ended incarnations. Raises CheckpointError if the disk refuses."""
    live = {member.name: incarnation for incarnation, member in members.live.items()}
    last = members.next_incarnation - 1
    spans: list[tuple[int, int]] = []
    for incarnation in range(1, last + 1):
        if incarnation in members.live:
            continue
        if spans and spans[-1][1] == incarnation - 1:
            spans[-1] = (spans[-1][0], incarnation)
        else:
            spans.append((incarnation, incarnation))
    settings = {
        "ended": ended, "came": sorted(members.known_to_have_come()), "run": members.run,
        "published": members.published,
    }  # fmt: skip
    tickets = {member.name: member.ticket for member in members.live.values() if member.ticket}
    done = tuple(members.finished), settings, tuple(members.given_up), tickets
    state = JournalState(epoch, last + 1 + RESERVED, tuple(spans), live, *done)
    Journal(storage, checkpoint_dir).save(state)


class Agreement:
    """The update mode, set by the first task that gives one: a flag of a ps or the chief, or the first session."""

    def __init__(self, mode: dict[str, Any] | None) -> None:
        self._mode, self._said_by = mode, "the chief"

    def mode(self, name: str, wanted: dict[str, Any] | None) -> dict[str, Any]:
        """The run's update mode, after the task `name` has given `wanted`; async if no task gives one.

        Raises ConfigError if another mode was given before.
        """
        if wanted and self._mode and wanted != self._mode:
            raise ConfigError(
                f"{name} wants {update.describe(wanted)}, {self._said_by} has {update.describe(self._mode)}; "
                "leave one of them out or give both the same"
            )
        if wanted and not self._mode:
            self._mode, self._said_by = wanted, name
        return self._mode or update.to_wire(update.Async())


def check_fits(name: str, plan: dict[str, Any], settings: dict[str, Any], run_plan: Plan, run: dict[str, Any]) -> None:
    """Raise ConfigError if a later session's layout or settings differ from those of the run; {} fits any run."""
    if plan and (difference := Plan.from_wire(plan).differs(run_plan)):
        raise ConfigError(f"{name} does not fit the run: {difference}; give all workers the same model and optimizer")
    for key in ("update", "durability", "checkpoint_dir"):
        wanted, has = settings.get(key), run.get(key)
        if wanted and wanted != has:
            texts = [update.describe(v) if key == "update" and v else repr(v) for v in (wanted, has)]
            raise ConfigError(f"{name} wants {key} {texts[0]}; the run has {texts[1]}: give the same, or leave it out")
