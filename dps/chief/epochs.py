"""Begins and ends run epochs: chooses the plan and the checkpoint of the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dps.actors.node import Node
from dps.checkpoint import candidates, load
from dps.checkpoint.lock import LockTaken
from dps.chief.checkpoint_folder import Journaling, Locking
from dps.chief.checkpoints import Result
from dps.chief.cluster import Cluster
from dps.chief.epoch import Epoch, LostSteps
from dps.chief.members import RunMembers
from dps.chief.run import Agreement, Run, has_ended, read_journal, step_of
from dps.chief.sessions import ClientSession, Sessions
from dps.chief.takeover import AppliedPushes, EarlierSessions, Takeover
from dps.errors import Aborted, CheckpointError, ConfigError, DpsError
from dps.messages.runs import GATHER, HOLD, INITIALISE, OPEN, RUN, TRAINS, ConfiguredBefore
from dps.process.telemetry import log
from dps.transport.message import Message
from dps.variables.plan import Plan
from dps.variables.saved import check_saved
from dps.variables.tables import check_update

if TYPE_CHECKING:
    from dps.chief.publishing import NewestVersion, Publishing
    from dps.chief.server import ChiefActor

NOTHING_SAVED = "without a checkpoint_dir nothing was saved or can be restored; give the session a checkpoint_dir"


class Epochs:
    """The run that the first session defines, and its epochs, under rising numbers.

    More than 12 attributes: the parts of the chief that decide whether an epoch may begin meet here. Each has a writer
    of its own; `Epochs` writes `run`, `current`, `end_phase` and the highest number.
    """

    def __init__(
        self, node: Node, cluster: Cluster, sessions: Sessions, members: RunMembers, agreement: Agreement,
        chief: ChiefActor, restarted: bool,
    ) -> None:  # fmt: skip
        """`restarted`: an earlier chief of the run died. If this is not given, ps may still report it."""
        self._node, self._cluster, self._sessions, self._members = node, cluster, sessions, members
        self._agreement, self._chief, self.restarted = agreement, chief, restarted
        self._highest = 0
        """The highest run epoch that was ever used."""
        self.takeover = Takeover(node, self._found)
        self._journaling = Journaling(node, members, self.advance)
        self.losses = LostSteps()
        self.pushes = AppliedPushes()
        self.run: Run | None = None
        self.current: Epoch | None = None
        self.lock = Locking(node, self.advance, self._fail_without_lock)
        """The lock on the run's checkpoint_dir."""
        self.end_phase = ""
        """END or FAILED once the run is over; "" before."""
        self.restored = 0, 0
        """The last session that wanted a restore, and the run epoch that this ended."""
        self._publishing: Publishing | None = None
        self._lost_dir = False
        self._earlier_sessions = EarlierSessions()

    @property
    def phase(self) -> str:
        if self.end_phase:
            return self.end_phase
        if self.current is not None:
            return self.current.phase
        return OPEN if self._cluster.is_complete() and not self.takeover.pending else GATHER

    @property
    def number(self) -> int:
        """The current run epoch; between two epochs, the highest number that was ever used."""
        return self._highest if self.current is None else self.current.number

    @property
    def is_unsure(self) -> bool:
        """Whether an earlier chief may have led a run about which not all ps have answered yet."""
        return not self.takeover.is_over and self.phase == GATHER

    def ask_restarted_ps(self, task: int, address: str) -> None:
        """A ps has registered that has seen a run epoch. If this chief leads none yet, it was another chief's."""
        if not self.takeover.is_over:
            self.restarted = True
            self.takeover.ask_ps(task, address)

    def record_epoch(self, number: int) -> None:
        """A node has seen this epoch, so its number is never used again."""
        self._highest = max(self._highest, number)

    # -- beginning ----------------------------------------------------------------------------------------------

    def advance(self, served: int = 0) -> None:
        """Take every step towards training that is possible now. `served`: the epoch that a ps reports to serve."""
        if self.phase == OPEN and not self.takeover.is_over and (newest := self.takeover.newest()) is not None:
            self._take_over_run(newest)
        if self.phase == OPEN and self.run is None:
            first = self._sessions.first_with_variables()
            if first is not None:
                self._adopt_session(first)
            else:
                self.lock.release_lock()  # the session with the checkpoint_dir was refused or is gone
        if self.phase == OPEN and self.run is not None and (self._sessions.waiting() or self._is_still_served(served)):
            self._begin_epoch(self.run)
        if self.phase == RUN:
            self._chief.admit_waiting()

    def _is_still_served(self, served: int) -> bool:
        """Whether a ps still serves the finished epoch to sessions that do not know of its end. This happens when the
        ps counted as lost while it was stopped."""
        return self.run is not None and bool(self.run.checkpoint_dir) and 0 < served <= self.number

    def _adopt_session(self, session: ClientSession) -> None:
        """Take plan and settings from the first session with variables."""
        try:
            run = self._run_of(session)
            if run is not None:
                self._set_run(run)
        except (DpsError, ValueError) as error:
            self._set_run(None)
            self._chief.refuse_session(session, error)
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
        check_update(session.name, plan.tables, settings.get("update") or self._agreement.mode(session.name, None))
        settings["update"] = self._agreement.mode(session.name, settings.get("update"))
        checkpoint_dir = str(settings.get("checkpoint_dir") or "")
        self._members.run = f"{self._node.incarnation:016x}"  # unless the folder's journal has a name
        if checkpoint_dir:
            same_run = self.restarted or known
            if not self.lock.take_lock(checkpoint_dir, same_run, goes_on=known):
                return None
            if not same_run:  # otherwise the run has written there before
                storage.check_writable(checkpoint_dir)
                if warning := storage.close(checkpoint_dir, candidates(storage, checkpoint_dir)):
                    log.warning("%s: %s", self._node.name, warning)
            self.record_epoch(read_journal(storage, checkpoint_dir, self._members, same_run))
        else:
            self.lock.release_lock()  # a session that is gone may have wanted a checkpoint_dir
        settings["run"] = self._members.run
        return Run(plan.without_empty(), settings, checkpoint_dir, trained=known)

    def _set_run(self, run: Run | None) -> None:
        """Set the run to train. The chief waits only for the ps that hold some of its variables."""
        self.run = run
        self._cluster.holders = () if run is None else run.plan.ps
        if run is None:
            self._journaling.drop_write()
            self.lock.release_lock()

    def _begin_epoch(self, run: Run) -> None:
        """Give every ps its shard, to restore or to fill with first values, once the journal has the epoch's number."""
        node = self._node
        self.takeover.is_over = True
        if self._journaling.problem:
            return  # it is tried again
        try:
            lost = run.begin_from(node.runtime.storage)
        except CheckpointError as error:  # another model
            self.unfit(error)
            return
        if run.trained and not run.restore:
            where = f"{run.checkpoint_dir} has no whole checkpoint" if run.checkpoint_dir else NOTHING_SAVED
            self._chief.fail_run(f"the values of the run are gone with its ps: {where}")
            return
        if run.checkpoint_dir and not self._journaling.write(run.checkpoint_dir, self._highest + 1):
            if not run.trained:
                self.unfit(CheckpointError(f"the run cannot begin: {self._journaling.problem}"))
            return
        self._highest += 1
        self.pushes.begin_epoch(run.restore)
        node.runtime.record("epoch", epoch=self.number, restore=run.restore, step=run.step)
        if run.restore:
            lost = max(lost, self.losses.reached - run.step)  # sessions and ps may report more steps before it trains
            text = run.begins(lost, node.runtime.wall())
            log.warning("%s: run epoch %d starts from %s", node.name, self.number, text)
        self.current = self._make_epoch(self._highest, run)
        self.current.configure_ps()

    def _make_epoch(self, number: int, run: Run) -> Epoch:
        nodes = {task: known for task, known in sorted(self._cluster.ps.known.items()) if task in run.plan.ps}
        return Epoch(self._node, number, run, nodes, self._members, self.losses, self)

    # -- going on where another chief was -----------------------------------------------------------------------

    def _found(self) -> None:
        """A ps has reported what it serves. Wait for the other ps of its plan, unless the run had ended: then they may
        have been told so, and be gone."""
        newest = self.takeover.newest()
        if newest is not None and has_ended(self._node.runtime.storage, newest.checkpoint_dir, newest.epoch):
            self.takeover.is_over = True
            self._chief.finish_run()
            return
        if newest is not None:
            self._cluster.holders = Plan.from_wire(newest.plan).ps
            self._chief.await_missing_ps(self._cluster.missing())
        self.advance()
        self._chief.handle_known_members()

    def _take_over_run(self, newest: ConfiguredBefore) -> None:
        """All ps of another chief's run have registered. Continue its epoch if all of them serve it."""
        takeover, storage = self.takeover, self._node.runtime.storage
        takeover.is_over = self.restarted = True
        plan, settings, checkpoint_dir = Plan.from_wire(newest.plan), newest.settings, newest.checkpoint_dir
        self._agreement.mode("the run", settings.get("update"))
        self.record_epoch(newest.epoch)
        self._members.run = str(settings.get("run", ""))
        run = Run(plan, settings, checkpoint_dir, newest.restore, step_of(newest.restore))
        self._set_run(run)
        if checkpoint_dir:
            try:
                self.lock.take_lock(checkpoint_dir, restarted=True, goes_on=True)
                self.record_epoch(read_journal(storage, checkpoint_dir, self._members))
            except LockTaken as error:
                self._fail_without_lock(str(error))
                return
            except CheckpointError as error:  # the ps know the same, except for checkpoints of other runs
                log.warning("%s: %s", self._node.name, error)
        noted = takeover.notes()
        if noted is not None:
            run.trained = True
            self._members.take_over_notes(noted.notes)
            self._chief.take_over_sessions()
        highest, kept = takeover.versions(plan)
        self._members.published = max(self._members.published, highest)
        if takeover.is_whole(plan, newest.epoch):
            if kept:
                self.publishing.take_over(kept)
            self._resume_epoch(newest.epoch, run)
            return
        if noted is not None:
            self.losses.begin_epoch(noted.epoch, 0, unknown=True)
            self.losses.end_epoch([live.session for live in self._members.live.values() if live.trains])
        self._members.begin_epoch()
        if run.trained and not checkpoint_dir:
            away = ", ".join(f"ps:{task}" for task in plan.ps if task not in takeover.found)
            self._chief.fail_run(f"{away} was lost with the chief and its values are gone: {NOTHING_SAVED}")

    def _resume_epoch(self, number: int, run: Run) -> None:
        self._node.runtime.record("taken up", epoch=number)
        names = ", ".join(sorted(live.name for live in self._members.live.values())) or "none"
        log.warning("%s: goes on with run epoch %d of an earlier chief; sessions: %s", self._node.name, number, names)
        self.losses.begin_epoch(number, run.step, unknown=True)
        self.current = self._make_epoch(number, run)
        self.current.resume_epoch()
        self._chief.end_refused()

    # -- ending -------------------------------------------------------------------------------------------------

    def handle_lost_ps(self, task: int, why: str) -> None:
        """A ps is lost with its shard. Without a checkpoint_dir this ends a run that trains."""
        self.takeover.drop_answer(task)
        if self.current is None or self.run is None:
            return
        if self.phase == RUN and not self.run.checkpoint_dir:
            self._chief.fail_run(f"ps:{task} {why} and its values are gone: {NOTHING_SAVED}")
            return
        self.roll_back()

    def roll_back(self) -> None:
        """Roll back to a whole checkpoint, or to first values if none were published yet."""
        now, self.current = self.current, None
        if now is not None:
            now.end_epoch()
        if self._publishing is not None:
            self._publishing.end_epoch()
        self.losses.end_epoch([live.session for live in self._members.live.values() if live.trains])
        self._members.begin_epoch()
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

    def restore_checkpoint(self, session: int, name: str) -> None:
        """Roll back to a checkpoint ("": the newest whole one) because a session wants it."""
        assert self.run is not None
        self.run.wanted, self.restored = name, (session, self.number)
        self.roll_back()

    def stop_epochs(self, how: str) -> None:
        """The run is over: END or FAILED. The last checkpoint may still be written."""
        self.end_phase = how
        if self.current is not None:
            self.current.stop_admitting()

    def close(self, ended: bool) -> None:
        """Write nothing more, so that another run may use the checkpoint_dir. `ended`: everything was saved."""
        if self.current is not None and self.current.checkpoints is not None:
            self.current.checkpoints.stop_saving()
        self.write_journal(ended)
        self._journaling.drop_write()
        self.lock.release_lock()

    def _fail_without_lock(self, reason: str) -> None:
        """Another run has taken the checkpoint_dir; write nothing more there."""
        self._lost_dir = True
        self._chief.fail_run(f"another run has taken this run's checkpoint_dir: {reason}")

    def record_earlier_close(self, checkpoint_dir: str, step: int) -> None:
        """A session that another chief admitted has closed, at this step."""
        self.restarted = True
        self._earlier_sessions.record_close(checkpoint_dir, step)

    def unsaved_since(self) -> str:
        """If a run ends before this chief leads it: the checkpoint after which steps are lost, or ""."""
        return "" if self.run is not None else self._earlier_sessions.unsaved(self._node.runtime.storage)

    def handle_gone_session(self, number: int) -> None:
        """A session is gone. If it should have sent the first values, ask another one."""
        if self._publishing is not None:
            self._publishing.drop_follower(number)
        if self.current is not None and self.phase == INITIALISE and self.current.initialiser == number:
            self.roll_back()

    # -- while one runs -----------------------------------------------------------------------------------------

    def publish_members(self) -> None:
        """Write the members into the journal and send them to every ps."""
        if self.current is not None and self.current.roster is not None and self.phase in (*TRAINS, HOLD):
            self.write_journal()
            self.current.roster.tell_members()

    def is_unsettled(self) -> bool:
        """Whether any session that trains does not ask yet to join again."""
        return any(live.trains and not self._sessions.is_rejoining(i) for i, live in self._members.live.items())

    def write_journal(self, ended: bool = False) -> None:
        """Write the journal, which holds what another chief would need to know."""
        if self.run is not None and self.run.checkpoint_dir and not self._lost_dir:
            self._journaling.write(self.run.checkpoint_dir, self._highest, ended)

    def save(self, session: int, position: bytes, number: int, then: Result) -> None:
        """Write a checkpoint that a session asked for in its request of this number. Raises an error if it is
        impossible."""
        if self.run is not None and not self.run.checkpoint_dir:
            raise ValueError("nothing to save to: the run has no checkpoint_dir; give the first session one")
        if session not in self._sessions.known:
            raise Aborted("the chief was restarted and does not know this session; open the session again")
        if self.current is None or self.current.checkpoints is None or self.phase not in TRAINS:
            raise Aborted(f"nothing can be saved now: {self.text()}")
        self.current.checkpoints.save(then, position, (session, number))

    @property
    def publishing(self) -> Publishing:
        """The published versions of the run."""
        if self._publishing is None:
            from dps.chief.publishing import Publishing  # here: few runs publish, and a start is short

            self._publishing = Publishing(self._node, self._members, self._journal_problem)
        return self._publishing

    @property
    def newest_version(self) -> NewestVersion | None:
        """The newest published version that all ps keep."""
        return None if self._publishing is None else self._publishing.newest

    def _journal_problem(self) -> str:
        self.write_journal()
        return self._journaling.problem

    def publish(self, session: int, label: str, request: int, then: Callable[[Message | Exception], None]) -> None:
        """Publish the values as they are now, as a session has asked under this request number. Raises an error if that
        is impossible."""
        from dps.chief.publishing import check_label  # here: as `publishing`

        check_label(label)
        if session not in self._sessions.known:
            raise Aborted("the chief was restarted and does not know this session; open the session again")
        if self.current is None or self.run is None or self.phase not in TRAINS:
            raise Aborted(f"nothing can be published now: {self.text()}")
        current = self.current
        about = current.number, current.refs, self.run.plan.ps[0], current.may_have_halves, label
        self.publishing.publish(*about, (session, request), then)

    def text(self) -> str:
        """What the chief waits for, as a sentence for people."""
        if self.end_phase:
            return self.end_phase
        if self.current is not None:
            return self.current.waiting_text(self._sessions.name(self.current.initialiser))
        if not self._cluster.is_complete():
            return f"the chief waits for {self._cluster.missing_text(self._node.now())}"
        if self.takeover.pending:
            names = ", ".join(f"ps:{task}" for task in self.takeover.pending)
            return f"the chief, which was started again, waits for {names} to tell what it serves"
        if self.run is not None and self._journaling.problem:
            return f"no run epoch begins while the chief cannot write its journal: {self._journaling.problem}"
        if self.lock.waits_for:
            return f"the chief waits: {self.lock.waits_for}"
        return "the chief waits for a session " + ("that brings variables" if self.run is None else "to come back")

    # -- events of the current epoch ----------------------------------------------------------------------------

    def applied_pushes(self, incarnation: int) -> list[list[Any]]:
        return self.pushes.pushes_of(incarnation)

    def ended(self, ps: int, pushes: list[list[Any]]) -> None:
        self.pushes.record_ended(ps, pushes)

    def choose_initialiser(self) -> ClientSession | None:
        return self._sessions.first_with_variables()

    def deserted(self) -> None:
        self.current = None  # the next session begins another run

    def begun(self) -> None:
        if self.current is not None and self.run is not None and not self.current.resumed:
            self.losses.begin_epoch(self.number, self.run.step)
        self._chief.admit_waiting()

    def heard(self) -> None:
        self._chief.handle_known_members()

    def forgotten(self, ps: int) -> None:
        self._chief.handle_lost_ps(ps, f"does not serve run epoch {self.number} any more")

    def unfit(self, error: Exception) -> None:
        """Refuse all waiting sessions with this error. A later session may want another run."""
        for session in self._sessions.waiting():
            self._chief.refuse_session(session, error)
        self._set_run(None)
        self.roll_back()

    def broken(self, reason: str) -> None:
        self._chief.fail_run(reason)
