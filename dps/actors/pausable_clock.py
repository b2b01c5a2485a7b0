"""The clock for deadlines. It leaves out the time in which this process was stopped.

When a stopped process (SIGSTOP, a suspended machine) continues, all its deadlines have passed, while answers that came
in time wait to be read. No peer is to blame for that time. Such a process is nearly always in `receive` when it is
stopped, so a `receive` that took much longer than its timeout shows the stop.
"""

from __future__ import annotations

import math

from dps.transport.endpoint import Endpoint, Event, Runtime

NEVER = math.inf
SHARE = 0.4
"""A share of the silence that ends a connection. A wait that exceeds its timeout by more than this means that the
process was stopped. Shorter stops count as time that has passed."""


class PausableClock:
    """Counts the seconds in which its owner could have received messages. Belongs to one thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.now
        self._longest_s = SHARE * runtime.silence_s
        self.stood_still_s = 0.0
        """Seconds left out so far."""
        self.received_at = 0.0
        """When the last `receive` returned, on the clock of `now`."""
        self.asked_s = 0.0
        """How long it was to wait at most."""
        self.took_s = 0.0
        """How long it has waited."""

    def now(self) -> float:
        """Monotonic seconds, without those in which the process was stopped."""
        return self._now() - self.stood_still_s

    def receive(self, endpoint: Endpoint, wait_s: float, until: float = NEVER) -> Event | None:
        """Like `Endpoint.receive`, but waits no longer than `until`, on the clock of `now`. If the process was stopped
        meanwhile, none of the wait counts."""
        now = self._now
        began = now()
        if until != NEVER:
            left_s = until - (began - self.stood_still_s)  # in this order it is rounded as `now`
            if left_s < wait_s:
                wait_s = left_s if left_s > 0.0 else 0.0
        event = endpoint.receive(wait_s)
        ended = now()
        took_s = ended - began
        if took_s - wait_s > self._longest_s:
            self.stood_still_s += took_s
            took_s = 0.0
        self.received_at, self.asked_s, self.took_s = ended - self.stood_still_s, wait_s, took_s
        return event
