"""What another process did to a run by claiming to be somebody: it is refused, counted, logged once, and harms none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors import authorization as tickets_of_nodes
from dps.actors.answers import Done, Failed, Waiting
from dps.actors.authorization import (
    EARLY,
    EARLY_S,
    ROUTES,
    STRANGER,
    STRANGERS,
    STRANGERS_ROUTES,
    Peer,
    Present,
    Tickets,
    digest,
)
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.collectives.messages import GROUPS, LeaveGroup
from dps.errors import Aborted, DeadlineExceeded, DpsError, NotAuthenticated
from dps.messages.runs import (
    AGENT,
    CHIEF,
    AskPublished,
    AskServing,
    CloseSession,
    Configure,
    CutShard,
    Drain,
    Init,
    Leave,
    Members,
    Publish,
    Register,
    Restore,
    Save,
    SaveShard,
    StopTask,
)
from dps.messages.sessions import (
    PS,
    RUN,
    CommitVersion,
    Decide,
    Enter,
    Probe,
    Probed,
    Pull,
    Push,
    Pushed,
    Report,
)
from dps.transport.current import runtime
from dps.transport.message import Message
from dps.transport.sockets.connections import Connections
from tests.in_process import cluster

ASK_S = 0.4


class Attack:
    """A second process of nobody's, which knows all numbers of a worker's session."""

    def __init__(self, worker: dps.Server, session: dps.Session) -> None:
        self.worker, self.session = worker, session
        self.connection = session._connection
        self.ps = self.connection.peers[0].ref
        self.epoch = self.connection.membership.epoch
        self.caller = Caller(runtime(), "worker:0")
        self.caller.incarnation = self.connection.caller.incarnation

    def present(self, ticket: bytes) -> None:
        """A ticket on each connection."""
        for address in (self.ps.address, self.worker.target, self.worker.address):
            self.caller.connect(address, ticket)

    def ask(self, ref: Ref, message: Message) -> Message:
        return self.caller.ask(ref, message, ASK_S)

    def push(self, number: int = 1) -> Push:
        values = np.full(4, 1000.0, np.float32).view(np.uint8)
        return Push(self.epoch, number, self.connection.steps.step, 0, RUN, 16, [0], [], arrays=(values,))


@pytest.fixture(scope="module", params=["tcp", "ipc", "inproc"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    folder = tmp_path_factory.mktemp("run")
    with (
        cluster(1, 1, request.param, folder, trusted=True, checkpoint_root=folder) as (worker,),
        dps.Session(
            worker, {"a": np.zeros(4, np.float32)}, optimizer=dps.optim.SGD(1.0), checkpoint_dir=str(folder / "saved")
        ) as session,
    ):
        made = Attack(worker, session)
        yield made
        made.caller.close()
        assert session.push({"a": np.ones(4, np.float32)}).accepted


@pytest.fixture
def attack(run: Attack, monkeypatch: pytest.MonkeyPatch) -> Attack:
    """Nobody is told to wait, because the ticket may still come."""
    monkeypatch.setattr(tickets_of_nodes, "EARLY_S", 0.0)
    return run


def unharmed(attack: Attack) -> None:
    """The session goes on as if nothing had been sent."""
    before = attack.session.pull()["a"]
    assert attack.session.push({"a": np.ones(4, np.float32)}).accepted
    np.testing.assert_array_equal(attack.session.pull()["a"], before - 1)
    assert attack.session.version.epoch == attack.epoch and attack.worker.exit_code is None


def test_a_push_under_the_incarnation_of_another_is_refused_counted_and_logged_once(
    attack: Attack, caplog: pytest.LogCaptureFixture
) -> None:
    STRANGER.refused = False
    before = attack.session.stats()["ps:0"]["refused_messages"]
    with caplog.at_level(logging.WARNING, "dps"):
        for number in range(1, 4):
            with pytest.raises(NotAuthenticated, match="got incarnation .* which is worker:0's"):
                attack.ask(attack.ps, attack.push(number))
    assert attack.session.stats()["ps:0"]["refused_messages"] == before + 3
    assert caplog.text.count("refused a message of") == 1
    unharmed(attack)


TO_PS: dict[str, Callable[[Attack], Message]] = {
    "Pull": lambda a: Pull(a.epoch, 0, 0, 0, -1, []),
    "Enter": lambda a: Enter(a.epoch),
    "Probe": lambda a: Probe([], b"", b""),
    "Configure": lambda a: Configure(1 << 40, a.connection.agreed.plan.to_wire(), 0, {}, [], "/root", "secret"),
    "Members": lambda a: Members(a.epoch, 1 << 60, [], [], [], 0),
    "CutShard": lambda a: CutShard(a.epoch, "cut"),
    "CommitVersion": lambda a: CommitVersion(a.epoch, "version 1", 1, "", 0),
    "SaveShard": lambda a: SaveShard(a.epoch, "cut", "/root", "saved"),
    "AskServing": lambda a: AskServing(),
    "Report": lambda a: Report(a.epoch, 0, []),
    "Decide": lambda a: Decide(a.epoch, 1, 1, [], [], [], [], ""),
}


@pytest.mark.parametrize("what", TO_PS)
@pytest.mark.parametrize("own", [False, True], ids=["no ticket", "another ticket"])
def test_what_it_sends_to_the_ps_is_refused(attack: Attack, what: str, own: bool) -> None:
    attack.present(runtime().secret() if own else b"")
    with pytest.raises((NotAuthenticated, Aborted)):
        attack.ask(attack.ps, TO_PS[what](attack))
    unharmed(attack)


def test_a_worker_is_not_the_chief(attack: Attack) -> None:
    """The ticket is a real one, of a task that may push and nothing more."""
    attack.present(attack.worker._node.ticket)
    for what in ("Configure", "Members", "SaveShard", "CommitVersion", "Report"):
        with pytest.raises(NotAuthenticated, match="on a connection of worker:0; wanted it from the"):
            attack.ask(attack.ps, TO_PS[what](attack))
    attack.present(runtime().secret())
    unharmed(attack)


@pytest.mark.parametrize("message", [StopTask(7, "forged"), Drain("forged")], ids=["StopTask", "Drain"])
def test_who_is_not_the_chief_ends_no_task(attack: Attack, message: Message) -> None:
    for address in (attack.worker.address, attack.ps.address):
        with pytest.raises(NotAuthenticated, match="from the chief, with its ticket|wanted its ticket first"):
            attack.ask(Ref(address, AGENT), message)
    assert not attack.worker.stop_requested
    unharmed(attack)


def test_a_session_belongs_to_the_process_that_opened_it(attack: Attack) -> None:
    number, chief = attack.connection.number, Ref(attack.worker.target, CHIEF)
    attack.caller.connect(chief.address, runtime().secret())
    for message in (
        Restore(number, attack.epoch, ""), Save(number), CloseSession(number, "", "worker", 0, "/root"),
        Publish(number, "forged"), AskPublished(number, "", 0),
    ):  # fmt: skip
        with pytest.raises(NotAuthenticated, match="session of worker:0 belongs to another process"):
            attack.ask(chief, message)
    with pytest.raises(NotAuthenticated, match="task worker:0 belongs to another process"):
        attack.ask(chief, CloseSession(1, "", "worker", 0, "/root"))
    unharmed(attack)


@pytest.mark.slow
def test_a_task_whose_process_lives_is_not_replaced_and_its_end_is_nobody_else_s_to_report(attack: Attack) -> None:
    chief, address = Ref(attack.worker.target, CHIEF), attack.worker.address
    attack.caller.connect(chief.address, runtime().secret())
    for message in (
        Register("worker", 0, "127.0.0.1:9", 1, 0, {}), Register("ps", 0, "127.0.0.1:9", 1, 1 << 40, {}),
        Register("worker", -1, "127.0.0.1:9", attack.worker.home().process, 0, {}),
        Register("worker", -1, address, 1, 0, {}), Register("ps", -1, "127.0.0.1:9", 1, 1 << 40, {}),
        Register("client", 0, address, 1, 0, {}, b"x" * 16), Leave("worker", 0, "was killed", -9),
    ):  # fmt: skip
        with pytest.raises(DeadlineExceeded):
            attack.ask(chief, message)
    unharmed(attack)


def test_a_session_sends_no_message_that_has_to_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """What proves a message is a lookup and a comparison in `Node._hand_over`; it calls nothing."""
    looked: list[str] = []
    check = Tickets.check_claim

    def noted(self: Tickets, peer: Any, claim: int, message: Message) -> NotAuthenticated | None:
        looked.append(type(message).__name__)
        return check(self, peer, claim, message)

    with cluster(1, 1) as (worker,), dps.Session(worker, {"a": np.zeros(4)}, optimizer=dps.optim.SGD(1.0)) as session:
        monkeypatch.setattr(Tickets, "check_claim", noted)
        for _ in range(5):
            session.push({"a": np.ones(4)})
            session.pull()
            session.step({"a": np.ones(4)})
    assert not {"Push", "Pull", "Release"} & set(looked)


# -- a ticket that is on its way --------------------------------------------------------------------------------


class Late:
    """Another connection of a session's process, on which the ticket comes after other messages, as when libzmq sends
    what it kept while the connection was broken."""

    def __init__(self, worker: dps.Server, session: dps.Session) -> None:
        self.attack = Attack(worker, session)
        self.ticket = worker._node.ticket
        self.answers: list[Message] = []

    def open(self, ref: Ref, message: Message) -> Any:
        """Send a request until it has its last answer."""

        def feed(answer: Message) -> bool:
            self.answers.append(answer)
            return not isinstance(answer, Waiting)

        return self.attack.caller.start(ref, message, feed, resend_s=0.05)

    def come(self, request: Any, ref: Ref) -> Message:
        """The ticket comes, and then the answer."""
        caller = self.attack.caller
        assert not caller.wait([request], 0.3) and self.answers
        assert {type(answer) for answer in self.answers} == {Waiting}
        caller.connect(ref.address, self.ticket)
        assert caller.wait([request], 10.0)
        return self.answers[-1]


@pytest.fixture
def late() -> Iterator[Late]:
    with (
        cluster(1, 1, trusted=True) as (worker,),
        dps.Session(worker, {"a": np.zeros(4, np.float32)}, optimizer=dps.optim.SGD(1.0)) as session,
    ):
        made = Late(worker, session)
        yield made
        made.attack.caller.close()


def test_a_push_that_comes_before_the_ticket_is_told_to_wait_and_counts_once(late: Late) -> None:
    attack = late.attack
    answer = late.come(late.open(attack.ps, attack.push()), attack.ps)
    assert isinstance(answer, Pushed) and answer.status == "applied"
    assert attack.session.stats()["ps:0"]["refused_messages"] == 0
    np.testing.assert_array_equal(attack.session.pull()["a"], np.full(4, -1000.0, np.float32))


def test_a_probe_and_what_a_session_asks_the_chief_wait_for_the_ticket(late: Late) -> None:
    attack = late.attack
    assert isinstance(late.come(late.open(attack.ps, Probe([])), attack.ps), Probed)
    late.answers.clear()
    chief, number = Ref(attack.worker.target, CHIEF), attack.connection.number
    assert isinstance(late.come(late.open(chief, Save(number)), chief), Failed)  # there is no checkpoint_dir
    assert "checkpoint_dir" in late.answers[-1].text  # type: ignore[attr-defined]


def test_what_a_member_of_a_group_asks_waits_for_the_ticket(late: Late) -> None:
    chief, message = Ref(late.attack.worker.target, GROUPS), LeaveGroup("workers", 0, 1, 0, True)
    assert isinstance(late.come(late.open(chief, message), chief), Done)
    late.attack.caller.connect(chief.address, runtime().secret())
    with pytest.raises(DeadlineExceeded):  # nobody has admitted that one; it might be on its way
        late.attack.ask(chief, message)
    late.attack.caller.connect(chief.address, late.ticket)
    with pytest.raises(NotAuthenticated, match="in the name of worker:1 of worker:0"):
        late.attack.ask(chief, LeaveGroup("workers", 1, 1, 0, True))


def test_who_presents_another_ticket_is_refused_at_once(late: Late) -> None:
    attack = late.attack
    attack.present(runtime().secret())
    with pytest.raises(NotAuthenticated, match="which is worker:0's"):
        attack.ask(attack.ps, attack.push())


def test_nobody_is_told_to_wait_for_long_or_often() -> None:
    tickets, _ = table()
    tickets.admit("run", [[digest(b"w"), "worker:0", "worker", [3]]])

    def told(route: bytes, peer: Peer, message: Message, claim: int, now: float) -> type:
        error = tickets.check_claim(peer, claim, message)
        assert error is not None
        return type(tickets.answer_to(error, route, peer, now))

    assert told(b"1", STRANGER, Done(), 3, 100.0) is Waiting
    assert told(b"1", STRANGER, Done(), 3, 100.0 + EARLY_S - 1) is Waiting
    assert told(b"1", STRANGER, Done(), 3, 100.0 + EARLY_S) is NotAuthenticated
    often = [told(b"2", STRANGER, Done(), 3, 100.0) for _ in range(EARLY + 1)]
    assert often == [Waiting] * EARLY + [NotAuthenticated]
    new = tickets.present(b"3", digest(b"n"))
    members = Members(1, 1, [], [], [], 0)
    assert told(b"3", new, Done(), 3, 200.0) is NotAuthenticated
    assert told(b"3", new, members, 0, 200.0) is Waiting
    assert told(b"3", new, members, 0, 200.0 + EARLY_S) is NotAuthenticated
    assert told(b"w", tickets.present(b"w", digest(b"w")), members, 3, 200.0) is NotAuthenticated
    for route in range(STRANGERS + 10):
        told(b"many %d" % route, STRANGER, Done(), 3, 300.0)
    assert len(tickets._early) == STRANGERS
    again = [Present(b"w"), Present(b"n")]
    tickets.accept_presented(b"4", again[1])
    assert told(b"4", new, members, 0, 300.0) is Waiting, "it has connected anew"
    lost = tickets.present(b"5", digest(b"w"))
    tickets.admit("run", [])
    assert told(b"5", lost, members, 0, 400.0) is Waiting, "its task was lost, and has not registered again"
    assert told(b"5", lost, members, 0, 400.0 + EARLY_S) is NotAuthenticated
    tickets.accept_presented(b"5", again[0])
    assert told(b"5", lost, members, 0, 400.0 + EARLY_S) is NotAuthenticated, "it is the same connection"


# -- the table --------------------------------------------------------------------------------------------------


class End:
    """An endpoint that has paired with nobody."""

    address = "127.0.0.1:1"
    direct = b""

    def __init__(self) -> None:
        self.names: dict[bytes, Any] = {}
        self.accepted = Connections()

    def paired(self, name: bytes) -> Any:
        return self.names.get(name)

    def pair(self, route: Any, name: bytes, hears: bool) -> bool:
        self.names[name] = route
        return True


def table() -> tuple[Tickets, End]:
    end: Any = End()
    return Tickets(end, b"own"), end


def test_the_tickets_that_nobody_admitted_are_bounded_and_those_that_were_stay() -> None:
    tickets, _ = table()
    tickets.present(b"worker", digest(b"w"))
    tickets.admit("run", [[digest(b"w"), "worker:0", "worker", [3]]])
    for number in range(STRANGERS + 100):
        for route in range(2):
            tickets.accept_presented(b"%d %d" % (number, route), Present(b"%d" % number))
    assert len(tickets._known) == STRANGERS + 2 and len(tickets.by_route) == 2 * STRANGERS + 2
    assert tickets.by_route[b"worker"].name == "worker:0"
    for route in range(ROUTES + 10):
        tickets.accept_presented(b"again %d" % route, Present(b"w"))
        tickets.accept_presented(b"stranger %d" % route, Present(b"9999999"))
    assert len(tickets.by_route) == 2 * (STRANGERS - 1) + 1 + ROUTES + STRANGERS_ROUTES


def test_a_ticket_that_is_admitted_no_more_may_claim_nothing() -> None:
    tickets, _ = table()
    peer = tickets.present(b"one", digest(b"w"))
    tickets.admit("sessions", [[digest(b"w"), "worker:0", "worker", [3, 4]], ["", "worker:1", "worker", [5]]])
    assert peer.claims == {0, 3, 4} and tickets.check_claim(peer, 9, Done()) is None
    assert "incarnation 4, which is worker:0's, on a connection of a stranger" in str(
        tickets.check_claim(STRANGER, 4, Done())
    )
    tickets.admit("sessions", [[digest(b"w"), "worker:0", "worker", [4]]])
    assert peer.claims == {0, 4}
    tickets.admit("sessions", [])
    assert (peer.name, peer.claims) == ("", {0}) and tickets.check_claim(STRANGER, 4, Done()) is None


def test_datagrams_go_on_over_a_new_connection_of_the_same_process_and_of_no_other() -> None:
    tickets, end = table()
    tickets.accept_presented(b"one", Present(b"w", b"name"))
    assert end.names == {}  # nobody has paired
    end.names[b"name"] = b"one"
    tickets.accept_presented(b"thief", Present(b"t", b"name"))
    assert end.names == {b"name": b"one"} and tickets.pair(b"thief", b"name") == b""
    tickets.accept_presented(b"two", Present(b"w", b"name"))
    assert end.names == {b"name": b"two"}


def test_nobody_reads_a_ticket_in_what_is_kept_or_sent(attack: Attack) -> None:
    """`Members`, the journal and the notes have the digest."""
    ticket = attack.worker._node.ticket
    journal = attack.connection.agreed.settings["checkpoint_dir"] + "/journal.json"
    with open(journal) as file:
        text = file.read()
    assert digest(ticket) in text and ticket.hex() not in text


def test_first_values_come_from_the_session_that_was_asked() -> None:
    with cluster(1, 1, "inproc") as (worker,):
        forged: list[DpsError] = []

        def values(given: dict[str, Any]) -> dict[str, Any]:
            """Called where the chief waits for the first values."""
            caller = Caller(runtime(), "worker:0")
            ref = Ref(ps_of(worker), PS)
            try:
                caller.ask(ref, Init(1, 16, [0], b"guessed", (np.full(16, 7, np.uint8),)), ASK_S)
            except DpsError as error:
                forged.append(error)
            caller.close()
            return given

        with dps.Session(
            worker, {"a": np.zeros(4, np.float32)}, optimizer=dps.optim.SGD(1.0), init_fn=values
        ) as session:
            np.testing.assert_array_equal(session.pull()["a"], np.zeros(4, np.float32))
    assert len(forged) == 1 and "only from the session that the chief chose" in str(forged[0])


def ps_of(worker: dps.Server) -> str:
    from dps.messages.runs import AskCluster, ClusterIs

    caller = Caller(runtime(), "somebody")
    answer = caller.ask(Ref(worker.target, CHIEF), AskCluster(), 5.0)
    caller.close()
    assert isinstance(answer, ClusterIs)
    return str(answer.cluster["ps"]["0"])
