"""Begins and ends run epochs: chooses the plan and the checkpoint of the next one."""

from __future__ import annotations

from typing import Any

from dps.actors.node import Node
from dps.checkpoint import candidates, load
from dps.checkpoint.lock import LockTaken
from dps.chief.checkpoint_folder import Journaling, Locking
from dps.chief.checkpoints import Result
from dps.chief.cluster import Cluster
from dps.chief.epoch import Epoch, LostSteps
from dps.chief.lead import Lead
from dps.chief.members import RunMembers
from dps.chief.run import Agreement, Run, has_ended, read_journal, step_of
from dps.chief.sessions import ClientSession, Sessions
from dps.chief.takeover import AppliedPushes, SessionsElsewhere, Takeover
from dps.errors import Aborted, CheckpointError, ConfigError, DpsError
from dps.messages.runs import GATHER, HOLD, INITIALISE, OPEN, RUN, TRAINS, ConfiguredBefore
from dps.process.telemetry import log
from dps.variables.plan import Plan
from dps.variables.saved import check_saved

NOTHING_SAVED = "without a checkpoint_dir nothing was saved or can be restored; give the session a checkpoint_dir"


class Epochs:
    """The run that the first session defines, and its epochs, under rising numbers.

    More than 12 attributes: the parts of the chief that decide whether an epoch may begin meet here. Each has a writer
    of its own; `Epochs` writes `run`, `now`, `over` and the highest number.
    """

    def __init__(
        self, node: Node, cluster: Cluster, sessions: Sessions, members: RunMembers, agreement: Agreement, lead: Lead,
        restarted: bool,
    ) -> None:  # fmt: skip
        """`restarted`: an earlier chief of the run died. If this is not given, ps may still report it."""
        self._node, self._cluster, self._sessions, self._members = node, cluster, sessions, members
        self._agreement, self._lead, self.restarted = agreement, lead, restarted
        self._highest = 0
        """The highest run epoch that was ever used."""
        self.takeover = Takeover(node, self._found)
        self._journaling = Journaling(node, members, self.advance)
        self.losses = LostSteps()
        self.pushes = AppliedPushes()
        self.run: Run | None = None
        self.now: Epoch | None = None
        self.lock = Locking(node, self.advance, self._robbed)
        """The lock on the run's checkpoint_dir."""
        self.over = ""
        """END or FAILED once the run is over; "" before."""
        self.restored = 0, 0
        """The last session that wanted a restore, and the run epoch that this ended."""
        self._lost_dir = False
        self._elsewhere = SessionsElsewhere()

    @property
    def phase(self) -> str:
        if self.over:
            return self.over
        if self.now is not None:
            return self.now.phase
        return OPEN if self._cluster.complete() and not self.takeover.pending else GATHER

    @property
    def number(self) -> int:
        """The current run epoch; between two epochs, the highest number that was ever used."""
        return self._highest if self.now is None else self.now.number

    @property
    def unsure(self) -> bool:
        """Whether an earlier chief may have led a run about which not all ps have answered yet."""
        return not self.takeover.over and self.phase == GATHER

    def ps_came(self, task: int, address: str) -> None:
        """A ps has registered that has seen a run epoch. If this chief leads none yet, it was another chief's."""
        if not self.takeover.over:
            self.restarted = True
            self.takeover.came(task, address)

    def seen(self, number: int) -> None:
        """A node has seen this epoch, so its number is never used again."""
        self._highest = max(self._highest, number)

    # -- beginning ----------------------------------------------------------------------------------------------

    def advance(self, served: int = 0) -> None:
        """Take every step towards training that is possible now. `served`: the epoch that a ps reports to serve."""
        if self.phase == OPEN and not self.takeover.over and (newest := self.takeover.newest()) is not None:
            self._take_up(newest)
        if self.phase == OPEN and self.run is None:
            first = self._sessions.bringer()
            if first is not None:
                self._adopt(first)
            else:
                self.lock.release()  # the session with the checkpoint_dir was refused or is gone
        if self.phase == OPEN and self.run is not None and (self._sessions.waiting() or self._goes_on(served)):
            self._begin(self.run)
        if self.phase == RUN:
            self._lead.admit()

    def _goes_on(self, served: int) -> bool:
        """Whether a ps still serves the finished epoch to sessions that do not know of its end. This happens when the
        ps counted as lost while it was stopped."""
        return self.run is not None and bool(self.run.checkpoint_dir) and 0 < served <= self.number

    def _adopt(self, session: ClientSession) -> None:
        """Take plan and settings from the first session with variables."""
        try:
            run = self._run_of(session)
            if run is not None:
                self._take(run)
        except (DpsError, ValueError) as error:
            self._take(None)
            self._lead.refuse(session, error)
            self.advance()

    def _run_of(self, session: ClientSession) -> Run | None:
        """The run that the session wants. None while another run may use the checkpoint_dir, or while a ps of an
        earlier chief's run, which the session knows, has not registered with this chief."""
        request, storage = session.request, self._node.runtime.storage
        assert request is not None, "who brings a run has asked"
        settings, plan, known = dict(request.settings), Plan.from_wire(request.plan), request.epoch > 0
        if known:
            self._cluster.holders = plan.without_empty().ps
            if self._cluster.missing():
                return None
        elif set(plan.ps) != set(self._cluster.ps.known):
            there = sorted(self._cluster.ps.known)
            raise ConfigError(f"{session.name} places variables on ps {sorted(plan.ps)}; the cluster has {there}")
        settings["update"] = self._agreement.mode(session.name, settings.get("update"))
        checkpoint_dir = str(settings.get("checkpoint_dir") or "")
        if checkpoint_dir:
            same_run = self.restarted or known
            if not self.lock.take(checkpoint_dir, same_run, goes_on=known):
                return None
            if not same_run:  # otherwise the run has written there before
                storage.check_writable(checkpoint_dir)
                if warning := storage.close(checkpoint_dir, candidates(storage, checkpoint_dir)):
                    log.warning("%s: %s", self._node.name, warning)
            self.seen(read_journal(storage, checkpoint_dir, self._members, same_run))
        else:
            self.lock.release()  # a session that is gone may have wanted a checkpoint_dir
        return Run(plan.without_empty(), settings, checkpoint_dir, trained=known)

    def _take(self, run: Run | None) -> None:
        """Set the run to train. The chief waits only for the ps that hold some of its variables."""
        self.run = run
        self._cluster.holders = () if run is None else run.plan.ps
        if run is None:
            self._journaling.forget()
            self.lock.release()

    def _begin(self, run: Run) -> None:
        """Give every ps its shard, to restore or to fill with first values, once the journal has the epoch's number."""
        node = self._node
        self.takeover.over = True
        if self._journaling.problem:
            return  # it is tried again
        try:
            lost = run.begin_from(node.runtime.storage)
        except CheckpointError as error:  # another model
            self.unfit(error)
            return
        if run.trained and not run.restore:
            where = f"{run.checkpoint_dir} has no whole checkpoint" if run.checkpoint_dir else NOTHING_SAVED
            self._lead.fail(f"the values of the run are gone with its ps: {where}")
            return
        if run.checkpoint_dir and not self._journaling.write(run.checkpoint_dir, self._highest + 1):
            if not run.trained:
                self.unfit(CheckpointError(f"the run cannot begin: {self._journaling.problem}"))
            return
        self._highest += 1
        self.pushes.begins(run.restore)
        node.runtime.record("epoch", epoch=self.number, restore=run.restore, step=run.step)
        if run.restore:
            lost = max(lost, self.losses.reached - run.step)  # sessions and ps may report more steps before it trains
            text = run.begins(lost, node.runtime.wall())
            log.warning("%s: run epoch %d starts from %s", node.name, self.number, text)
        self.now = self._epoch(self._highest, run)
        self.now.configure()

    def _epoch(self, number: int, run: Run) -> Epoch:
        nodes = {task: known for task, known in sorted(self._cluster.ps.known.items()) if task in run.plan.ps}
        return Epoch(self._node, number, run, nodes, self._members, self.losses, self)

    # -- going on where another chief was -----------------------------------------------------------------------

    def _found(self) -> None:
        """A ps has reported what it serves. Wait for the other ps of its plan, unless the run had ended: then they may
        have been told so, and be gone."""
        newest = self.takeover.newest()
        if newest is not None and has_ended(self._node.runtime.storage, newest.checkpoint_dir, newest.epoch):
            self.takeover.over = True
            self._lead.finish()
            return
        if newest is not None:
            self._cluster.holders = Plan.from_wire(newest.plan).ps
            self._lead.ps_missing(self._cluster.missing())
        self.advance()
        self._lead.heard()

    def _take_up(self, newest: ConfiguredBefore) -> None:
        """All ps of another chief's run have registered. Continue its epoch if all of them serve it."""
        takeover, storage = self.takeover, self._node.runtime.storage
        takeover.over = self.restarted = True
        plan, settings, checkpoint_dir = Plan.from_wire(newest.plan), newest.settings, newest.checkpoint_dir
        self._agreement.mode("the run", settings.get("update"))
        self.seen(newest.epoch)
        run = Run(plan, settings, checkpoint_dir, newest.restore, step_of(newest.restore))
        self._take(run)
        if checkpoint_dir:
            try:
                self.lock.take(checkpoint_dir, restarted=True, goes_on=True)
                self.seen(read_journal(storage, checkpoint_dir, self._members))
            except LockTaken as error:
                self._robbed(str(error))
                return
            except CheckpointError as error:  # the ps know the same, except for checkpoints of other runs
                log.warning("%s: %s", self._node.name, error)
        noted = takeover.notes()
        if noted is not None:
            run.trained = True
            self._members.take_up(noted.notes)
            self._lead.take_up()
        if takeover.whole(plan, newest.epoch):
            self._resume(newest.epoch, run)
            return
        if noted is not None:
            self.losses.trains(noted.epoch, 0, unknown=True)
            self.losses.over([live.session for live in self._members.live.values() if live.trains])
        self._members.new_epoch()
        if run.trained and not checkpoint_dir:
            away = ", ".join(f"ps:{task}" for task in plan.ps if task not in takeover.found)
            self._lead.fail(f"{away} was lost with the chief and its values are gone: {NOTHING_SAVED}")

    def _resume(self, number: int, run: Run) -> None:
        self._node.runtime.record("taken up", epoch=number)
        names = ", ".join(sorted(live.name for live in self._members.live.values())) or "none"
        log.warning("%s: goes on with run epoch %d of an earlier chief; sessions: %s", self._node.name, number, names)
        self.losses.trains(number, run.step, unknown=True)
        self.now = self._epoch(number, run)
        self.now.resume()
        self._lead.ask_again()

    # -- ending -------------------------------------------------------------------------------------------------

    def lost(self, task: int, why: str) -> None:
        """A ps is lost with its shard. Without a checkpoint_dir this ends a run that trains."""
        self.takeover.lost(task)
        if self.now is None or self.run is None:
            return
        if self.phase == RUN and not self.run.checkpoint_dir:
            self._lead.fail(f"ps:{task} {why} and its values are gone: {NOTHING_SAVED}")
            return
        self.roll_back()

    def roll_back(self) -> None:
        """Roll back to a whole checkpoint, or to first values if none were published yet."""
        now, self.now = self.now, None
        if now is not None:
            now.end()
        self.losses.over([live.session for live in self._members.live.values() if live.trains])
        self._members.new_epoch()
        self.advance()

    def check_restore(self, session: int, epoch: int, name: str) -> None:
        """Raise the error for a session that wants a restore, if a restore is impossible."""
        if self.run is not None and not self.run.checkpoint_dir:
            raise ValueError("nothing to restore from: the run has no checkpoint_dir; give the first session one")
        known = session in self._sessions.known
        if self.run is None or not known or self.phase != RUN or epoch != self.number:
            raise Aborted(f"nothing can be restored now: {self.text()}")
        if name:
            checkpoint_dir = self.run.checkpoint_dir
            check_saved(self.run.plan, checkpoint_dir, load(self._node.runtime.storage, checkpoint_dir, name))

    def restore(self, session: int, name: str) -> None:
        """Roll back to a checkpoint ("": the newest whole one) because a session wants it."""
        assert self.run is not None
        self.run.wanted, self.restored = name, (session, self.number)
        self.roll_back()

    def stop(self, how: str) -> None:
        """The run is over: END or FAILED. The last checkpoint may still be written."""
        self.over = how
        if self.now is not None:
            self.now.stop()

    def close(self, ended: bool) -> None:
        """Write nothing more, so that another run may use the checkpoint_dir. `ended`: everything was saved."""
        if self.now is not None and self.now.checkpoints is not None:
            self.now.checkpoints.end()
        self.journal(ended)
        self._journaling.forget()
        self.lock.release()

    def _robbed(self, reason: str) -> None:
        """Another run has taken the checkpoint_dir; write nothing more there."""
        self._lost_dir = True
        self._lead.fail(f"another run has taken this run's checkpoint_dir: {reason}")

    def closed_elsewhere(self, checkpoint_dir: str, step: int) -> None:
        """A session that another chief admitted has closed, at this step."""
        self.restarted = True
        self._elsewhere.closed(checkpoint_dir, step)

    def unsaved(self) -> str:
        """If a run ends before this chief leads it: the checkpoint after which steps are lost, or ""."""
        return "" if self.run is not None else self._elsewhere.unsaved(self._node.runtime.storage)

    def session_gone(self, number: int) -> None:
        """A session is gone. If it should have sent the first values, ask another one."""
        if self.now is not None and self.phase == INITIALISE and self.now.initialiser == number:
            self.roll_back()

    # -- while one runs -----------------------------------------------------------------------------------------

    def members_changed(self) -> None:
        """Write the members into the journal and send them to every ps."""
        if self.now is not None and self.now.roster is not None and self.phase in (*TRAINS, HOLD):
            self.journal()
            self.now.roster.tell()

    def unsettled(self) -> bool:
        """Whether any session that trains does not ask yet to join again."""
        return any(live.trains and not self._sessions.at_the_door(i) for i, live in self._members.live.items())

    def journal(self, ended: bool = False) -> None:
        """Write the journal, which holds what another chief would need to know."""
        if self.run is not None and self.run.checkpoint_dir and not self._lost_dir:
            self._journaling.write(self.run.checkpoint_dir, self._highest, ended)

    def save(self, session: int, position: bytes, then: Result) -> None:
        """Write a checkpoint that a session asked for. Raises an error if it is impossible."""
        if self.run is not None and not self.run.checkpoint_dir:
            raise ValueError("nothing to save to: the run has no checkpoint_dir; give the first session one")
        if session not in self._sessions.known:
            raise Aborted("the chief was restarted and does not know this session; open the session again")
        if self.now is None or self.now.checkpoints is None or self.phase not in TRAINS:
            raise Aborted(f"nothing can be saved now: {self.text()}")
        self.now.checkpoints.save(then, position)

    def text(self) -> str:
        """What the chief waits for, as a sentence for people."""
        if self.over:
            return self.over
        if self.now is not None:
            return self.now.waits_for(self._sessions.name(self.now.initialiser))
        if not self._cluster.complete():
            return f"the chief waits for {self._cluster.waits_for(self._node.now())}"
        if self.takeover.pending:
            names = ", ".join(f"ps:{task}" for task in self.takeover.pending)
            return f"the chief, which was started again, waits for {names} to tell what it serves"
        if self.run is not None and self._journaling.problem:
            return f"no run epoch begins while the chief cannot write its journal: {self._journaling.problem}"
        if self.lock.waits_for:
            return f"the chief waits: {self.lock.waits_for}"
        return "the chief waits for a session " + ("that brings variables" if self.run is None else "to come back")

    # -- events of the current epoch ----------------------------------------------------------------------------

    def kept(self, incarnation: int) -> list[list[Any]]:
        return self.pushes.of(incarnation)

    def ended(self, ps: int, pushes: list[list[Any]]) -> None:
        self.pushes.ended(ps, pushes)

    def choose(self) -> ClientSession | None:
        return self._sessions.bringer()

    def deserted(self) -> None:
        self.now = None  # the next session begins another run

    def begun(self) -> None:
        if self.now is not None and self.run is not None and not self.now.resumed:
            self.losses.trains(self.number, self.run.step)
        self._lead.admit()

    def heard(self) -> None:
        self._lead.heard()

    def forgotten(self, ps: int) -> None:
        self._lead.ps_lost(ps, f"does not serve run epoch {self.number} any more")

    def unfit(self, error: Exception) -> None:
        """Refuse all waiting sessions with this error. A later session may want another run."""
        for session in self._sessions.waiting():
            self._lead.refuse(session, error)
        self._take(None)
        self.roll_back()

    def broken(self, reason: str) -> None:
        self._lead.fail(reason)
