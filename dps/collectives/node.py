"""A node without a thread of its own: the thread that waits for an operation runs it, so nothing is handed over."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.system import Node
from dps.cluster.address import at_port, split
from dps.record import replace
from dps.transport.address import Binding


class CallersNode(Node):
    """A `Node` that is not started: one thread at a time runs it by `work`. Between two calls libzmq's threads
    receive."""

    def begin(self) -> None:
        """Start the actors."""
        self._turned_at = self._time.now()
        for actor in list(self.actors.values()):
            actor.started()

    def work(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Handle messages and timers until `until()` is true (True) or the time is over. Blocks."""
        self._outbox.flush()
        deadline = self._time.now() + timeout_s
        while not until():
            left_s = deadline - self._time.now()
            if left_s <= 0:
                return until()
            self._turn(left_s)
        self._outbox.flush()
        return True

    def close(self) -> None:
        """Close its sockets. A second call does nothing."""
        self._endpoint.close()


def beside(binding: Binding) -> Binding:
    """The binding of a second node of a task: as the first one, at another port."""
    if "://" in binding.address:
        return replace(binding, address="", advertise="")
    address, advertise = binding.address, split(binding.advertise)[0]
    return replace(binding, address=at_port(address, 0) if split(address)[1] else address, advertise=advertise)
