"""Decides when the run is over and ends it: saves the last step and tells every task. Also reports failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dps.actors.node import Node
from dps.actors.ref import Ref
from dps.checkpoint import candidates
from dps.chief.cluster import Cluster
from dps.chief.epochs import Epochs
from dps.chief.members import RunMembers
from dps.chief.registration import Registration
from dps.chief.run import Run
from dps.chief.sessions import Sessions
from dps.errors import CheckpointError, TaskLost
from dps.messages.runs import AGENT, END, FAILED, HOLD, RUN, SETTLE, Drain, StopTask
from dps.process.telemetry import log

STOP_S = 10.0
"""How long an ending chief tries to reach absent nodes. It does not wait for nodes whose process is gone."""


class Shutdown:
    """Tells nodes to stop, and calls `ended(code, reason)` once, when all have heard it or are gone."""

    def __init__(self, node: Node, ended: Callable[[int, str], None]) -> None:
        self.node, self._ended = node, ended
        self.message: StopTask | None = None
        """The message for nodes once the run is over; None before."""
        self._untold: set[str] = set()
        self._over = False
        self._linger_s = 0.0

    def tell_nodes(self, message: StopTask, addresses: Iterable[str], linger_s: float) -> None:
        """Tell the nodes at these addresses. Wait another `linger_s` for nodes that have not registered yet."""
        self.message, self._linger_s = message, linger_s
        self._untold = set(addresses) - {self.node.address}
        for address in sorted(self._untold):
            self.node.ask(Ref(address, AGENT), message, STOP_S, lambda _, a=address: self.mark_told(a))  # type: ignore[misc]
        self.mark_told("")

    def mark_told(self, address: str) -> None:
        """Note that a node knows that the run is over, or is gone."""
        self._untold.discard(address)
        if self.message is not None and not self._untold and not self._over:
            self._over = True
            code, reason = self.message.code, self.message.reason
            self.node.after(self._linger_s, lambda: self._ended(code, reason))


LAST_SAVE_S = 2.0
"""Seconds between attempts to write the last checkpoint."""
LAST_SAVE_TRIES = 6
REJOIN_S = 50.0
"""How long the run goes on when all workers were lost and none has finished; as long as for a ps. A machine that was
suspended for half a minute can come back."""
UNKNOWN_S = 5.0
"""After a restart: how long an ending chief waits for nodes that have not found it yet, so that it can tell them."""

DRAIN_S = 20.0
"""How long workers may take to stop when the run is told to end."""
UNKNOWN = -1
"""Stands for the exit code of a worker that was lost before its process ended."""


class RunEnding:
    """Ends the run once: when `end_if_done` finds that all workers are done, or when `fail_run` or `stop_run` is
    called.

    More than 12 attributes: whether a run is over depends on tasks, sessions, members and the epoch, which others
    write. Written here is who has left and why, and how far the last save is.
    """

    def __init__(
        self, node: Node, cluster: Cluster, sessions: Sessions, members: RunMembers, epochs: Epochs,
        registration: Registration, ended: Callable[[int, str], None], owned: bool,
    ) -> None:  # fmt: skip
        """`ended` gets exit code and reason. `owned`: only `stop_run` ends the run."""
        self._node, self._cluster, self._sessions = node, cluster, sessions
        self._members, self._epochs, self._registration = members, epochs, registration
        self._owned = owned
        self.shutdown = Shutdown(node, ended)
        self.reason = ""
        """Why the run has failed."""
        self._left: dict[str, int] = {}
        """Exit codes of workers whose programs are over; a negative code is the signal that killed one."""
        self._why: dict[str, str] = {}
        """How workers were lost, such as "was silent for 1.0 s"."""
        self._saving = False
        self._tries = LAST_SAVE_TRIES
        self._alone_since: float | None = None
        self._drained: tuple[int, str] | None = None
        """Exit code and reason, once the run was told to end in order."""
        self._all_is_saved = False
        """Whether a checkpoint was written when nobody trained any more, and nobody was admitted since."""
        self._late = False
        """Whether workers that have not stopped after a drain are no longer waited for."""

    # -- who is still there -------------------------------------------------------------------------------------

    def mark_running(self, name: str) -> None:
        """Note that a task has registered: its program is running, whatever was known of an earlier one."""
        self._left.pop(name, None)
        self._why.pop(name, None)

    def mark_program_over(self, name: str, reason: str, code: int) -> None:
        """Note that a worker's program is over and does not come back."""
        self._left[name], self._why[name] = code, reason

    def mark_process_gone(self, name: str) -> None:
        """Note that the process of a worker for which nobody waits has ended. How it ended is not known."""
        self._left.setdefault(name, UNKNOWN)

    def mark_lost(self, name: str, why: str) -> None:
        """Note that a worker is lost; it may come back."""
        self._why.setdefault(name, why)

    def why_lost(self, name: str) -> str:
        """What is known of the end of a worker that has not registered since; "" if nothing is."""
        return self._why.get(name, "")

    def mark_admitted(self) -> None:
        """Note that a session was admitted and trains."""
        self._alone_since, self._all_is_saved = None, False

    def mark_all_saved(self) -> None:
        """Note that a checkpoint was written when nobody trained any more."""
        self._all_is_saved = True

    def end_if_done(self) -> None:
        """End the run if all workers are done. Called after every change."""
        if self._epochs.end_phase or self._epochs.phase in (SETTLE, HOLD) or not self._is_done():
            return
        now, trained = self._epochs.current, self._epochs.phase == RUN
        if trained and now is not None and now.ps_behind() and not self._late:
            return  # their last step is decided only once every ps knows who has left
        run = self._epochs.run
        unsaved = run is not None and bool(run.checkpoint_dir) and run.trained and not (trained or self._all_is_saved)
        if run is not None and unsaved and self._members.finished:
            self.fail_run(f"the last checkpoint could not be written: {self._epochs.text()}; {self._lost_after(run)}")
            return
        if after := self._epochs.unsaved_since():
            why = "its ps was lost with the chief"
            self.fail_run(f"the last checkpoint could not be written: {why}; the steps after {after} are lost")
            return
        self._epochs.stop_epochs(END)
        if not trained or now is None or now.checkpoints is None:
            self._stop_all(*self._verdict(), self._linger_s())
            return
        self._saving = True
        self._save_last()

    @property
    def is_near(self) -> bool:
        """Whether the run ends, or will as soon as every ps knows who has left."""
        return bool(self._epochs.end_phase or self._drained is not None or self._is_done())

    def _is_done(self) -> bool:
        """Whether all workers are done: none trains, none is expected, and none may come back."""
        if self._late:
            return True
        if self._has_trainers() or (self._epochs.restarted and self._epochs.is_unsure):
            return False  # an earlier chief's run may still have to be saved
        if self._drained is not None:
            return True
        if self._owned or not self._members.is_all_done():
            return False
        gone_for_good = self._left.keys() >= set(self._members.given_up)
        return bool(self._members.finished) or gone_for_good or self._is_alone_for_long()

    def _has_trainers(self) -> bool:
        """Whether any session keeps the run going. Readers from outside the cluster do not count."""
        return any(s.job in self._cluster.jobs or s.trains for s in self._sessions.known.values())

    def _is_alone_for_long(self) -> bool:
        """Whether REJOIN_S is over since all workers were lost; lost workers get that time to come back."""
        now = self._node.now()
        if self._alone_since is None:
            self._alone_since = now
            self._node.after(REJOIN_S + 0.1, self.end_if_done)
        return now - self._alone_since >= REJOIN_S

    def waits_to_return(self) -> list[str]:
        """The lost workers for which alone the run goes on: no other one trains, and none has finished."""
        return [] if self._alone_since is None else sorted(self.may_come_back())

    def _verdict(self) -> tuple[int, str]:
        """Exit code and reason of a run whose workers are done. The code is 0 only if at least one finished."""
        code, reason = self._drained or (0, "")
        with_error = dict.fromkeys(self._members.failed, "ended with an error")
        gone = {**dict.fromkeys(self._members.given_up, "did not come"), **with_error}
        if code or self._members.has_succeeded() or 0 in self._left.values() or not gone:
            return code, reason
        failed = all(name in with_error or self._left.get(name, -1) > 0 for name in gone)  # their own programs failed
        became = ", ".join(f"{name} {self._why.get(name, gone[name])}" for name in sorted(gone))
        self._node.runtime.record("nobody finished", names=sorted(gone))
        blank = self._epochs.restarted and self._epochs.run is None
        note = "; this chief was started again, and no ps knows how the run had gone before" if blank else ""
        return (1 if failed else 3), f"no worker finished: {became}{note}"

    def _linger_s(self) -> float:
        """How long to wait for nodes that have not found this chief (again) yet, so that they hear of the end."""
        away = self._cluster.ps.missing() or (self._epochs.restarted and self._cluster.workers.away())
        return UNKNOWN_S if away or (self.may_come_back() and not self._members.finished) else 0.0

    def may_come_back(self) -> list[str]:
        """Workers that were given up, but whose programs may still run."""
        return [name for name in self._members.given_up if name not in self._left]

    # -- the last checkpoint ------------------------------------------------------------------------------------

    def _save_last(self) -> None:
        """Save the last step. If the disk is full for a moment, try again several times."""
        now = self._epochs.current
        ends = self._epochs.end_phase == END and self.shutdown.message is None
        if now is not None and now.checkpoints is not None and ends:
            now.checkpoints.save(self._last_saved)

    def _last_saved(self, name: str | Exception, step: int) -> None:
        if not self._saving or self._epochs.end_phase != END or self.shutdown.message is not None:
            return
        self._tries -= 1
        if isinstance(name, Exception) and self._tries > 0:
            self._node.after(LAST_SAVE_S, self._save_last)
            return
        self._saving = False
        if isinstance(name, Exception):
            self._stop_all(CheckpointError.exit_code, f"the last checkpoint could not be written: {name}")
        else:
            self._stop_all(*self._verdict(), self._linger_s())

    def ps_lost(self, name: str, why: str) -> None:
        """A ps was lost. If its shard was not saved yet, the last steps are lost with it."""
        now = self._epochs.current
        if self._saving and self._epochs.end_phase == END and now is not None and now.checkpoints is not None:
            saved = now.checkpoints.saved_name or "the start"
            self.fail_run(f"{name} {why} during the last checkpoint; the steps after {saved} are lost")

    def _lost_after(self, run: Run) -> str:
        names = candidates(self._node.runtime.storage, run.checkpoint_dir)
        return f"the steps after {names[0] if names else 'the start'} are lost"

    # -- the end ------------------------------------------------------------------------------------------------

    @property
    def draining(self) -> str:
        """Why workers must stop after their step; "" while they need not."""
        return "" if self._drained is None else self._drained[1]

    def drain_run(self, reason: str, code: int = 0) -> None:
        """End the run in order, with this exit code: workers stop after their step, then the last one is saved."""
        if self._epochs.end_phase or (self._drained is not None and code):
            return
        first, self._drained = self._drained is None, (code, reason)
        if first:
            addresses = [node.address for node in self._cluster.workers.known.values() if node.alive]
            if addresses:
                log.warning("%s: %s; the workers stop after their step", self._node.name, reason)
            for address in addresses:
                self.tell_to_stop(address)
            self._node.after(DRAIN_S, self._give_up_late)
        self.end_if_done()

    def tell_to_stop(self, address: str) -> None:
        """If the run is draining, tell a worker's node to stop."""
        if self._drained is not None:
            self._node.tell(Ref(address, AGENT), Drain(self._drained[1]))

    def _give_up_late(self) -> None:
        if not self._epochs.end_phase:
            late = ", ".join(sorted({session.name for session in self._sessions.known.values() if session.trains}))
            who = late or "the workers"
            log.warning("%s: %s did not stop within %.0f s; the run ends", self._node.name, who, DRAIN_S)
            self._late = True
            self.end_if_done()

    def stop_run(self, linger_s: float = 0.0) -> None:
        """End the run from this side, without saving. Wait so long for nodes that have not registered yet."""
        if self.shutdown.message is None:
            self._epochs.stop_epochs(END)
            self._stop_all(0, "", linger_s)

    def fail_run(self, reason: str) -> None:
        """End the run with an error and tell every task the reason. Does nothing if the end was already announced."""
        if self._epochs.end_phase == FAILED or self.shutdown.message is not None:
            return
        log.error("%s: %s", self._node.name, reason)
        self._node.runtime.record("failed", reason=reason)
        self._epochs.stop_epochs(FAILED)
        self.reason = reason
        for session in self._sessions.waiting():
            assert session.opened is not None
            self._node.answer(session.opened, TaskLost(reason))
        self._stop_all(3, reason)

    def _stop_all(self, code: int, reason: str, linger_s: float = 0.0) -> None:
        """Tell every node to stop, and end when all have heard it."""
        self._saving = False
        self._epochs.close(ended=code == 0)
        addresses = self._cluster.living()
        addresses += [s.address for s in self._sessions.known.values() if s.address]  # readers have nodes of their own
        message = StopTask(code, reason)
        self._registration.tell_waiting(message)
        self.shutdown.tell_nodes(message, addresses, linger_s)
