"""The chief's actor: gathers the cluster, starts run epochs, admits sessions, commits checkpoints, ends the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dps.actors.actor import Actor
from dps.actors.answers import Waiting
from dps.actors.ref import Sender
from dps.chief.admission import Admission
from dps.chief.cluster import Cluster
from dps.chief.ending import UNKNOWN, UNKNOWN_S, RunEnding
from dps.chief.epochs import Epochs
from dps.chief.leaving import Leaving
from dps.chief.members import RunMembers
from dps.chief.registration import Registration, check_claim, check_name
from dps.chief.run import Agreement
from dps.chief.sessions import ClientSession, Sessions
from dps.chief.waits import AbsentWorkers, MissingTasks
from dps.errors import Aborted, TaskLost, Unavailable
from dps.messages.runs import (
    END,
    FAILED,
    SERVED,
    TRAINS,
    AskCluster,
    AskPublished,
    AskState,
    AskStats,
    AskStatus,
    CloseSession,
    ClusterIs,
    Initialised,
    Leave,
    OpenSession,
    Publish,
    Register,
    Registered,
    Restore,
    RunState,
    Save,
    Saved,
    Stats,
)
from dps.process.telemetry import log

RESTART_S = 50.0  # less than a session's default timeout, so that it hears the reason
"""How long a lost ps may take to come back."""
EMPTY = "; it holds no variables, the run goes on"


class ChiefActor(Actor):
    """Leads one run, from the first ps to the last worker. `ended` is called once, with exit code and reason.

    It passes messages and losses to its parts `Epochs`, `Admission` and `RunEnding`. They share the cluster, the
    sessions and the members of the run.

    More than 12 attributes: the parts of the chief are made here and know each other through it; it writes none of
    them.
    """

    def __init__(
        self,
        ps: Sequence[int],
        workers: Sequence[int],
        update_mode: dict[str, Any] | None,
        ended: Callable[[int, str], None],
        owned: bool = False,
        restarted: bool = False,
        where: str = "",
        launched: bool = False,
        named: frozenset[str] = frozenset(),
    ) -> None:
        """`ps`, `workers`: expected task indices; workers may be empty (any may join). `owned`: only a stop from
        outside ends the run. `restarted`: an earlier chief of the run died; this one ends if nobody registers. `where`
        and `launched`: see `Cluster`. `named`: the addresses of the cluster spec."""
        self.cluster = Cluster(ps, workers, named)
        self.cluster.where, self.cluster.launched = where, launched
        self.members = RunMembers([f"worker:{t}" for t in workers])
        self.sessions = Sessions()
        self.agreement = Agreement(update_mode)
        self._ended, self._owned, self._restarted = ended, owned, restarted

    def started(self) -> None:
        node, cluster, sessions, members = self.node, self.cluster, self.sessions, self.members
        cluster.exposed = node.exposed
        self.epochs = Epochs(node, cluster, sessions, members, self.agreement, self, self._restarted)
        self.registration = Registration(node, cluster, members)
        self.admission = Admission(node, cluster, sessions, members, self.epochs)
        about = self.epochs, self.registration
        self.ending = RunEnding(node, cluster, sessions, members, *about, self._ended, self._owned)
        self.leaving = Leaving(node, cluster, self.epochs, self.ending, self.handle_lost_ps)
        where = "" if self._owned else cluster.where
        self._missing_tasks = MissingTasks(
            node, cluster, members, self._text, lambda: bool(self.epochs.end_phase), where,
            self.ending.waits_to_return,
        )  # fmt: skip
        self._missing_tasks.check_tasks()
        AbsentWorkers(node, cluster, members, self.epochs, self.admission, self.ending)

    def stopping(self) -> None:
        """Also called when the program ends in the middle of the run."""
        self.epochs.lock.release_lock()

    # -- nodes --------------------------------------------------------------------------------------------------

    def on_Register(self, message: Register, sender: Sender) -> None:
        if self.ending.shutdown.message is not None:
            self.node.answer(sender, self.ending.shutdown.message)
            return
        sender.check_ticket()
        cluster, job = self.cluster, message.job
        name = f"{job}:{message.task}" if message.task >= 0 else f"the {job} at {message.address}"
        check_name(job, message.task)
        check_claim(self.node.asker, job, name)
        self.agreement.mode(name, message.update)
        address = self.node.dial_address(message.address, cluster.reachability.named)
        if self.registration.must_wait(message, address, sender):
            return
        cluster.check_place(message, address, sender, self.sessions.addresses)
        self.registration.check_index(message, address)
        self.node.present(address, message.proof)
        if job not in cluster.jobs:
            cluster.reachability.check_reached(address, self.node.now(), self.node.address, name)
            self.node.answer(sender, Registered(max(message.task, 0), cluster.expected()))
            return
        if self.node.exposed:
            cluster.reachability.begin_trying(address, self.node.now())
        cluster.reachability.check_reached(address, self.node.now(), self.node.address, name)
        who = message.process, message.address, sender.peer.ticket, self.node.user
        task, replaced = cluster.jobs[job].register(message.task, address, *who)
        self.epochs.record_epoch(message.epoch)
        self.ending.mark_running(f"{job}:{task}")
        if job == "worker" and self.members.mark_come(f"worker:{task}"):
            self.epochs.publish_members()
        self._admit_tickets(sender)
        self.node.watch(address, cluster.grace_s(job))
        cluster.jobs[job].record_progress(task, self.node.up.get(address, 0), message.progress)
        self.node.answer(sender, Registered(task, cluster.expected()))
        if job == "ps":
            cluster.mark_ps_back(task)
            if replaced:
                self.handle_lost_ps(task, "was restarted")
            if message.epoch:
                self.epochs.ask_restarted_ps(task, address)
            self.epochs.advance(message.epoch)
        elif replaced:
            self._worker_back(f"worker:{task}")
        if job == "worker":
            self.ending.tell_to_stop(address)

    def _admit_tickets(self, sender: Sender) -> None:
        """Keep the ticket of a process that has come, and those of all that are here."""
        if not sender.peer.role:
            self.node.tickets.admit("run", self.cluster.tickets() + self.sessions.tickets())

    def back(self, address: str) -> None:
        self.cluster.reachability.mark_reached(address)
        self.cluster.connected(address, self.node.up.get(address, 0))

    def lost(self, address: str, silent_s: float) -> None:
        silent, problem = f"was silent for {silent_s:.1f} s", self.cluster.reachability.problem
        if (ps := self.cluster.ps.mark_lost(address)) is not None:
            self.handle_lost_ps(ps, problem(address, self.node.address, f"ps:{ps}") or silent)
        if (worker := self.cluster.workers.mark_lost(address)) is not None:
            name = f"worker:{worker}"
            why = self.ending.why_lost(name) or problem(address, self.node.address, name) or silent
            self._worker_lost(name, why)
        for session in self.sessions.sessions_at(address):
            self.admission.end_session(session, lost=True)
        self.node.unwatch(address)
        self.ending.shutdown.mark_told(address)
        self.ending.end_if_done()

    def _worker_lost(self, name: str, why: str) -> None:
        if self.epochs.end_phase:
            return
        if name not in self.members.finished and name not in self.members.given_up:
            log.warning("%s: %s %s%s", self.node.name, name, why, self._others_text(name))
            self.node.runtime.record("worker lost", name=name, why=why)
        self.ending.mark_lost(name, why)
        self._give_up(name)

    def _worker_back(self, name: str) -> None:
        """Another process has replaced a worker's: end the sessions of the old one."""
        if not self.epochs.end_phase:
            log.warning("%s: %s came back and joins again", self.node.name, name)
            self.node.runtime.record("worker lost", name=name, why="was restarted")
            self._give_up(name)

    def _others_text(self, name: str) -> str:
        """How the run continues without a worker, as text for the log."""
        others = {m.name for m in self.members.live.values() if m.worker} | set(self.members.waiting())
        return "; the others go on without it" if others - {name} else ""

    def _give_up(self, name: str) -> None:
        for session in self.sessions.sessions_of(name):
            self.admission.end_session(session, lost=True)
        self.admission.give_up(name)

    def handle_lost_ps(self, task: int, why: str) -> None:
        """A ps is lost, or has come back without its shard."""
        name, needed = f"ps:{task}", self.cluster.is_needed(task)
        if needed:
            self.ending.ps_lost(name, why)
        if self.epochs.end_phase:
            return
        log.warning("%s: %s %s%s", self.node.name, name, why, "" if needed else EMPTY)
        self.node.runtime.record("ps lost", name=name, why=why)
        if not self.cluster.ps.known[task].alive:
            self._wait_for_ps(task, why)
        if needed:
            self.epochs.handle_lost_ps(task, why)

    def _wait_for_ps(self, task: int, why: str) -> None:
        self.cluster.mark_ps_away(task, self.node.now())
        self.node.after(RESTART_S, lambda: self._give_up_ps(task, why))

    def _give_up_ps(self, task: int, why: str) -> None:
        away_s = self.cluster.away_s(task, self.node.now())
        if self.cluster.is_needed(task) and away_s >= RESTART_S - 0.01:
            self.fail_run(f"ps:{task} {why} and did not come back within {RESTART_S:.0f} s")

    # -- sessions -----------------------------------------------------------------------------------------------

    def on_OpenSession(self, message: OpenSession, sender: Sender) -> None:
        if self.epochs.end_phase == FAILED:
            raise TaskLost(self.ending.reason)
        if self.epochs.end_phase == END:
            told = self.ending.shutdown.message
            if told is not None and told.code:
                raise TaskLost(told.reason)
            raise Unavailable("the run has ended; start it again to train on")
        self.admission.open_session(message, sender)
        self._admit_tickets(sender)

    def on_Initialised(self, message: Initialised, sender: Sender) -> None:
        self.sessions.check_owner(message.session, sender)
        if self.epochs.current is not None:
            self.epochs.current.accept_first_values(message.session, message.epoch)
        self.node.answer(sender)

    def on_CloseSession(self, message: CloseSession, sender: Sender) -> None:
        self.sessions.check_owner(message.session, sender)
        check_name(message.job, message.task)
        if message.session not in self.sessions.known and not self.cluster.has_registered(
            message.job, message.task, sender
        ):
            self.admission.close_early(message, sender.peer.ticket)
        else:
            self.admission.close_session(message)
        self.node.answer(sender)
        self.ending.end_if_done()

    def on_Leave(self, message: Leave, sender: Sender) -> None:
        check_name(message.job, message.task)
        if message.job == "ps":
            self.leaving.ask_to_leave(message.task, message.reason, sender)
            return
        name = f"{message.job}:{message.task}"
        if self.registration.holder(message.job, message.task, "", sender.peer.ticket):  # its launcher may know first
            self.node.answer(sender, Waiting(f"{name} has not ended yet"))
            return
        self.node.answer(sender)
        if message.reason:
            self.handle_program_over(name, message.reason, message.code)
        elif self.cluster.is_alone and name in self.members.waiting():
            self.handle_program_over(name, "has left", UNKNOWN)
        elif name in self.members.waiting() and name not in self.members.joined:  # it may be started again
            self.ending.mark_lost(name, "has left before it took part in the training")
        if message.job == "worker" and (name in self.members.finished or name in self.members.given_up):
            self._worker_ends(message.task, None if message.reason else sender.peer.ticket)
            self.ending.end_if_done()

    def _worker_ends(self, task: int, ticket: str | None) -> None:
        """The process of a worker for which nobody waits has ended: it need not be told of the run's end."""
        address = self.cluster.workers.mark_left(task, ticket)
        if address is not None:
            self.ending.mark_process_gone(f"worker:{task}")
            for session in self.sessions.sessions_at(address):
                self.admission.end_session(session, lost=True)
            self.node.unwatch(address)
            self.ending.shutdown.mark_told(address)

    def handle_program_over(self, name: str, reason: str, code: int = 0) -> None:
        """A worker's program is over. If it made no session, stop waiting for it. If it failed or was killed (a
        negative `code`), its sessions end."""
        self.ending.mark_program_over(name, reason, code)
        self.members.mark_come(name)
        if name in self.members.waiting():
            without = (
                "finished without taking part in the training" if code == 0
                else f"{reason} before it took part in the training"
            )  # fmt: skip
            if reason != SERVED:
                log.warning("%s: %s %s%s", self.node.name, name, without, self._others_text(name))
            self.admission.give_up(name)
        elif code != 0:
            self._worker_lost(name, reason)
        self.ending.end_if_done()

    def on_Save(self, message: Save, sender: Sender) -> None:
        self.sessions.check_owner(message.session, sender)
        if self._must_wait(message.session, sender):
            return

        def saved(name: str | Exception, step: int) -> None:
            self.node.answer(sender, name if isinstance(name, Exception) else Saved(name, step))

        self.epochs.save(message.session, message.position, sender.request, saved)

    def on_Publish(self, message: Publish, sender: Sender) -> None:
        self.sessions.check_owner(message.session, sender)
        if not self._must_wait(message.session, sender):
            about = message.session, message.label, sender.request
            self.epochs.publish(*about, lambda answer: self.node.answer(sender, answer))

    def on_AskPublished(self, message: AskPublished, sender: Sender) -> None:
        self.sessions.check_owner(message.session, sender)
        if not self._must_wait(message.session, sender):
            if message.session not in self.sessions.known:
                raise Aborted("the chief was restarted and does not know this session; open the session again")
            self.epochs.publishing.tell_newer(message.session, sender, message.run, message.newer_than)

    def on_Restore(self, message: Restore, sender: Sender) -> None:
        self.sessions.check_owner(message.session, sender)
        if self._must_wait(message.session, sender):
            return
        if self.epochs.restored == (message.session, message.epoch):  # its answer was lost
            self.node.answer(sender)
            return
        self.epochs.check_restore(message.session, message.epoch, message.name)
        self.node.answer(sender)
        log.warning("%s: %s asked to go back to a checkpoint", self.node.name, self.sessions.name(message.session))
        self.epochs.restore_checkpoint(message.session, message.name)

    # -- questions ----------------------------------------------------------------------------------------------

    def _must_wait(self, session: int, sender: Sender) -> bool:
        """Whether to let a session of another chief wait, because the state of the run is not known yet."""
        if self.epochs.is_unsure and session not in self.sessions.known:
            self.node.answer(sender, Waiting(self._text()))
            return True
        return False

    def on_AskState(self, message: AskState, sender: Sender) -> None:
        epochs, number = self.epochs, message.session
        if epochs.end_phase == FAILED:
            raise TaskLost(self.ending.reason)
        if self._must_wait(number, sender):
            return
        known = number in self.sessions.known and self.members.incarnation_of(number) is not None
        leads = self.members.leader() == number
        self.node.answer(sender, RunState(epochs.number, known and epochs.phase in TRAINS, leads, self._text()))

    def on_AskCluster(self, message: AskCluster, sender: Sender) -> None:
        complete, found = self.cluster.is_complete(), self.cluster.to_wire()
        if self.node.asker == "reader":
            found = {"ps": found["ps"]}
        text = "" if complete else self._text()
        self.node.answer(sender, ClusterIs(found, complete, text, self.cluster.keys(found)))

    def on_AskStats(self, message: AskStats, sender: Sender) -> None:
        self.node.answer(sender, Stats(self._stats()))

    def on_AskStatus(self, message: AskStatus, sender: Sender) -> None:
        members = self.members
        tasks = {
            "cluster": self.cluster.to_wire(), "waiting": members.waiting(), "finished": members.finished,
            "given_up": members.given_up, "batches": self.sessions.batches(), "progress": self.cluster.progress(),
        }  # fmt: skip
        self.node.answer(sender, Stats(self._stats() | tasks))

    def _stats(self) -> dict[str, Any]:
        """How the run does."""
        epochs = self.epochs
        saved = epochs.current.checkpoints if epochs.current is not None else None
        newest = epochs.newest_version
        published = [] if newest is None else [newest.number, newest.label, newest.step, self.node.now() - newest.at]
        return {
            "run": self.members.run, "published": published,
            "phase": epochs.phase, "epoch": epochs.number, "text": self._text(),
            "live": [member.name for member in self.members.live.values()], "away": self._away(),
            "saved": saved.saved_name if saved else "", "saved_ago": saved.saved_ago if saved else "",
        }  # fmt: skip

    def _away(self) -> dict[str, list[float]]:
        """The ps that are needed and away: since how many seconds, and how many more they may take to come back."""
        now, cluster = self.node.now(), self.cluster
        since = {task: cluster.away_s(task, now) for task in cluster.ps.known if cluster.is_away(task)}
        return {
            f"ps:{task}": [away_s, max(0.0, RESTART_S - away_s)]
            for task, away_s in since.items() if cluster.is_needed(task)
        }  # fmt: skip

    def _text(self) -> str:
        return self.ending.reason or self.epochs.text()

    # -- requests of the parts ----------------------------------------------------------------------------------

    def refuse_session(self, session: ClientSession, error: Exception) -> None:
        """A session cannot take part in this run."""
        self.admission.refuse_session(session, error)

    def admit_waiting(self) -> None:
        """Admit the sessions that wait."""
        if self.admission.admit_waiting():
            self.ending.mark_admitted()

    def take_over_sessions(self) -> None:
        """Take over the members that another chief admitted."""
        self.admission.take_over_sessions()

    def end_refused(self) -> None:
        """Handle earlier requests again: a ps of the epoch that was taken over may have refused their sessions."""
        self.admission.end_refused()

    def await_missing_ps(self, tasks: Sequence[int]) -> None:
        """These ps are needed, and have not registered with this chief."""
        for task in tasks:
            if not self.cluster.is_away(task):
                self._wait_for_ps(task, "was lost with the chief")

    def finish_run(self) -> None:
        """The run has ended well, and an earlier chief has saved it."""
        self.ending.stop_run(UNKNOWN_S)

    def handle_known_members(self) -> None:
        """A ps has received a newer list of members."""
        self.admission.answer_admitted()
        self.ending.end_if_done()

    def fail_run(self, reason: str) -> None:
        """The run cannot continue."""
        self.ending.fail_run(reason)

    def drain(self, reason: str) -> None:
        """End the run in order: workers stop after their step, and the last step is saved."""
        self.ending.drain_run(reason)

    def stop_run(self) -> None:
        """End the run from this side (`Server.stop` of the chief); nothing is saved."""
        self.ending.stop_run()
