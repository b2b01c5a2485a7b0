"""The clock for deadlines. It leaves out the time in which this process was stopped.

A process that was stopped (SIGSTOP, a suspended machine) finds that all deadlines have passed at once, while answers
that came in time wait to be read. Such a process waits in `receive` nearly always, so a `receive` that took much longer
than it was to wait tells of the stop.
"""

from __future__ import annotations

from dps.transport.endpoint import Endpoint, Event, Runtime

SHARE = 0.4
"""Of the silence that ends a connection: a wait that lasts so much longer than it should means that the process was
stopped. Shorter stops count as time that has passed."""


class OwnTime:
    """Seconds in which its owner could have heard others. Belongs to one thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._longest_s = SHARE * runtime.silence_s
        self.stood_still_s = 0.0
        """Seconds that are left out so far."""

    def now(self) -> float:
        """Monotonic seconds, without those in which the process was stopped."""
        return self._runtime.now() - self.stood_still_s

    def receive(self, endpoint: Endpoint, wait_s: float) -> Event | None:
        """As `Endpoint.receive`. Where the process was stopped meanwhile, none of the wait counts."""
        began = self._runtime.now()
        event = endpoint.receive(wait_s)
        took_s = self._runtime.now() - began
        if took_s - wait_s > self._longest_s:
            self.stood_still_s += took_s
        return event
