"""Addresses of actors and of senders."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple
from weakref import WeakKeyDictionary

from dps.actors.authorization import STRANGER, Peer, Unproven
from dps.process.record import record
from dps.transport.endpoint import Route, Runtime


@record
class Ref:
    """Names an actor: the address of its node and its name there."""

    address: str
    actor: str

    def __str__(self) -> str:
        return f"{self.actor} at {self.address}"


class Sender(NamedTuple):
    """The sender of the current message, and how to answer it: `request` is 0 if no answer is wanted."""

    route: Route
    request: int
    name: str
    incarnation: int
    """The one that it has proven to be; 0 if none."""
    peer: Peer = STRANGER
    """Its process, as proven by a ticket."""

    def client(self, number: int) -> tuple[str, int]:
        """A client of that process, by the number that the process gave it: nobody else can be it. Raises Unproven for
        a process that has presented no ticket."""
        self.check_ticket()
        return self.peer.ticket, number

    def check_ticket(self) -> None:
        """Raise Unproven for a process elsewhere that has presented no ticket."""
        if not self.peer.ticket and isinstance(self.route, bytes):
            raise Unproven(f"got a message of {self.name} before its ticket; wanted the ticket first")


local_nodes: WeakKeyDictionary[Runtime, dict[str, Container[str]]] = WeakKeyDictionary()
"""The names of the actors of each node."""


def is_local(runtime: Runtime, address: str, name: str) -> bool:
    """Whether a node of this process has this address and an actor of this name."""
    return name in local_nodes.get(runtime, {}).get(address, ())
