"""Admits sessions to the run and ends them: they are refused, admitted, closed or lost."""

from __future__ import annotations

from dps.actors.answers import Waiting
from dps.actors.node import Node
from dps.actors.ref import Sender
from dps.chief.cluster import Cluster
from dps.chief.epochs import Epochs
from dps.chief.members import RunMembers
from dps.chief.registration import check_claim, check_name
from dps.chief.run import check_fits, read_journal
from dps.chief.sessions import ClientSession, Sessions
from dps.errors import CheckpointError, DpsError
from dps.messages.runs import INITIALISE, RUN, CloseSession, OpenSession
from dps.process.telemetry import log
from dps.variables.plan import Plan

EARLY = 4096
"""The most closes that are kept of sessions that are not known yet."""


class Admission:
    """Connects the sessions with the members of the run and its epochs."""

    def __init__(self, node: Node, cluster: Cluster, sessions: Sessions, members: RunMembers, epochs: Epochs) -> None:
        self._node, self._cluster, self._sessions = node, cluster, sessions
        self._members, self._epochs = members, epochs
        self._early: dict[int, tuple[CloseSession, str]] = {}
        """The closes of sessions that another chief admitted, whose tickets are not known here yet."""

    # -- in -----------------------------------------------------------------------------------------------------

    def open_session(self, message: OpenSession, sender: Sender) -> None:
        """A session asks for admission, for the first time or after its epoch or its incarnation has ended."""
        self._sessions.check_open(message.session)
        check_name(message.job, message.task)
        job = message.job if message.job in ("worker", "evaluator") else "client"
        check_claim(self._node.asker, job, f"a session of {message.job}:{message.task}", bool(message.plan))
        if not self._cluster.knows_process(message.job, message.task, message.process, sender.peer.ticket):
            self._node.answer(sender, Waiting(f"{message.job}:{message.task} has not registered yet"))
            return
        if waits := self._waits_for_folder(message, sender):
            self._node.answer(sender, Waiting(waits))
            return
        reaching = self._cluster.reachability
        address = self._node.dial_address(message.address, reaching.named) if message.address else ""
        if address and message.session not in self._sessions.known:
            self._cluster.check_room(address, self._sessions.addresses())
        session = self._sessions.open_session(message, sender, address)
        self._epochs.record_epoch(message.epoch)
        self._epochs.losses.record_join(message.session, message.epoch, message.step)
        if address:
            if self._node.exposed:
                reaching.begin_trying(address, self._node.now())
            self._node.watch(address, self._cluster.grace_s(message.job))
        if self._refuse_different(session):
            return
        self._end_refused(session)
        epochs = self._epochs
        epochs.advance()
        if epochs.current is not None and epochs.phase == INITIALISE and epochs.current.initialiser == session.number:
            epochs.current.answer_session(session, 0, initialise=True)
        elif session.opened is not None and session.number in self._sessions.known and not epochs.end_phase:
            self._node.answer(sender, Waiting(epochs.text()))

    def _waits_for_folder(self, message: OpenSession, sender: Sender) -> str:
        """What the session waits for before it may name its checkpoint_dir. Raises CheckpointError if it may not."""
        if self._epochs.run is not None:
            return ""  # `_refuse_different` refuses another one than the run's
        name, wanted = f"{message.job}:{message.task}", str(message.settings.get("checkpoint_dir") or "")
        own, joined = sender.peer is self._node.tickets.own, " " in self._node.user
        root = self._cluster.checkpoint_root
        if message.plan.get("made") and not own:
            for spec in Plan.from_wire(message.plan).variables:
                if spec.init is not None and "path" in spec.init:  # of `FromFile`
                    root.check_file(name, spec.init["path"], joined)
        return root.waiting_text(name, wanted, own, joined)

    def _refuse_different(self, session: ClientSession) -> bool:
        """Refuse a session whose layout or settings are not those of the run."""
        run, request = self._epochs.run, session.request
        if run is None or request is None:
            return False
        try:
            check_fits(session.name, request.plan, request.settings, run.plan, run.settings)
        except (DpsError, ValueError) as error:
            self.refuse_session(session, error)
            return True
        return False

    def _end_refused(self, session: ClientSession) -> None:
        """End the incarnation of a session that asks again in the current epoch, because a ps has refused it."""
        incarnation, epochs = self._members.incarnation_of(session.number), self._epochs
        epoch = 0 if session.request is None else session.request.epoch
        again = session.request is not None and incarnation == session.request.incarnation and epoch == epochs.number
        if incarnation is not None and again and epochs.phase == RUN:
            self._members.end_incarnation(incarnation, lost=True)
            self._record_end(incarnation, session, lost=True)

    def refuse_session(self, session: ClientSession, error: Exception) -> None:
        """Refuse a session that cannot take part in this run."""
        if session.opened is not None:
            self._node.answer(session.opened, error)
            session.opened = None
        self._sessions.drop_session(session)

    def admit_waiting(self) -> bool:
        """Give incarnations to the waiting sessions; returns whether any session got one."""
        admitted = self._sessions.admit_waiting(self._members)
        for incarnation, session in admitted:
            self._node.runtime.record("admitted", incarnation=incarnation, name=session.name, epoch=self._epochs.number)
        if admitted:
            self._epochs.publish_members()
        self.answer_admitted()
        return bool(admitted)

    def answer_admitted(self) -> None:
        """Tell sessions their incarnation once every ps knows it."""
        now = self._epochs.current
        if now is None or now.roster is None or self._epochs.phase != RUN:
            return
        for incarnation, session in self._sessions.answerable(self._members, now.roster.known):
            now.answer_session(session, incarnation, initialise=False)
            session.opened = None

    def take_over_sessions(self) -> None:
        """Take over the sessions of another chief. End those that have closed or whose process was replaced."""
        self.count_early()
        workers = self._cluster.workers
        for incarnation, live in list(self._members.live.items()):
            failed = self._sessions.close_state(live.session)
            if failed is not None:
                self._members.end_incarnation(incarnation, lost=False, failed=failed)
            elif live.name.startswith("worker:") and workers.take_over_node(live.task, live.address, live.process):
                self._members.end_incarnation(incarnation, lost=True)
            else:
                self._sessions.take_over_session(live)
                if live.address:
                    job = live.name.partition(":")[0]
                    self._node.expect(live.address, "worker" if job == "client" else job)
                    self._node.watch(live.address, self._cluster.grace_s(job))

    def end_refused(self) -> None:
        """Handle the requests of sessions that asked before this chief knew their incarnations."""
        for session in self._sessions.waiting():
            self._end_refused(session)

    # -- out ----------------------------------------------------------------------------------------------------

    def close_session(self, message: CloseSession) -> None:
        """A program has closed its session."""
        session = self._sessions.known.get(message.session)
        self._epochs.losses.record_close(message.session, message.epoch, message.step)
        news = self._sessions.mark_closed(message.session, bool(message.error))
        if session is not None:
            self.end_session(session, lost=False, failed=bool(message.error))
        elif news and message.job in self._cluster.jobs:
            self._close_earlier_session(message)

    def close_early(self, message: CloseSession, ticket: str) -> None:
        """A session that this chief does not know has closed, and its task has not registered. It counts once the
        ticket with which it did is known to be that of its process."""
        if len(self._early) < EARLY:
            self._early[message.session] = message, ticket
            self.count_early()

    def count_early(self) -> None:
        """Count the early closes whose tickets are known by now, and forget those that were forged."""
        for number, (message, ticket) in list(self._early.items()):
            name, nodes = f"{message.job}:{message.task}", self._cluster.jobs[message.job].known
            live = next((live for live in self._members.live.values() if live.session == number), None)
            wanted = self._members.expected_tickets.get(name) if live is None else live.ticket
            if wanted is None and message.task in nodes:
                wanted = nodes[message.task].ticket
            if wanted is not None:
                del self._early[number]
                if wanted == ticket:
                    self.close_session(message)

    def _close_earlier_session(self, message: CloseSession) -> None:
        """A session of an earlier chief has closed: its worker is done."""
        told = message.checkpoint_dir
        folder = told if told and self._cluster.checkpoint_root.is_allowed(told) else ""
        self._epochs.record_earlier_close(folder, message.step)
        if self._epochs.run is None and folder:
            try:
                read_journal(self._node.runtime.storage, folder, self._members)
            except CheckpointError as error:
                log.warning("%s: %s", self._node.name, error)
        self._members.mark_finished_before(f"{message.job}:{message.task}")
        self._epochs.publish_members()

    def end_session(self, session: ClientSession, lost: bool, failed: bool = False) -> None:
        """End a session that has closed or whose node is lost."""
        incarnation = self._members.incarnation_of(session.number)
        self._sessions.drop_session(session)
        if incarnation is not None:
            if lost and session.trains:
                self._epochs.losses.add_lost(session.number)
            self._members.end_incarnation(incarnation, lost, failed)
            self._record_end(incarnation, session, lost, failed)
            self._epochs.publish_members()
        elif session.job == "worker" and not lost:
            self._members.mark_finished(session.name)
            self._node.runtime.record("finished", name=session.name)
            self._epochs.publish_members()
        self._epochs.handle_gone_session(session.number)

    def give_up(self, name: str) -> None:
        """Stop waiting for a worker that is lost or never came."""
        self._members.give_up(name)
        self._epochs.publish_members()

    def _record_end(self, incarnation: int, session: ClientSession, lost: bool, failed: bool = False) -> None:
        how = {"lost": lost, "failed": failed}
        self._node.runtime.record("ended", incarnation=incarnation, name=session.name, **how)
