"""Identifies the process at the other end of a connection by its ticket, the first message on the connection.

A ticket is 128 random bits that one process makes and presents to the chief and to the ps, on each of its connections.
The chief admits the ticket with the process and tells the ps of it. Nodes keep and send its digest only, so nobody who
reads the journal or `Members` can present it. A header may claim an incarnation, which counts only where it is one of
the ticket's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from dps.actors.answers import Waiting
from dps.errors import NotAuthenticated, PermissionDenied, Unavailable
from dps.process.telemetry import log
from dps.transport.endpoint import Endpoint, Route
from dps.transport.message import ANSWER, Message
from dps.transport.sockets.addresses import origin, user
from dps.transport.wire import Envelope, encode

try:
    from _blake2 import blake2s  # as `random` does: hashlib loads OpenSSL
except ImportError:
    from hashlib import blake2s


STRANGERS, STRANGERS_ROUTES = 4096, 16
"""The most tickets that a node keeps which nobody has admitted, and the most connections on which such a one is
presented. Beyond either the oldest are forgotten."""
ROUTES = 256
"""The most connections on which an admitted ticket is presented to one node."""
EARLY_S, EARLY = 5.0, 1024
"""For so long a process may be unknown here, and for so many messages its ticket may be on its way: what was sent while
its connection was broken leaves before the ticket when that comes back."""
NO_CLAIM = frozenset([0])
SERVERS = frozenset({"chief", "ps"})


class Unproven(NotAuthenticated):
    """Got a message of a process that has presented no ticket, or one that nobody has admitted. Both may be on their
    way, so the sender is told to wait at first."""


class Present(Message, kind=4, roles=ANSWER):
    """The first message on a connection: the ticket of the process that opened it. `direct` names the datagram socket
    of its endpoint. Not answered."""

    ticket: bytes
    direct: bytes = b""


class Peer:
    """A process, as a node knows it by the ticket that it presented. Only `Tickets` changes it."""

    __slots__ = ("claims", "early_at", "key", "name", "near", "refused", "role", "routes", "ticket")

    def __init__(self, ticket: str = "") -> None:
        self.ticket = ticket
        """The digest; "" for a process that presented none."""
        self.key = ""
        """Whose key its connections have (`Accepted.user`); "" without keys."""
        self.name = self.role = ""
        """Its task, such as "worker:3", and its job; "" while nobody has admitted it."""
        self.claims = NO_CLAIM
        """The incarnations that its headers may claim."""
        self.near = False
        """Whether it has read memory of this process, so that memory which it names may be read."""
        self.refused = False
        """Whether a message of it was refused."""
        self.early_at: float | None = None
        """When the first message of it came that nobody had admitted yet, or any more; None: none has come since it was
        admitted, or since it connected anew."""
        self.routes: deque[Route] = deque()


STRANGER = Peer()


def introduction(ticket: bytes, endpoint: Endpoint, name: str) -> bytes:
    """The header of the message that opens a connection of this endpoint."""
    return encode(Envelope(Present(ticket, endpoint.direct), "", 0, name))[0]


def digest(ticket: bytes) -> str:
    """What is kept and told of a ticket."""
    return blake2s(ticket, digest_size=16).hexdigest()


def role_of(job: str) -> str:
    """The role of a session of this job. Nobody gets the chief's role by naming a job."""
    return "worker" if job == "chief" else job


