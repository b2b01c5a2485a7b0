"""The clock for deadlines. It leaves out the time in which this process was stopped.

When a stopped process (SIGSTOP, a suspended machine) continues, all its deadlines have passed, while answers that came
in time wait to be read. No peer is to blame for that time. Such a process is nearly always in `receive` when it is
stopped, so a `receive` that took much longer than its timeout shows the stop.
"""

from __future__ import annotations

from dps.transport.endpoint import Endpoint, Event, Runtime

SHARE = 0.4
"""A share of the silence that ends a connection. A wait that exceeds its timeout by more than this means that the
process was stopped. Shorter stops count as time that has passed."""


class OwnTime:
    """Counts the seconds in which its owner could have received messages. Belongs to one thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._longest_s = SHARE * runtime.silence_s
        self.stood_still_s = 0.0
        """Seconds left out so far."""

    def now(self) -> float:
        """Monotonic seconds, without those in which the process was stopped."""
        return self._runtime.now() - self.stood_still_s

    def receive(self, endpoint: Endpoint, wait_s: float) -> Event | None:
        """Like `Endpoint.receive`. If the process was stopped meanwhile, none of the wait counts."""
        began = self._runtime.now()
        event = endpoint.receive(wait_s)
        took_s = self._runtime.now() - began
        if took_s - wait_s > self._longest_s:
            self.stood_still_s += took_s
        return event
