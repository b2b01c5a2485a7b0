"""The client sessions that the chief knows, as a state machine: who asks to be admitted and who can be answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dps.actors.authorization import CountLimit, role_of
from dps.actors.ref import Sender
from dps.chief.members import Live, RunMembers
from dps.errors import Aborted, NotAuthenticated, Unavailable
from dps.messages.runs import OpenSession

SESSIONS, ALL_SESSIONS, CLOSED = 256, 8192, 65536
"""The most open sessions of one process, and of all; and the most closed ones that are remembered."""


def check_same(ticket: str, sender: Sender, whose: str) -> None:
    """Raise NotAuthenticated unless the sender has presented the ticket of this digest; "": of a process that only an
    earlier chief knew."""
    sender.check_ticket()
    if ticket not in ("", sender.peer.ticket):
        raise NotAuthenticated(f"the {whose} belongs to another process, which presented another ticket")


@dataclass
class ClientSession:
    """A client session, whether it has an incarnation now or not."""

    number: int
    name: str
    """Its task, such as "worker:3"."""
    job: str
    task: int
    address: str
    trains: bool
    """Whether it has variables; readers have none."""
    ticket: str = ""
    """The digest of its process's ticket."""
    request: OpenSession | None = None
    """Its newest request; None for a session that another chief admitted. `opened` says whether it was answered."""
    opened: Sender | None = None
    version: int = 0
    """The members' version that every ps must have before the session is told its incarnation."""


class Sessions:
    """All sessions, in the order in which they came. A number that was closed never opens again."""

    def __init__(self) -> None:
        self.known: dict[int, ClientSession] = {}
        self._bound = CountLimit("open sessions", SESSIONS)
        self._closed: dict[int, bool] = {}
        """The closed sessions, and whether each closed with an error."""

    def open_session(self, message: OpenSession, sender: Sender, address: str) -> ClientSession:
        """A session whose node is dialled at `address` asks for admission, for the first time or again. Raises Aborted
        if it has closed, and NotAuthenticated if it is another process's."""
        sender.check_ticket()
        self.check_open(message.session)
        session = self.known.get(message.session)
        if session is None:
            name, trains = f"{message.job}:{message.task}", bool(message.plan)
            self._check_room(name, sender.peer.ticket)
            session = ClientSession(
                message.session, name, message.job, message.task, address, trains, sender.peer.ticket
            )
            self.known[message.session] = session
        check_same(session.ticket, sender, f"session of {session.name}")
        session.opened, session.request, session.trains = sender, message, bool(message.plan)
        return session

    def _check_room(self, name: str, ticket: str) -> None:
        """Raise Unavailable if a process, or all together, have too many sessions."""
        self._bound.check_count(sum(session.ticket == ticket for session in self.known.values()), name)
        if len(self.known) >= ALL_SESSIONS:
            raise Unavailable(f"there are {len(self.known)} sessions; close some of them")

    def take_over_session(self, live: Live) -> ClientSession:
        """Add a session that another chief admitted."""
        session = self.known.get(live.session)
        if session is None:
            job = live.name.partition(":")[0]
            session = ClientSession(live.session, live.name, job, live.task, live.address, live.trains, live.ticket)
            self.known[live.session] = session
        return session

    def tickets(self) -> list[Any]:
        """The tickets of all sessions, for `Tickets.admit`."""
        return [(s.ticket, s.name, role_of(s.job), ()) for s in self.known.values()]

    def check_owner(self, number: int, sender: Sender) -> None:
        """Raises NotAuthenticated if another process has opened this session."""
        if number in self.known:
            check_same(self.known[number].ticket, sender, f"session of {self.known[number].name}")

    def check_open(self, number: int) -> None:
        """Raises Aborted for a session that has closed."""
        if number in self._closed:
            raise Aborted("this session is closed; open another one")

    def mark_closed(self, number: int, failed: bool = False) -> bool:
        """Note that a session has closed, with an error if `failed`; returns whether this was not known."""
        news = number not in self._closed
        self._closed.setdefault(number, failed)
        if len(self._closed) > CLOSED:
            del self._closed[next(iter(self._closed))]
        return news

    def close_state(self, number: int) -> bool | None:
        """Whether a session has closed with an error; None if it has not closed."""
        return self._closed.get(number)

    def drop_session(self, session: ClientSession) -> None:
        """Remove a session that was refused, was lost or has closed."""
        self.known.pop(session.number, None)

    def waiting(self) -> list[ClientSession]:
        """The sessions that wait to be told their incarnation."""
        return [session for session in self.known.values() if session.opened is not None]

    def is_rejoining(self, incarnation: int) -> bool:
        """Whether the session of an incarnation asks to join again."""
        asked = [session.request for session in self.waiting()]
        return any(request is not None and request.incarnation == incarnation for request in asked)

    def first_with_variables(self) -> ClientSession | None:
        """The first waiting session with variables. Its plan becomes the run's, and it sends the first values."""
        return next((session for session in self.waiting() if session.trains), None)

    def addresses(self) -> list[str]:
        """Where the chief dials the nodes of sessions."""
        return [session.address for session in self.known.values() if session.address]

    def sessions_at(self, address: str) -> list[ClientSession]:
        """The sessions of the node at an address."""
        return [session for session in self.known.values() if session.address == address]

    def sessions_of(self, name: str) -> list[ClientSession]:
        """The sessions of a task."""
        return [session for session in self.known.values() if session.name == name]

    def batches(self) -> dict[str, int]:
        """How many examples a push stands for, of the tasks that have said so."""
        asked = [(session.name, session.request) for session in self.known.values()]
        return {name: request.batch for name, request in asked if request is not None and request.batch > 0}

    def name(self, number: int | None) -> str:
        """The task of a session; "" if it is not known."""
        return self.known[number].name if number in self.known else ""

    def admit_waiting(self, members: RunMembers) -> list[tuple[int, ClientSession]]:
        """Give incarnations to the waiting sessions that have none; returns (incarnation, session) pairs."""
        admitted = []
        for session in self.waiting():
            if members.incarnation_of(session.number) is None:
                worker = session.job in ("worker", "chief") and session.trains
                assert session.request is not None, "who waits has asked"
                about = session.trains, session.address, session.request.process, session.ticket
                admitted.append(
                    (members.admit_session(session.number, session.name, session.task, worker, *about), session)
                )
                session.version = members.version
        return admitted

    def answerable(self, members: RunMembers, known: int) -> list[tuple[int, ClientSession]]:
        """The waiting sessions that can be told their incarnation when every ps has the members' version `known`."""
        found = [(members.incarnation_of(session.number), session) for session in self.waiting()]
        return [(i, session) for i, session in found if i is not None and session.version <= known]
