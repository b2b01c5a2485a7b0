"""Which nodes the chief has reached where it dials them, and what to say of one that it cannot reach."""

from __future__ import annotations

REACH_S = 10.0
"""How long the chief tries to reach a node that has come before it refuses it."""


class Reaching:
    """The addresses that the chief dials, each with the time since when it tries, until it has reached it once."""

    def __init__(self, named: frozenset[str] = frozenset()) -> None:
        """`named`: the addresses that the cluster spec names; they are dialled as they are."""
        self.named = named
        self._tried_since: dict[str, float] = {}
        self._reached: set[str] = set()

    def tries(self, address: str, now: float) -> None:
        """Note that a node at this address has come."""
        if address not in self._reached:
            self._tried_since.setdefault(address, now)

    def gave_up(self, address: str, now: float) -> bool:
        """Whether a node came and could not be reached within REACH_S."""
        return now - self._tried_since.get(address, now) >= REACH_S

    def reached(self, address: str) -> None:
        """Note that a connection to this address is up."""
        self._tried_since.pop(address, None)
        self._reached.add(address)

    def problem(self, address: str, chief: str, name: str) -> str:
        """Why the node of a task counts as lost if it was never reached, for messages; "" if it was."""
        if address in self._reached or address not in self._tried_since:
            return ""
        source = "which the cluster spec names" if address in self.named else "from where it came"
        port = address.rpartition(":")[2]
        return (
            f"cannot be reached by the chief at {chief}: nobody answers at {address}, {source}; open port {port} in "
            f"the firewall of {name}'s machine, or start {name} with another --bind, --advertise or --ports"
        )
