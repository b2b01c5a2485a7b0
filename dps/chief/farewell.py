"""Tells every node that the run is over, and ends the chief last."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dps.actors.ref import Ref
from dps.actors.system import Node
from dps.run_protocol import AGENT, StopTask

STOP_S = 10.0
"""How long an ending chief tries to reach absent nodes. It does not wait for nodes whose process is gone."""


class Farewell:
    """Tells nodes to stop, and calls `ended(code, reason)` once, when all have heard it or are gone."""

    def __init__(self, node: Node, ended: Callable[[int, str], None]) -> None:
        self.node, self._ended = node, ended
        self.message: StopTask | None = None
        """The message for nodes once the run is over; None before."""
        self._untold: set[str] = set()
        self._over = False
        self._linger_s = 0.0

    def begin(self, message: StopTask, addresses: Iterable[str], linger_s: float) -> None:
        """Tell the nodes at these addresses. Wait another `linger_s` for nodes that have not registered yet."""
        self.message, self._linger_s = message, linger_s
        self._untold = set(addresses) - {self.node.address}
        for address in sorted(self._untold):
            self.node.ask(Ref(address, AGENT), message, STOP_S, lambda _, a=address: self.told(a))  # type: ignore[misc]
        self.told("")

    def told(self, address: str) -> None:
        """Note that a node knows that the run is over, or is gone."""
        self._untold.discard(address)
        if self.message is not None and not self._untold and not self._over:
            self._over = True
            code, reason = self.message.code, self.message.reason
            self.node.after(self._linger_s, lambda: self._ended(code, reason))
