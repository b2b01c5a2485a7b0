"""Checks at a node whose peers have keys whether the role of a peer may send a message."""

from __future__ import annotations

import logging
from typing import Any

from dps.errors import PermissionDenied
from dps.transport.address import origin, role
from dps.transport.endpoint import Route
from dps.transport.message import Message

log = logging.getLogger("dps")

PEERS = 4096
"""The most peers that are counted, and the most that are known by the route of their datagrams."""


class Gate:
    """Of one node. A peer is a role on a host; what it may not send is counted, and logged once."""

    def __init__(self, address: str) -> None:
        """`address`: of the node, from which it may send itself everything."""
        self._address = address
        self._paired: dict[Route, str] = {}
        self.refused: dict[tuple[str, str], int] = {}
        """How many messages were refused, by role and host."""

    def role(self, route: Route, source: Any) -> str:
        """The role of the peer that sent a message; "" without a key, or where this node has connected to it: there
        nothing but answers is expected."""
        return self._paired.get(route, "") if source is None else role(source)

    def pair(self, route: Route, source: Any) -> None:
        """Note that messages of this route will come as datagrams, too."""
        if len(self._paired) >= PEERS:
            self._paired.clear()  # they pair again
        self._paired[route] = self.role(route, source)

    def check(self, route: Route, source: Any, message: Message) -> PermissionDenied | None:
        """The error that answers a message which its sender may not send; None if it may."""
        if route == self._address:
            return None
        sender = self.role(route, source)
        if sender in message.roles:
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
