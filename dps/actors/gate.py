"""Checks at a node whose peers have keys whether the role of a peer may send a message."""

from __future__ import annotations

from typing import Any

from dps.errors import PermissionDenied
from dps.telemetry import log
from dps.transport.address import origin, user
from dps.transport.endpoint import Route
from dps.transport.message import Message

PEERS, ROUTES = 4096, 65536
"""The most peers whose refused messages are counted, and the most connections whose keys are known."""

NOBODY = "", ""


class Gate:
    """The gate of one node. It counts what a peer (a role on a host) sends and may not send, and logs the first one."""

    def __init__(self, address: str) -> None:
        """`address`: of the node, from which it may send itself everything."""
        self._address = address
        self._senders: dict[Route, tuple[str, str]] = {}
        self.refused: dict[tuple[str, str], int] = {}
        """How many messages were refused, by role and host."""

    def sender(self, route: Route, source: Any) -> tuple[str, str]:
        """The role of the sender of a message, and whose key it has; also of a datagram that follows others on this
        route. "" without a key, or where this node has connected to it: there nothing but answers is expected."""
        if source is None:
            return self._senders.get(route, NOBODY)
        whose = user(source)
        found = self._senders[route] = whose.partition(" ")[0], whose
        if len(self._senders) > ROUTES:
            del self._senders[next(iter(self._senders))]
        return found

    def check(self, route: Route, sender: str, source: Any, message: Message) -> PermissionDenied | None:
        """The error that answers a message which its sender may not send; None if it may. `sender`: its role."""
        if sender in message.roles or route == self._address:
            return None
        kind = type(message).__name__
        wanted = ", ".join(sorted(message.roles)) or "nobody, as it is an answer"
        error = PermissionDenied(f"got {kind} of {sender or 'a peer without a key'}; wanted it of {wanted}")
        peer = sender, origin(source)
        count = self.refused.get(peer, 0)
        if count or len(self.refused) < PEERS:
            self.refused[peer] = count + 1
        if not count:
            log.warning("refused a message from %s: %s", peer[1] or "this machine", error)
        return error
