"""Checks at a node whose peers have keys whether the role of a peer may send a message."""

from __future__ import annotations

import logging
from typing import Any

from dps.errors import PermissionDenied
from dps.transport.address import origin, role
from dps.transport.endpoint import Route
from dps.transport.message import Message

log = logging.getLogger("dps")

PEERS, ROUTES = 4096, 65536
"""The most peers whose refused messages are counted, and the most connections whose role is known."""


class Gate:
    """Of one node. A peer is a role on a host; what it may not send is counted, and logged once."""

    def __init__(self, address: str) -> None:
        """`address`: of the node, from which it may send itself everything."""
        self._address = address
        self._roles: dict[Route, str] = {}
        self.refused: dict[tuple[str, str], int] = {}
        """How many messages were refused, by role and host."""

    def role(self, route: Route, source: Any) -> str:
        """The role of the peer that sent a message, also of a datagram that follows others on this route; "" without
        a key, or where this node has connected to it: there nothing but answers is expected."""
        if source is None:
            return self._roles.get(route, "")
        found = self._roles[route] = role(source)
        if len(self._roles) > ROUTES:
            del self._roles[next(iter(self._roles))]
        return found

    def check(self, route: Route, sender: str, source: Any, message: Message) -> PermissionDenied | None:
        """The error that answers a message which its sender may not send; None if it may. `sender`: of `role`."""
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
