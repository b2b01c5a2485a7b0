"""One run epoch: gives each ps its shard, restored or with first values. It ends with the run or with a lost ps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dps.actors.ref import Ref
from dps.actors.system import Node
from dps.actors.tickets import digest
from dps.chief.checkpoints import Checkpoints
from dps.chief.cluster import KnownNode
from dps.chief.losses import Losses
from dps.chief.members import Membership
from dps.chief.phase import CONFIGURE, HOLD, INITIALISE, RUN, SETTLE
from dps.chief.roster import Roster
from dps.chief.run import Run
from dps.chief.sessions import Session
from dps.errors import CheckpointError, ConfigError
from dps.outer import as_applied
from dps.protocol import PS
from dps.run_protocol import Configure, Configured, SessionOpened
from dps.transport.message import Message

CONFIGURE_S = 120.0
OVER = "over"


class EpochOwner(Protocol):
    """The object that leads from one run epoch to the next. An epoch reports its events to it."""

    def kept(self, incarnation: int) -> list[list[Any]]:
        """What the values have of the pushes of an incarnation that has ended, as in SessionOpened."""

    def choose(self) -> Session | None:
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
    """From `configure` to `end`. After that, and after `stop`, late answers do nothing.

    More than 12 attributes: eight are facts of the epoch, which never change; the others are its phase and its parts.
    """

    def __init__(
        self, node: Node, number: int, run: Run, nodes: Mapping[int, KnownNode], members: Membership, losses: Losses,
        owner: EpochOwner,
    ) -> None:  # fmt: skip
        """`nodes`: the plan's ps; their addresses do not change during the epoch."""
        self.node, self.number, self.run, self._members, self._owner = node, number, run, members, owner
        self._losses = losses
        self._addresses = [[task, known.told] for task, known in nodes.items()]
        self._tickets = [[known.ticket, f"ps:{task}"] for task, known in nodes.items() if known.ticket]
        self._opener = node.runtime.secret()
        """What a session brings with the first values, to prove that the chief asked it for them."""
        self._refs = {task: Ref(nodes[task].address, PS) for task in run.plan.ps}
        self._configured: set[int] = set()
        self.phase = CONFIGURE
        self.resumed = False
        """Whether another chief began this epoch."""
        self.initialiser: int | None = None
        """The session that was asked for the first values."""
        self.checkpoints: Checkpoints | None = None
        """None if the run has no checkpoint_dir."""
        self.roster: Roster | None = None
        """None until the epoch trains."""
        self._held: Callable[[], None] | None = None
        """Called when all ps know that nobody trains."""

    # -- from the first message to training ---------------------------------------------------------------------

    def configure(self) -> None:
        """Give every ps its shard of the plan."""
        for task in self.run.plan.ps:
            self._configure_one(task)

    def _configure_one(self, task: int) -> None:
        run = self.run
        message = Configure(
            self.number, run.plan.to_wire(), task, run.settings, self._addresses, run.checkpoint_dir, run.restore,
            self._tickets, digest(self._opener),
        )  # fmt: skip

        def configured(answer: Message | Exception) -> None:
            if self.phase != CONFIGURE:
                return
            if isinstance(answer, Configured):
                self._configured.add(task)
                self._losses.counted(answer.ended, answer.reached)
                if not self._unconfigured():
                    self._all_configured()
            elif isinstance(answer, ConfigError | CheckpointError):  # a missing GPU, another model
                self._owner.unfit(type(answer)(f"ps:{task}: {answer}"))
            else:
                self._owner.broken(f"ps:{task} cannot take run epoch {self.number}: {answer}")

        self.node.ask(self._refs[task], message, CONFIGURE_S, configured)

    def resume(self) -> None:
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
        chosen = self._owner.choose()
        if chosen is None:
            self._owner.deserted()
            return
        self.initialiser = chosen.number
        self.answer(chosen, 0, initialise=True)

    def _open_checkpoints(self) -> None:
        run = self.run
        if run.checkpoint_dir:
            keep = int(run.settings.get("keep", 5))
            plan = as_applied(run.plan, run.settings["update"])
            self.checkpoints = Checkpoints(
                self.node, self.number, plan, self._refs, run.checkpoint_dir, keep, run.settings
            )
            self.checkpoints.saved_name, self.checkpoints.saved_at = run.restore, run.saved_at

    def initialised(self, session: int, epoch: int) -> None:
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
        self.roster = Roster(self.node, self.number, self._refs, self._members, self._heard, owner.forgotten)
        owner.begun()
        self.roster.tell()

    # -- while it lasts -----------------------------------------------------------------------------------------

    def answer(self, session: Session, incarnation: int, initialise: bool) -> None:
        """Admit a session, or ask it for the first values."""
        assert session.opened is not None
        run, asked = self.run, session.request
        seen, last = (0, 0) if asked is None else (asked.epoch, asked.last)
        opened = SessionOpened(
            self.number, incarnation, run.step, initialise, run.plan.to_wire(), run.settings, self._addresses,
            run.restore, self._losses.reached, self._losses.certain(seen) and run.even,
            self._opener if initialise else b"", self._owner.kept(last),
        )  # fmt: skip
        self.node.answer(session.opened, opened)

    @property
    def may_have_halves(self) -> bool:
        """Whether a push may be applied on one ps and not on another. A synchronous step is applied on all or none."""
        return len(self.run.plan.ps) > 1 and self.run.settings["update"]["mode"] in ("async", "bounded")

    def settle(self) -> None:
        """Have all sessions complete their pushes and join again. None is admitted before `go_on`."""
        self.phase = SETTLE
        self._members.settle()

    def hold(self, then: Callable[[], None]) -> None:
        """Let nobody train: every session has to join again, and none is admitted before `go_on`. `then` is called when
        all ps know it, or when the epoch ends: no push is accepted any more that a checkpoint lacks."""
        self.phase, self._held = HOLD, then
        self._losses.over([live.session for live in self._members.live.values() if live.trains])
        self._members.new_epoch()

    def go_on(self) -> None:
        """Train again after `hold`, as soon as sessions are admitted."""
        if self.phase == HOLD:
            self.phase = RUN

    def _heard(self, ps: int, ended: list[list[Any]]) -> None:
        """A ps has a newer list of members."""
        self._owner.ended(ps, ended)
        if not self.behind():
            self._tell_held()
        self._owner.heard()

    def _tell_held(self) -> None:
        then, self._held = self._held, None
        if then is not None:
            then()

    def behind(self) -> list[int]:
        """The ps that do not have the current list of members."""
        return [] if self.roster is None else self.roster.behind()

    def waits_for(self, initialiser: str) -> str:
        """What the epoch waits for, as a sentence. `initialiser`: the task that sends first values, or ""."""
        if self.phase == CONFIGURE:
            waits = [f"ps:{task}" for task in self._unconfigured()]
            return f"the chief waits for {', '.join(waits) or 'the first checkpoint'}"
        if self.phase == INITIALISE and initialiser:
            return f"the chief waits for {initialiser} to send the first values"
        if self.phase == RUN:
            behind = [f"ps:{task}" for task in self.behind()]
            return f"training; the chief waits for {', '.join(behind)}" if behind else "training"
        return self.phase

    def stop(self) -> None:
        """The run ends or has failed: admit no more sessions. Checkpoints and members are still handled."""
        self.phase = OVER

    def end(self) -> None:
        """This epoch is over; ignore everything that still arrives for it."""
        self.phase = OVER
        if self.roster is not None:
            self.roster.over = True
        if self.checkpoints is not None:
            self.checkpoints.end()
        self._tell_held()
