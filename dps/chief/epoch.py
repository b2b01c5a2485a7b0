"""One run epoch: gives each ps its shard, restored or with first values. It ends with the run or with a lost ps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dps.actors.authorization import digest
from dps.actors.node import Node
from dps.actors.ref import Ref
from dps.chief.checkpoints import Checkpoints
from dps.chief.cluster import KnownNode
from dps.chief.members import EpochRoster, RunMembers
from dps.chief.run import Run
from dps.chief.sessions import ClientSession
from dps.errors import CheckpointError, ConfigError, DeadlineExceeded
from dps.messages.runs import CONFIGURE, HOLD, INITIALISE, RUN, SETTLE, Configure, Configured, SessionOpened
from dps.messages.sessions import PS
from dps.training.update_modes import Async, from_wire
from dps.transport.message import Message
from dps.variables.plan import as_applied


@dataclass
class _Reached:
    """The highest step of one run epoch that any task has reported."""

    epoch: int
    step: int
    silent: set[int] = field(default_factory=set)
    """Sessions that took part when the epoch ended, or were lost before, and have not reported their step since."""
    unknown: bool = False
    """Whether another chief led the epoch. Then the last steps of closed sessions are not known."""
    counted: bool = False
    """Whether its step ps has reported the last step."""

    def record_step(self, session: int, step: int) -> None:
        self.step = max(self.step, step)
        self.silent.discard(session)


class LostSteps:
    """Counts the steps of the current run epoch, and of the last epoch that trained and is over.

    The number for the latter is certain once its step ps has reported its step, or all of its sessions have: those that
    closed before, and those that took part at its end. A lost session can no longer report.
    """

    def __init__(self) -> None:
        self._now: _Reached | None = None
        self._ended: _Reached | None = None

    def begin_epoch(self, epoch: int, step: int, unknown: bool = False) -> None:
        """Note that a run epoch trains, from this step on. `unknown`: another chief began it."""
        self._now = _Reached(epoch, step, unknown=unknown)

    def end_epoch(self, sessions: Iterable[int]) -> None:
        """Note that the current run epoch is over; these sessions took part."""
        if self._now is not None:
            self._now.silent.update(sessions)
            self._ended, self._now = self._now, None

    def add_lost(self, session: int) -> None:
        """Note that a session of the current run epoch was lost, with the steps that only it was told of."""
        if self._now is not None:
            self._now.silent.add(session)

    def record_close(self, session: int, epoch: int, step: int) -> None:
        """Note that a session has closed, at this step of this run epoch."""
        for reached in (self._ended, self._now):
            if reached is not None:
                reached.record_step(session, step if reached.epoch == epoch else 0)

    def record_join(self, session: int, epoch: int, step: int) -> None:
        """Note that a session joins that had reached this step of this run epoch."""
        if self._ended is None and self._now is None and epoch:
            self._ended = _Reached(epoch, step, unknown=True)
        if self._ended is not None and self._ended.epoch == epoch:
            self._ended.record_step(session, step)

    def record_last_step(self, epoch: int, step: int) -> None:
        """Note the last step that the step ps of a finished run epoch reports."""
        if self._ended is not None and self._ended.epoch == epoch:
            self._ended.step, self._ended.counted = max(self._ended.step, step), True

    @property
    def reached(self) -> int:
        """The highest known step of the last finished run epoch; 0 if there is none."""
        return 0 if self._ended is None else self._ended.step

    def is_certain(self, epoch: int) -> bool:
        """Whether `reached` is certain for a session whose last run epoch is `epoch`. Pushes whose result no session
        received are not counted. What an earlier chief was told of epochs before the current one is not known."""
        ended, now = self._ended, self._now
        if ended is None and now is not None and now.unknown:
            return epoch in (0, now.epoch)
        return ended is None or (ended.epoch == epoch and (ended.counted or not (ended.unknown or ended.silent)))


CONFIGURE_S = 120.0
OVER = "over"


class EpochOwner(Protocol):
    """The object that leads from one run epoch to the next. An epoch reports its events to it."""

    def applied_pushes(self, incarnation: int) -> list[list[Any]]:
        """What the values have of the pushes of an incarnation that has ended, as in SessionOpened."""

    def choose_initialiser(self) -> ClientSession | None:
        """The session that should send the first values; None if every session with values is gone."""

    def deserted(self) -> None:
        """No session is left that could send first values."""

    def begun(self) -> None:
        """The epoch trains now."""

    def heard(self) -> None:
        """A ps has received a newer list of members."""

    def ended(self, ps: int, pushes: list[list[Any]]) -> None:
        """A ps says what became of the pushes of sessions that have ended, as in MembersKnown."""

    def forgotten(self, ps: int) -> None:
        """A ps no longer serves the epoch that it had accepted."""

    def unfit(self, error: Exception) -> None:
        """The run cannot be set up as its sessions want it."""

    def broken(self, reason: str) -> None:
        """The run cannot continue."""


class Epoch:
    """From `configure_ps` to `end_epoch`. After that, and after `stop_admitting`, late answers do nothing.

    More than 12 attributes: eight are facts of the epoch, which never change; the others are its phase and its parts.
    """

    def __init__(
        self, node: Node, number: int, run: Run, nodes: Mapping[int, KnownNode], members: RunMembers, losses: LostSteps,
        owner: EpochOwner,
    ) -> None:  # fmt: skip
        """`nodes`: the plan's ps; their addresses do not change during the epoch."""
        self.node, self.number, self.run, self._members, self._owner = node, number, run, members, owner
        self._losses = losses
        self._addresses = [[task, known.told] for task, known in nodes.items()]
        self._tickets = [[known.ticket, f"ps:{task}"] for task, known in nodes.items() if known.ticket]
        self._opener = node.runtime.secret()
        """What a session brings with the first values, to prove that the chief asked it for them."""
        self.refs = {task: Ref(nodes[task].address, PS) for task in run.plan.ps}
        self._configured: set[int] = set()
        self._progress: dict[int, str] = {}
        """What ps say that are still making first values."""
        self.phase = CONFIGURE
        self.resumed = False
        """Whether another chief began this epoch."""
        self.initialiser: int | None = None
        """The session that was asked for the first values."""
        self.checkpoints: Checkpoints | None = None
        """None if the run has no checkpoint_dir."""
        self.roster: EpochRoster | None = None
        """None until the epoch trains."""
        self._held: Callable[[], None] | None = None
        """Called when all ps know that nobody trains."""

    # -- from the first message to training ---------------------------------------------------------------------

    def configure_ps(self) -> None:
        """Give every ps its shard of the plan."""
        for task in self.run.plan.ps:
            self._configure_one(task)

    def _configure_one(self, task: int) -> None:
        run = self.run
        message = Configure(
            self.number, run.plan.to_wire(), task, run.settings, self._addresses, run.checkpoint_dir, run.restore,
            self._tickets, digest(self._opener),
        )  # fmt: skip

        before = self._progress.get(task, "")

        def configured(answer: Message | Exception) -> None:
            if self.phase != CONFIGURE:
                return
            told = self._progress.get(task, "")
            if isinstance(answer, DeadlineExceeded) and told != before:  # it has made some values in this time
                self._configure_one(task)
            elif isinstance(answer, Configured):
                self._configured.add(task)
                self._losses.record_last_step(answer.ended, answer.reached)
                if not self._unconfigured():
                    self._all_configured()
            elif isinstance(answer, ConfigError | CheckpointError):  # a missing GPU, another model
                self._owner.unfit(type(answer)(f"ps:{task}: {answer}"))
            else:
                self._owner.broken(f"ps:{task} cannot take run epoch {self.number}: {answer}")

        def makes(told: str) -> None:
            self._progress[task] = told

        self.node.ask(self.refs[task], message, CONFIGURE_S, configured, waits=makes)

    def resume_epoch(self) -> None:
        """Continue an epoch that another chief began and all ps serve already."""
        self.resumed = True
        self._configured.update(self.run.plan.ps)
        self._open_checkpoints()
        if self.checkpoints is not None:
            self.checkpoints.find_saved()
        self._train()

    def _unconfigured(self) -> list[int]:
        return [task for task in self.run.plan.ps if task not in self._configured]

    def _all_configured(self) -> None:
        run = self.run
        self._open_checkpoints()
        if run.restore:
            self._train()
            return
        self.phase = INITIALISE
        run.step = 0
        chosen = self._owner.choose_initialiser()
        if chosen is None:
            self._owner.deserted()
            return
        self.initialiser = chosen.number
        self.answer_session(chosen, 0, initialise=True)

    def _open_checkpoints(self) -> None:
        run = self.run
        if run.checkpoint_dir:
            keep = int(run.settings.get("keep", 5))
            plan = as_applied(run.plan, run.settings["update"])
            self.checkpoints = Checkpoints(
                self.node, self.number, plan, self.refs, run.checkpoint_dir, keep, run.settings
            )
            self.checkpoints.saved_name, self.checkpoints.saved_at = run.restore, run.saved_at

    def accept_first_values(self, session: int, epoch: int) -> None:
        """The ps have all first values. Save them before any session trains."""
        if self.phase != INITIALISE or session != self.initialiser or epoch != self.number:
            return
        self.initialiser = None
        if self.checkpoints is None:
            self._train()
            return
        self.phase = CONFIGURE
        self.checkpoints.save(self._first_saved)

    def _first_saved(self, name: str | Exception, step: int) -> None:
        if self.phase != CONFIGURE:
            return
        if isinstance(name, Exception):
            self._owner.unfit(CheckpointError(f"the first checkpoint cannot be written: {name}"))
        else:
            self._train()

    def _train(self) -> None:
        self.phase = RUN
        self.run.trained = True
        owner = self._owner
        self.roster = EpochRoster(self.node, self.number, self.refs, self._members, self._heard, owner.forgotten)
        owner.begun()
        self.roster.tell_members()

    # -- while it lasts -----------------------------------------------------------------------------------------

    def answer_session(self, session: ClientSession, incarnation: int, initialise: bool) -> None:
        """Admit a session, or ask it for the first values."""
        assert session.opened is not None
        run, asked = self.run, session.request
        seen, last = (0, 0) if asked is None else (asked.epoch, asked.last)
        opened = SessionOpened(
            self.number, incarnation, run.step, initialise, run.plan.to_wire(), run.settings, self._addresses,
            run.restore, self._losses.reached, self._losses.is_certain(seen) and run.even and not self.counts_apart,
            self._opener if initialise else b"", self._owner.applied_pushes(last),
        )  # fmt: skip
        self.node.answer(session.opened, opened)

    @property
    def may_have_halves(self) -> bool:
        """Whether a push may be applied on one ps and not on another."""
        return len(self.run.plan.ps) > 1 and not from_wire(self.run.settings["update"]).is_atomic

    @property
    def counts_apart(self) -> bool:
        """Whether several ps may count pushes as steps. Then nobody knows of the last ones that a lost ps counted."""
        return self.may_have_halves and isinstance(from_wire(self.run.settings["update"]), Async)

    def settle_pushes(self) -> None:
        """Have all sessions complete their pushes and join again. None is admitted before `resume_training`."""
        self.phase = SETTLE
        self._members.settle_pushes()

    def hold_training(self, then: Callable[[], None]) -> None:
        """Let nobody train: every session has to join again, and none is admitted before `resume_training`. `then` is
        called when all ps know it, or when the epoch ends: no push is accepted any more that a checkpoint lacks."""
        self.phase, self._held = HOLD, then
        self._losses.end_epoch([live.session for live in self._members.live.values() if live.trains])
        self._members.begin_epoch()

    def resume_training(self) -> None:
        """Train again after `hold_training`, as soon as sessions are admitted."""
        if self.phase == HOLD:
            self.phase = RUN

    def _heard(self, ps: int, ended: list[list[Any]]) -> None:
        """A ps has a newer list of members."""
        self._owner.ended(ps, ended)
        if not self.ps_behind():
            self._tell_held()
        self._owner.heard()

    def _tell_held(self) -> None:
        then, self._held = self._held, None
        if then is not None:
            then()

    def ps_behind(self) -> list[int]:
        """The ps that do not have the current list of members."""
        return [] if self.roster is None else self.roster.ps_behind()

    def waiting_text(self, initialiser: str) -> str:
        """What the epoch waits for, as a sentence. `initialiser`: the task that sends first values, or ""."""
        if self.phase == CONFIGURE:
            waits = [self._unconfigured_text(task) for task in self._unconfigured()]
            return f"the chief waits for {', '.join(waits) or 'the first checkpoint'}"
        if self.phase == INITIALISE and initialiser:
            return f"the chief waits for {initialiser} to send the first values"
        if self.phase == RUN:
            behind = [f"ps:{task}" for task in self.ps_behind()]
            return f"training; the chief waits for {', '.join(behind)}" if behind else "training"
        return self.phase

    def _unconfigured_text(self, task: int) -> str:
        told = self._progress.get(task, "")
        return f"ps:{task}, which {told}" if told else f"ps:{task}"

    def stop_admitting(self) -> None:
        """The run ends or has failed: admit no more sessions. Checkpoints and members are still handled."""
        self.phase = OVER

    def end_epoch(self) -> None:
        """This epoch is over; ignore everything that still arrives for it."""
        self.phase = OVER
        if self.roster is not None:
            self.roster.is_over = True
        if self.checkpoints is not None:
            self.checkpoints.stop_saving()
        self._tell_held()