class Tickets:
    """The peers of one node: those that were admitted, and those that have only presented a ticket."""

    def __init__(self, endpoint: Endpoint, own: bytes) -> None:
        """`own`: the ticket of this process, with which its own messages come."""
        self._endpoint = endpoint
        endpoint.accepted.admitted = self.is_admitted
        self.by_route: dict[Route, Peer] = {}
        self._known: dict[str, Peer] = {}
        """By the digest of their ticket."""
        self._groups: dict[str, set[str]] = {}
        """The tickets that were admitted together, by the name of their group."""
        self._strangers: dict[str, Peer] = {}
        """The tickets of `_known` that are in no group, the oldest first."""
        self._early: dict[Route, tuple[float, int]] = {}
        """Of each connection without a ticket that was told to wait: since when, and how often."""
        self._claimed: dict[int, Peer] = {}
        """By each incarnation that a peer may claim."""
        self.changed: Callable[[], object] = lambda: None
        """Called when it has changed who may send what."""
        self.admit("own", [[digest(own), "", "", ()]])
        self.own = self.present(endpoint.address, digest(own))
        """This process itself."""

    # -- connections --------------------------------------------------------------------------------------------

    def present(self, route: Route, ticket: str) -> Peer:
        """Note that the process at a route has presented the ticket of this digest."""
        self.changed()
        self._early.pop(route, None)
        peer = self._known.get(ticket)
        if peer is None:
            peer = self._known[ticket] = Peer(ticket)
            self._add_stranger(peer)
        before = self.by_route.get(route)
        if before is not peer:
            peer.early_at = None
        if before is not None:
            before.routes.remove(route)
        self.by_route[route] = peer
        peer.routes.append(route)
        if len(peer.routes) > (STRANGERS_ROUTES if ticket in self._strangers else ROUTES):
            del self.by_route[peer.routes.popleft()]
        return peer

    def _add_stranger(self, peer: Peer) -> None:
        self._strangers[peer.ticket] = peer
        if len(self._strangers) > STRANGERS:
            oldest = self._strangers.pop(next(iter(self._strangers)))
            del self._known[oldest.ticket]
            for route in oldest.routes:
                del self.by_route[route]

    def accept_presented(self, route: Route, message: Present, key: str = "") -> None:
        """A process has opened a connection. Its datagrams go on if it had paired on an earlier one. `key`: whose the
        connection's key is. A ticket that was presented with another one counts for nothing. But sessions of a chief
        or ps have a worker's or reader's key beside that of their node, with the same ticket."""
        ticket = digest(message.ticket)
        keys = {key, self._known[ticket].key if ticket in self._known else ""} - {""}
        if len(keys) > 1 and keys.isdisjoint(SERVERS):
            return
        peer, before = self.present(route, ticket), self._endpoint.paired(message.direct)
        peer.key = key
        if before is not None and self.by_route.get(before) is peer:
            self._endpoint.pair(route, message.direct, False)

    def pair(self, route: Route, name: bytes) -> bytes:
        """Let a peer on this machine send datagrams; it gets datagrams once it has sent one. Returns the name of this
        node's datagram socket, or b"" if it cannot be reached that way."""
        before = self.by_route.get(self._endpoint.paired(name) or "")
        if before is not None and before is not self.by_route.get(route):
            return b""  # it is the socket of another process
        return self._endpoint.direct if self._endpoint.pair(route, name, False) else b""

    def is_admitted(self, route: Route) -> bool:
        """Whether the process at a route has been admitted."""
        return bool(self.by_route.get(route, STRANGER).name)

    def is_near(self, incarnation: int) -> bool:
        """Whether the process of this incarnation is `near`."""
        return self._claimed.get(incarnation, STRANGER).near

    # -- who may do what ----------------------------------------------------------------------------------------

    def admit(self, group: str, entries: Iterable[Any]) -> None:
        """Admit these tickets, each [digest, name, role, incarnations], in place of those of the same group."""
        self.changed()
        admitted = [entry for entry in entries if entry[0]]
        before, kept = self._groups.get(group, set()), {str(entry[0]) for entry in admitted}
        self._groups[group] = kept
        for ticket in before - kept:
            if not any(ticket in other for other in self._groups.values()):
                peer = self._known[ticket]
                peer.name, peer.role, peer.early_at = "", "", None
                self._let_claim(peer, frozenset())
                self._add_stranger(peer)
        for ticket, name, role, incarnations in admitted:
            peer = self._known.setdefault(str(ticket), Peer(str(ticket)))
            self._strangers.pop(peer.ticket, None)
            peer.name, peer.role = str(name), str(role)
            self._let_claim(peer, frozenset(int(incarnation) for incarnation in incarnations))

    def _let_claim(self, peer: Peer, incarnations: frozenset[int]) -> None:
        for incarnation in peer.claims - incarnations:
            if self._claimed.get(incarnation) is peer:
                del self._claimed[incarnation]
        for incarnation in incarnations:
            self._claimed[incarnation] = peer
        peer.claims = incarnations | NO_CLAIM

    def check_claim(self, peer: Peer, claim: int, message: Message) -> NotAuthenticated | None:
        """The error of a message whose sender claims the incarnation of another, or may not send it; None if there is
        none."""
        owner = self._claimed.get(claim)
        who = peer.name or "a stranger"
        if owner is not None and owner is not peer:
            text = f"incarnation {claim}, which is {owner.name}'s, on a connection of {who}; wanted its ticket first"
            return (NotAuthenticated if peer.ticket else Unproven)(f"got {text}")
        if message.proven and peer.role not in message.roles:
            wanted = " or ".join(sorted(message.roles))
            text = f"{type(message).__name__} on a connection of {who}; wanted it from the {wanted}, with its ticket"
            return (NotAuthenticated if peer.role else Unproven)(f"got {text}")
        return None

    def answer_to(self, error: Exception, route: Route, peer: Peer, now: float) -> Exception | Waiting:
        """What a sender is told of an error: to wait if its ticket may still come, or be admitted. The first error of
        a process is logged."""
        if isinstance(error, Unproven):
            if self._is_early(route, peer, now):
                return Waiting(str(error))
            error = NotAuthenticated(str(error))
        if type(error) is NotAuthenticated and not peer.refused:
            peer.refused = True
            log.warning("refused a message of %s: %s", peer.name or "a stranger", error)
        return error

    def _is_early(self, route: Route, peer: Peer, now: float) -> bool:
        if peer.ticket:
            peer.early_at = now if peer.early_at is None else peer.early_at
            return not peer.name and now - peer.early_at < EARLY_S
        since, count = self._early.pop(route, (now, 0))
        self._early[route] = since, count + 1
        if len(self._early) > STRANGERS:
            del self._early[next(iter(self._early))]
        return now - since < EARLY_S and count < EARLY


