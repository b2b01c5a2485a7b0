"""Lets threads of a program wait for what the node's thread does, in real time and in the simulator's."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dps.transport.endpoint import Endpoint, Runtime


class Changes:
    """Whoever changes something calls `notify`, from any thread; whoever waits for it calls `wait`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed = threading.Condition()
        self._waiting: list[Endpoint] = []
        """In the simulator, whose tasks no condition wakes: one for each that waits."""

    def notify(self) -> None:
        """Have those who wait look again."""
        if self._runtime.simulated:
            for endpoint in self._waiting:
                endpoint.wake()
        else:
            with self._changed:
                self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `ready()` is true; returns False if it is not after `timeout_s`. Blocks."""
        if ready() or timeout_s <= 0:
            return ready()
        if self._runtime.simulated:
            return self._wait_simulated(ready, timeout_s)
        with self._changed:
            return self._changed.wait_for(ready, min(timeout_s, threading.TIMEOUT_MAX))

    def _wait_simulated(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        deadline, endpoint = self._runtime.now() + timeout_s, self._runtime.endpoint()
        self._waiting.append(endpoint)
        try:
            while not ready() and (left_s := deadline - self._runtime.now()) > 0:
                endpoint.receive(left_s)
            return ready()
        finally:
            self._waiting.remove(endpoint)
            endpoint.close()
