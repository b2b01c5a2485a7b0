"""Tracks which nodes the chief has reached at the addresses that it dials, and describes those that it cannot reach."""

from __future__ import annotations

from dps.cluster.address import parse
from dps.errors import Unavailable

REACH_S = 10.0
"""How long the chief tries to reach a node that has come before it refuses it."""
MOST = 4096
"""The most addresses that are remembered; the oldest goes."""


class Reaching:
    """The addresses that the chief dials, each with the time since when it tries, until it has reached it once."""

    def __init__(self, named: frozenset[str] = frozenset()) -> None:
        """`named`: the addresses that the cluster spec names; they are dialled as they are."""
        self.named = named
        self._tried_since: dict[str, float] = {}
        self._reached: dict[str, None] = {}

    def tries(self, address: str, now: float) -> None:
        """Note that a node at this address has come."""
        if address not in self._reached:
            self._tried_since.setdefault(address, now)
            if len(self._tried_since) > MOST:
                del self._tried_since[next(iter(self._tried_since))]

    def check(self, address: str, now: float, chief: str, name: str) -> None:
        """Raise Unavailable if the node of a task came and could not be reached within REACH_S. `chief`: its address,
        for the message."""
        if now - self._tried_since.get(address, now) >= REACH_S:
            raise Unavailable(f"{name} {self.problem(address, chief, name)}")

    def reached(self, address: str) -> None:
        """Note that a connection to this address is up."""
        self._tried_since.pop(address, None)
        self._reached[address] = None
        if len(self._reached) > MOST:
            del self._reached[next(iter(self._reached))]

    def problem(self, address: str, chief: str, name: str) -> str:
        """Why the node of a task counts as lost if it was never reached, for messages; "" if it was."""
        if address in self._reached or address not in self._tried_since:
            return ""
        source = "which the cluster spec names" if address in self.named else "from where it came"
        port = parse(address).port
        return (
            f"cannot be reached by the chief at {chief}: nobody answers at {address}, {source}; open port {port} in "
            f"the firewall of {name}'s machine, or start {name} with another --bind, --advertise or --ports"
        )