SENDERS_PEERS, SENDERS_ROUTES = 4096, 65536
"""The most peers whose refused messages are counted, and the most connections whose keys are known."""

NOBODY = "", ""


class Authorization:
    """The permission check of one node. It counts what a peer (a role on a host) sends and may not send, and logs the
    first one."""

    def __init__(self, address: str) -> None:
        """`address`: of the node, from which it may send itself everything."""
        self._address = address
        self._senders: dict[Route, tuple[str, str]] = {}
        self.refused: dict[tuple[str, str], int] = {}
        """How many messages were refused, by role and host."""
        self.changed: Callable[[], object] = lambda: None
        """Called when a sender is known, or another one than before."""

    def identify_sender(self, route: Route, source: Any) -> tuple[str, str]:
        """The role of the sender of a message, and whose key it has; also of a datagram that follows others on this
        route. "" without a key, or where this node has connected to it: there nothing but answers is expected."""
        if source is None:
            return self._senders.get(route, NOBODY)
        whose = user(source)
        found = whose.partition(" ")[0], whose
        if self._senders.get(route) != found:
            self.changed()
            self._senders[route] = found
        if len(self._senders) > SENDERS_ROUTES:
            del self._senders[next(iter(self._senders))]
        return found

    def check_message(self, route: Route, sender: str, source: Any, message: Message) -> PermissionDenied | None:
        """The error that answers a message which its sender may not send; None if it may. `sender`: its
        role."""
        if sender in message.roles or route == self._address:
            return None
        kind = type(message).__name__
        wanted = ", ".join(sorted(message.roles)) or "nobody, as it is an answer"
        error = PermissionDenied(f"got {kind} of {sender or 'a peer without a key'}; wanted it of {wanted}")
        peer = sender, origin(source)
        count = self.refused.get(peer, 0)
        if count or len(self.refused) < SENDERS_PEERS:
            self.refused[peer] = count + 1
        if not count:
            log.warning("refused a message from %s: %s", peer[1] or "this machine", error)
        return error


PROCESSES = 4096
"""The most processes whose refusals are remembered."""


class CountLimit:
    """The bound on things of one kind. One more than the bound is refused, counted, and logged once a process."""

    def __init__(self, what: str, most: int) -> None:
        """`what`: in the plural, such as "pulls that wait"."""
        self.what, self.most = what, most
        self.refused = 0
        self._told: set[str] = set()

    def check_count(self, kept: int, whose: str) -> None:
        """Raise Unavailable if `whose`, a process by its name, keeps as many as it may."""
        if kept < self.most:
            return
        self.refused += 1
        text = f"{whose} keeps {kept} {self.what}, at most {self.most} are possible; let some of them end first"
        if whose not in self._told and len(self._told) < PROCESSES:
            self._told.add(whose)
            log.warning("refused: %s; further ones are not logged", text)
        raise Unavailable(text)
