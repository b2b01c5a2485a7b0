"""A node without a thread of its own: the thread that waits for an operation runs it, so nothing is handed over."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.system import Node
from dps.record import replace
from dps.transport.address import Binding, parse, with_port


class CallersNode(Node):
    """A `Node` that is not started: one thread at a time calls `work`. Between two calls libzmq's threads receive."""

    def begin(self) -> None:
        """Tell the actors that they can begin."""
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
            self._turn(min(self._wait_s(), left_s))
        self._outbox.flush()
        return True

    def close(self) -> None:
        """Close its sockets. A second call does nothing."""
        self._endpoint.close()


def beside(binding: Binding) -> Binding:
    """How a second node of a task listens: as the first one, at another port."""
    told = binding.advertise.rpartition(":") if ":" in binding.advertise.rpartition("]")[2] else None
    advertise = binding.advertise if told is None else told[0]
    if "://" in binding.address:
        address = parse(binding.address)
        if address.scheme != "tcp":
            return replace(binding, address="", advertise="")
        return replace(binding, address=str(with_port(address, 0)), advertise=advertise)
    host, mark, port = binding.address.rpartition(":")
    if mark and not binding.address.endswith("]") and port.isdigit():
        return replace(binding, address=f"{host}:0", advertise=advertise)
    return replace(binding, advertise=advertise)
