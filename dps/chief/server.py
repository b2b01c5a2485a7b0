"""The chief as an actor: gathers the cluster, starts run epochs, admits sessions, commits checkpoints, ends the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dps.actors.actor import Actor
from dps.actors.messages import Waiting
from dps.actors.ref import Ref, Sender
from dps.checkpoint import load
from dps.chief.agreement import Agreement, check_fits
from dps.chief.checkpoints import Checkpoints
from dps.chief.cluster import Nodes
from dps.chief.farewell import Farewell
from dps.chief.members import Membership
from dps.chief.roster import Roster
from dps.chief.run import Run, read_journal, write_journal
from dps.errors import Aborted, CheckpointError, ConfigError, DpsError, TaskLost, Unavailable
from dps.protocol import (
    PS,
    AskCluster,
    AskState,
    AskStats,
    CloseSession,
    ClusterIs,
    Configure,
    Configured,
    Initialised,
    Leave,
    OpenSession,
    Register,
    Registered,
    Restore,
    Save,
    Saved,
    SessionOpened,
    State,
    Stats,
    StopTask,
)
from dps.transport.wire import Message
from dps.variables.plan import Plan

log = logging.getLogger("dps")

GRACE_S = 1.0
"""How long a node may be disconnected before it counts as lost."""
RESTART_S = 50.0  # less than a session waits by default, so that it hears why
"""How long a lost ps may take to come back."""
ABSENT_S = 60.0
"""How long an expected worker may take to come, or to come back, once another one has joined."""
LAST_SAVE_S = 2.0
"""Seconds between the tries to write the last checkpoint."""
REJOIN_S = 10.0
"""How long the run goes on when all workers were lost and none has finished."""
UNKNOWN_S = 5.0
"""How long a chief that ends waits for nodes that have not found it yet, after a restart, to tell them."""
CONFIGURE_S = 120.0
GATHER, OPEN, CONFIGURE, INITIALISE, RUN, END, FAILED = (
    "gathering the ps", "waiting for a session", "configuring the ps", "initialising", "training", "ending", "failed",
)  # fmt: skip


@dataclass
class _Session:
    """A client session that the chief knows, whether it has an incarnation now or not."""

    number: int
    name: str
    job: str
    task: int
    address: str
    opened: Sender | None = None
    request: OpenSession | None = None
    version: int = 0
    """Members version that every ps must have before the session is told its incarnation."""


class ChiefActor(Actor):
    """One run: from the first ps to the last worker. `ended` is called once, with exit code and reason."""

    def __init__(
        self,
        ps: Sequence[int],
        workers: Sequence[int],
        update_mode: dict[str, Any] | None,
        ended: Callable[[int, str], None],
        owned: bool = False,
        restarted: bool = False,
    ) -> None:
        """`ps`, `workers`: expected task indices; workers may be empty (those that join). `owned`: only a stop from
        outside ends the run. `restarted`: an earlier chief of the run died; this one ends if nobody comes."""
        self._restarted = restarted
        self.phase = GATHER
        self.epoch = 0
        self.nodes = {"ps": Nodes("ps", ps), "worker": Nodes("worker", workers)}
        self.members = Membership([f"worker:{t}" for t in workers])
        self.sessions: dict[int, _Session] = {}
        self.run: Run | None = None
        self.checkpoints: Checkpoints | None = None
        self.reason = ""
        self.agreement = Agreement(update_mode)
        self.roster: Roster | None = None
        self._ended, self._owned = ended, owned
        self._initialiser: int | None = None
        self._lost_since: dict[int, float] = {}
        self._closed: set[int] = set()
        self._left: set[str] = set()
        self._last_due = False
        self._last_tries = 5
        self._alone_since: float | None = None

    def started(self) -> None:
        self.farewell = Farewell(self.node, self._ended)
        self._started_at = self.node.runtime.now()
        self.node.after(ABSENT_S / 10, self._give_up_absent)
        if self._restarted:
            self.node.after(ABSENT_S, self._end_unless_found)

    def _end_unless_found(self) -> None:
        """A chief that was started again for a run of which nothing is left."""
        if not any(nodes.known for nodes in self.nodes.values()):
            self._fail(f"no task of the run came to the restarted chief within {ABSENT_S:.0f} s")

    def _give_up_absent(self) -> None:
        """Expected workers whose nodes have been away for long are not waited for any longer."""
        self.node.after(ABSENT_S / 10, self._give_up_absent)
        now, workers = self.node.runtime.now(), self.nodes["worker"]
        for name in self.members.waiting():
            known = workers.known.get(int(name.partition(":")[2]))
            if (
                (known is None or not known.alive)
                and now - self._started_at > ABSENT_S
                and (self.members.joined or self._restarted)
            ):
                log.warning(
                    "%s: %s has not come for %.0f s; the others go on without it", self.node.name, name, ABSENT_S
                )
                self.members.give_up(name)
                self._changed()
        self._finish_if_done()

    # -- nodes ------------------------------------------------------------------------------------------------

    def on_Register(self, message: Register, sender: Sender) -> None:
        if self.farewell.message is not None:
            self.node.answer(sender, self.farewell.message)
            return
        self.agreement.mode(f"{message.job}:{message.task}", message.update)
        if message.job not in self.nodes:
            self.node.answer(sender, Registered(max(message.task, 0), self._cluster()))
            return
        nodes = self.nodes[message.job]
        task, replaced = nodes.register(message.task, message.address, message.process)
        self.epoch = max(self.epoch, message.epoch)
        self._left.discard(f"{message.job}:{task}")
        self.node.watch(message.address, GRACE_S)
        self.node.answer(sender, Registered(task, self._cluster()))
        if message.job == "ps":
            self._lost_since.pop(task, None)
            if replaced:
                self._ps_lost(task, "was restarted")
            self._advance()
        elif replaced:
            self._worker_lost(f"worker:{task}", "was restarted")

    def _cluster(self) -> dict[str, Any]:
        return {job: {str(t): a for t, a in nodes.addresses().items()} for job, nodes in self.nodes.items()}

    def lost(self, address: str, silent_s: float) -> None:
        ps = self.nodes["ps"].at(address)
        if ps is not None:
            self.nodes["ps"].known[ps].alive = False
            self._ps_lost(ps, f"was silent for {silent_s:.1f} s")
        worker = self.nodes["worker"].at(address)
        if worker is not None:
            self.nodes["worker"].known[worker].alive = False
            self._worker_lost(f"worker:{worker}", f"was silent for {silent_s:.1f} s")
        for session in [s for s in self.sessions.values() if s.address == address]:
            self._end_session(session, lost=True)
        self.node.unwatch(address)
        self.farewell.told(address)
        self._finish_if_done()

    def _worker_lost(self, name: str, why: str) -> None:
        if self.phase in (END, FAILED):
            return
        if name not in self.members.finished:
            log.warning("%s: %s %s; the others go on without it", self.node.name, name, why)
            self.node.runtime.record("worker lost", name=name, why=why)
        for session in [s for s in self.sessions.values() if s.name == name]:
            self._end_session(session, lost=True)
        self.members.give_up(name)
        self._changed()

    def _ps_lost(self, task: int, why: str) -> None:
        name = f"ps:{task}"
        if self.phase == END and self._last_due:
            assert self.checkpoints is not None
            saved = self.checkpoints.saved_name or "the start"
            self._fail(f"{name} {why} during the last checkpoint; the steps after {saved} are lost")
        if self.phase in (END, FAILED):
            return
        log.warning("%s: %s %s", self.node.name, name, why)
        self.node.runtime.record("ps lost", name=name, why=why)
        now = self.node.runtime.now()
        if not self.nodes["ps"].known[task].alive:
            self._lost_since.setdefault(task, now)
            self.node.after(RESTART_S, lambda: self._give_up_ps(task, why))
        if self.phase in (GATHER, OPEN):
            self.phase = GATHER
            return
        assert self.run is not None
        if self.phase == RUN and not self.run.checkpoint_dir:
            self._fail(
                f"{name} {why} and its values are gone: at durability none without a checkpoint_dir nothing can be "
                "restored; give the session a checkpoint_dir"
            )
            return
        self._new_epoch()

    def _give_up_ps(self, task: int, why: str) -> None:
        since = self._lost_since.get(task)
        if since is not None and self.node.runtime.now() - since >= RESTART_S - 0.01:
            self._fail(f"ps:{task} {why} and did not come back within {RESTART_S:.0f} s")

    # -- run epochs -------------------------------------------------------------------------------------------

    def _new_epoch(self) -> None:
        """Back to a whole checkpoint, or to fresh values where none were published yet."""
        self.phase = GATHER
        if self.roster is not None:
            self.roster.over, self.roster = True, None
        if self.checkpoints is not None:
            self.checkpoints.end()
            self.checkpoints = None
        self.members.new_epoch()
        self._initialiser = None
        self._advance()

    def _advance(self) -> None:
        """Go on as far as it is possible now."""
        if self.phase == GATHER and self.nodes["ps"].known and not self.nodes["ps"].missing():
            self.phase = OPEN
        if self.phase == OPEN and self.run is None:
            first = next((s for s in self.sessions.values() if s.opened and s.request and s.request.plan), None)
            if first is not None:
                self._adopt(first)
        if self.phase == OPEN and self.run is not None and any(s.opened for s in self.sessions.values()):
            self._configure()
        if self.phase == RUN:
            self._admit_waiting()

    def _adopt(self, session: _Session) -> None:
        """Take plan and settings from the first session that has variables."""
        assert session.request is not None
        settings = dict(session.request.settings)
        try:
            plan = Plan.from_wire(session.request.plan)
            if set(plan.ps) != set(self.nodes["ps"].known):
                there = sorted(self.nodes["ps"].known)
                raise ConfigError(f"{session.name} places variables on ps {sorted(plan.ps)}; the cluster has {there}")
            settings["update"] = self.agreement.mode(session.name, settings.get("update"))
            checkpoint_dir = str(settings.get("checkpoint_dir") or "")
            if checkpoint_dir:
                if not (self._restarted or session.request.epoch):  # else the run has written there before
                    self.node.runtime.storage.check_writable(checkpoint_dir)
                self.epoch = max(self.epoch, read_journal(self.node.runtime.storage, checkpoint_dir, self.members))
        except (DpsError, ValueError) as error:
            self._refuse(session, error)
            self._advance()
            return
        self.run = Run(plan, settings, checkpoint_dir)

    def _journal(self, ended: bool = False) -> None:
        if self.run is not None and self.run.checkpoint_dir:
            write_journal(self.node.runtime.storage, self.run.checkpoint_dir, self.epoch, self.members, ended)

    def _configure(self) -> None:
        """Begin a run epoch: all ps get their shard of the plan, restored or to be filled."""
        assert self.run is not None
        run = self.run
        self.epoch += 1
        self.phase = CONFIGURE
        self._journal()
        lost = run.begin_from(self.node.runtime.storage)
        self.node.runtime.record("epoch", epoch=self.epoch, restore=run.restore, step=run.step)
        if run.restore:
            text = f", {lost} steps lost" if lost else ""
            log.warning("%s: run epoch %d starts from %s%s", self.node.name, self.epoch, run.restore, text)
        addresses = [[t, a] for t, a in self.nodes["ps"].addresses().items() if t in run.plan.ps]
        for task in run.plan.ps:
            self._configure_one(task, addresses)

    def _configure_one(self, task: int, addresses: list[Any]) -> None:
        assert self.run is not None
        run, epoch = self.run, self.epoch
        message = Configure(epoch, run.plan.to_wire(), task, run.settings, addresses, run.checkpoint_dir, run.restore)

        def configured(answer: Message | Exception) -> None:
            if self.epoch != epoch or self.phase != CONFIGURE:
                return
            if isinstance(answer, Configured):
                run.configured[task] = answer.step
                if len(run.configured) == len(run.plan.ps):
                    self._configured()
            elif isinstance(answer, ConfigError):  # such as a GPU that is not there: the sessions' mistake
                for session in [s for s in self.sessions.values() if s.opened]:
                    self._refuse(session, ConfigError(f"ps:{task}: {answer}"))
                self.run = None
                self._new_epoch()
            else:
                self._fail(f"ps:{task} cannot take run epoch {epoch}: {answer}")

        self.node.ask(self._ps(task), message, CONFIGURE_S, configured)

    def _configured(self) -> None:
        assert self.run is not None
        run = self.run
        refs = {task: self._ps(task) for task in run.plan.ps}
        if run.checkpoint_dir:
            keep = int(run.settings.get("keep", 5))
            self.checkpoints = Checkpoints(
                self.node, self.epoch, run.plan, refs, run.checkpoint_dir, keep, run.settings
            )
            self.checkpoints.saved_step = run.step if run.restore else -1
        if run.restore:
            self._start()
            return
        self.phase = INITIALISE
        run.step = 0
        chosen = next((s for s in self.sessions.values() if s.opened and s.request and s.request.plan), None)
        if chosen is None:
            self.phase = OPEN
            return
        self._initialiser = chosen.number
        self._answer_opened(chosen, 0, initialise=True)

    def on_Initialised(self, message: Initialised, sender: Sender) -> None:
        if self.phase == INITIALISE and message.session == self._initialiser and message.epoch == self.epoch:
            self._initialiser = None
            if self.checkpoints is not None:
                self.phase = CONFIGURE
                epoch = self.epoch
                self.checkpoints.save(lambda name, step: self._first_saved(epoch, name))
            else:
                self._start()
        self.node.answer(sender)

    def _first_saved(self, epoch: int, name: str | Exception) -> None:
        if epoch != self.epoch or self.phase != CONFIGURE:
            return
        if isinstance(name, Exception):
            for session in [s for s in self.sessions.values() if s.opened]:
                self._refuse(session, CheckpointError(f"the first checkpoint cannot be written: {name}"))
            self.run = None
            self._new_epoch()
            return
        self._start()

    def _start(self) -> None:
        assert self.run is not None
        self.phase = RUN
        refs = {task: self._ps(task) for task in self.run.plan.ps}
        self.roster = Roster(self.node, self.epoch, refs, self.members, self._roster_heard, self._roster_refused)
        self._admit_waiting()
        self.roster.tell()

    def _roster_heard(self) -> None:
        self._answer_admitted()
        self._finish_if_done()

    def _roster_refused(self, ps: int) -> None:
        self._ps_lost(ps, f"does not serve run epoch {self.epoch} any more")

    # -- sessions ---------------------------------------------------------------------------------------------

    def on_OpenSession(self, message: OpenSession, sender: Sender) -> None:
        if self.phase == FAILED:
            raise TaskLost(self.reason)
        if self.phase == END:
            raise Unavailable("the run has ended; start it again to train on")
        if message.session in self._closed:
            raise Aborted("this session has closed")
        known = self.nodes[message.job].known.get(message.task) if message.job in self.nodes else None
        if message.job in self.nodes and (known is None or known.process != message.process):
            self.node.answer(sender, Waiting(f"{message.job}:{message.task} has not registered yet"))
            return
        name = f"{message.job}:{message.task}"
        session = self.sessions.get(message.session)
        if session is None:
            session = _Session(message.session, name, message.job, message.task, message.address)
            self.sessions[message.session] = session
            if message.address:
                self.node.watch(message.address, GRACE_S)
        session.opened, session.request = sender, message
        if self._differs(session, message):
            return
        incarnation = self.members.incarnation_of(message.session)
        if (
            incarnation is not None
            and self.phase == RUN
            and incarnation == sender.incarnation
            and message.epoch == self.epoch
        ):
            self.members.end(incarnation, lost=True)
            self.node.runtime.record("ended", incarnation=incarnation, name=name, lost=True)
        self._advance()
        if self._initialiser == message.session and self.phase == INITIALISE:
            self._answer_opened(session, 0, initialise=True)
        elif session.opened is not None:
            self.node.answer(sender, Waiting(self._state_text()))

    def _differs(self, session: _Session, message: OpenSession) -> bool:
        """Refuse a session whose layout or settings are not those of the run."""
        if self.run is None:
            return False
        try:
            check_fits(session.name, message.plan, message.settings, self.run.plan, self.run.settings)
        except (DpsError, ValueError) as error:
            self._refuse(session, error)
            return True
        return False

    def _refuse(self, session: _Session, error: Exception) -> None:
        if session.opened is not None:
            self.node.answer(session.opened, error)
        self.sessions.pop(session.number, None)

    def _admit_waiting(self) -> None:
        changed = False
        for session in [s for s in self.sessions.values() if s.opened is not None]:
            if self.members.incarnation_of(session.number) is None:
                assert session.request is not None
                worker = session.job in ("worker", "chief") and bool(session.request.plan)
                incarnation = self.members.admit(session.number, session.name, session.task, worker)
                self.node.runtime.record("admitted", incarnation=incarnation, name=session.name, epoch=self.epoch)
                session.version = self.members.version
                changed = True
        if changed:
            self._alone_since = None
            self._changed()
        self._answer_admitted()

    def _answer_admitted(self) -> None:
        """Tell sessions their incarnation once every ps knows it."""
        if self.phase != RUN or self.roster is None:
            return
        for session in list(self.sessions.values()):
            incarnation = self.members.incarnation_of(session.number)
            if session.opened is not None and incarnation is not None and session.version <= self.roster.known:
                self._answer_opened(session, incarnation, initialise=False)
                session.opened = None

    def _answer_opened(self, session: _Session, incarnation: int, initialise: bool) -> None:
        assert self.run is not None and session.opened is not None
        run = self.run
        addresses = [[t, a] for t, a in self.nodes["ps"].addresses().items() if t in run.plan.ps]
        answer = SessionOpened(
            self.epoch, incarnation, run.step, initialise, run.plan.to_wire(), run.settings, addresses, run.restore
        )
        self.node.answer(session.opened, answer)

    def on_CloseSession(self, message: CloseSession, sender: Sender) -> None:
        session = self.sessions.get(message.session)
        if session is not None:
            self._end_session(session, lost=False, failed=bool(message.error))
        elif message.session not in self._closed and message.job in self.nodes:
            self._closed_elsewhere(message)
        self._closed.add(message.session)
        self.node.answer(sender)
        self._finish_if_done()

    def on_Leave(self, message: Leave, sender: Sender) -> None:
        self.node.answer(sender)
        self.left(f"{message.job}:{message.task}", message.reason)

    def left(self, name: str, reason: str) -> None:
        """A worker's program is over. One that made no session is not waited for."""
        self._left.add(name)
        if name in self.members.waiting():
            log.warning("%s: %s ended without a session: %s; the others go on", self.node.name, name, reason)
            self.members.give_up(name)
            self._changed()
        self._finish_if_done()

    def _closed_elsewhere(self, message: CloseSession) -> None:
        """A session of the chief that was here before this one is done: its worker needs nothing more."""
        if self.run is None and message.checkpoint_dir:
            try:
                read_journal(self.node.runtime.storage, message.checkpoint_dir, self.members)
            except CheckpointError as error:
                log.warning("%s: %s", self.node.name, error)
        self.members.done_elsewhere(f"{message.job}:{message.task}")
        self._changed()

    def _end_session(self, session: _Session, lost: bool, failed: bool = False) -> None:
        incarnation = self.members.incarnation_of(session.number)
        self.sessions.pop(session.number, None)
        if incarnation is not None:
            self.members.end(incarnation, lost, failed)
            self.node.runtime.record("ended", incarnation=incarnation, name=session.name, lost=lost)
            self._changed()
        elif session.job == "worker" and session.name in self.members.joined and not lost:
            self.members.finished.append(session.name)
        if self._initialiser == session.number and self.phase == INITIALISE:
            self._new_epoch()

    def _changed(self) -> None:
        """Membership has changed: write it down, tell every ps."""
        if self.roster is not None and self.phase == RUN:
            self._journal()
            self.roster.tell()

    def on_AskState(self, message: AskState, sender: Sender) -> None:
        known = message.session in self.sessions
        running = self.phase == RUN and known and self.members.incarnation_of(message.session) is not None
        if self.phase == FAILED:
            raise TaskLost(self.reason)
        leads = self.members.leader() == message.session
        self.node.answer(sender, State(self.epoch, running, leads, self._state_text()))

    def on_AskCluster(self, message: AskCluster, sender: Sender) -> None:
        ps = self.nodes["ps"]
        complete = bool(ps.known) and not ps.missing()
        self.node.answer(sender, ClusterIs(self._cluster(), complete, "" if complete else self._state_text()))

    def on_AskStats(self, message: AskStats, sender: Sender) -> None:
        values = {
            "phase": self.phase, "epoch": self.epoch, "text": self._state_text(),
            "cluster": self._cluster(), "live": [m.name for m in self.members.live.values()],
            "waiting": self.members.waiting(), "finished": self.members.finished, "given_up": self.members.given_up,
            "saved": self.checkpoints.saved_name if self.checkpoints else "",
        }  # fmt: skip
        self.node.answer(sender, Stats(values))

    def _state_text(self) -> str:
        missing = [f"ps:{t}" for t in self.nodes["ps"].missing()]
        if self.phase == GATHER and (missing or not self.nodes["ps"].known):
            now = self.node.runtime.now()
            silent = [
                f"{n} ({now - self._lost_since[t]:.0f} s)" if (t := int(n[3:])) in self._lost_since else n
                for n in missing
            ]
            return f"the chief waits for {', '.join(silent) or 'a ps'}"
        if self.phase == OPEN:
            return "the chief waits for a session " + ("that brings variables" if self.run is None else "to come back")
        if self.phase == CONFIGURE and self.run is not None:
            waits = [f"ps:{t}" for t in self.run.plan.ps if t not in self.run.configured]
            return f"the chief waits for {', '.join(waits) or 'the first checkpoint'}"
        if self.phase == INITIALISE and self._initialiser in self.sessions:
            return f"the chief waits for {self.sessions[self._initialiser].name} to send the first values"
        if self.phase == RUN and self.run is not None:
            behind = [] if self.roster is None else [f"ps:{task}" for task in self.roster.behind()]
            return f"training; the chief waits for {', '.join(behind)}" if behind else "training"
        return self.reason or self.phase

    # -- checkpoints and the end ------------------------------------------------------------------------------

    def on_Save(self, message: Save, sender: Sender) -> None:
        if self.run is not None and not self.run.checkpoint_dir:
            raise ValueError("nothing to save to: the run has no checkpoint_dir; give the first session one")
        if message.session not in self.sessions:
            raise Aborted("the chief does not know this session; it was restarted")
        if self.phase != RUN or self.checkpoints is None:
            raise Aborted(f"nothing can be saved now: {self._state_text()}")

        def saved(name: str | Exception, step: int) -> None:
            self.node.answer(sender, name if isinstance(name, Exception) else Saved(name, step))

        self.checkpoints.save(saved)

    def on_Restore(self, message: Restore, sender: Sender) -> None:
        if self.run is not None and not self.run.checkpoint_dir:
            raise ValueError("nothing to restore from: the run has no checkpoint_dir; give the first session one")
        if message.session not in self.sessions or self.phase != RUN or message.epoch != self.epoch:
            raise Aborted(f"nothing can be restored now: {self._state_text()}")
        assert self.run is not None
        if message.name:
            load(self.node.runtime.storage, self.run.checkpoint_dir, message.name)
        self.node.answer(sender)
        log.warning("%s: %s asked for a restore", self.node.name, self.sessions[message.session].name)
        self.run.wanted = message.name
        self._new_epoch()

    def _finish_if_done(self) -> None:
        trainers = [s for s in self.sessions.values() if s.job in self.nodes or (s.request and s.request.plan)]
        if self._owned or self.phase in (END, FAILED) or trainers or not self.members.all_done():
            return  # readers from outside the cluster keep nobody
        gone_for_good = self._left.issuperset(self.members.given_up)
        if not (self.members.finished or gone_for_good or self._alone_for_long()):
            return
        if self.phase == RUN and self.roster is not None and self.roster.behind():
            return  # only when every ps knows who has left is their last step decided
        trained = self.phase == RUN
        self.phase = END
        if self.checkpoints is None or not trained:
            self._stop_all(0, "", self._linger_s())
            return
        self._last_due = True
        self._save_last()

    def _linger_s(self) -> float:
        """Nodes that have not found this chief (again) yet are to hear of the end, too."""
        away = self.nodes["ps"].missing() or (self._restarted and self.nodes["worker"].missing())
        return UNKNOWN_S if away else 0.0

    def _save_last(self) -> None:
        """The last step is saved by the chief; a disk that is full for a moment gets some tries."""
        if self.checkpoints is not None and self.phase == END:
            self.checkpoints.save(lambda name, step: self._last_saved(name))

    def _last_saved(self, name: str | Exception) -> None:
        if self.phase != END:
            return
        if isinstance(name, Exception) and self._last_tries > 0:
            self._last_tries -= 1
            self.node.after(LAST_SAVE_S, self._save_last)
            return
        self._last_due = False
        if isinstance(name, Exception):
            self._stop_all(1, f"the last checkpoint could not be written: {name}")
        else:
            self._stop_all(0, "", self._linger_s())

    def _alone_for_long(self) -> bool:
        """All workers were lost, none finished: give them some time to come back."""
        now = self.node.runtime.now()
        if self._alone_since is None:
            self._alone_since = now
            self.node.after(REJOIN_S + 0.1, self._finish_if_done)
        return now - self._alone_since >= REJOIN_S

    def _stop_all(self, code: int, reason: str, linger_s: float = 0.0) -> None:
        """Tell every node, and end when all have heard it."""
        self._journal(ended=code == 0)
        addresses = [n.address for nodes in self.nodes.values() for n in nodes.known.values() if n.alive]
        addresses += [s.address for s in self.sessions.values() if s.address]  # readers have nodes of their own
        self.farewell.begin(StopTask(code, reason), addresses, linger_s)

    def stop_run(self) -> None:
        """End the run from this side (`Server.stop` of the chief); nothing is saved."""
        if self.phase not in (END, FAILED):
            self.phase = END
            self._stop_all(0, "")

    def _fail(self, reason: str) -> None:
        """The run cannot go on; everybody is told why."""
        if self.phase == FAILED:
            return
        log.error("%s: %s", self.node.name, reason)
        self.node.runtime.record("failed", reason=reason)
        self.phase, self.reason = FAILED, reason
        for session in list(self.sessions.values()):
            if session.opened is not None:
                self.node.answer(session.opened, TaskLost(reason))
        self._stop_all(3, reason)

    def _ps(self, task: int) -> Ref:
        return Ref(self.nodes["ps"].known[task].address, PS)
