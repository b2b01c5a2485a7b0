"""Counts requests to end a launcher: Ctrl-C, SIGTERM, the end of its terminal, and orders from elsewhere."""

from __future__ import annotations

import signal
from typing import Any

from dps.transport.clock import now

GRACE_S = 10.0
"""How long tasks may take to end after the terminal has gone, or somebody has told the run to end."""


class Interrupts:
    """Counts Ctrl-C (and SIGTERM) while it is active, instead of raising KeyboardInterrupt. `count` 1: the run is to
    end in order; 2: at once."""

    def __init__(self) -> None:
        self.count = 0
        self.hung_up = False
        """Whether the terminal has gone (SIGHUP)."""
        self._hard_at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:  # nohup ignores it
                self._before[number] = signal.signal(number, self._count_signal)
        return self

    def _count_signal(self, number: int, _: object) -> None:
        if number == signal.SIGHUP:
            self.hung_up = True
        else:
            self.count += 1

    def request_end(self, grace_s: float) -> None:
        """End the run in order, and at once when the grace is over. `update_count` does the second."""
        self.count = max(self.count, 1)
        hard_at = now() + grace_s
        self._hard_at = min(self._hard_at, hard_at) if self._hard_at else hard_at

    def update_count(self) -> None:
        """Called several times a second: whether the terminal has gone, or a grace is over."""
        if self.hung_up and not self._hard_at:
            self.request_end(GRACE_S)
        if self._hard_at and now() >= self._hard_at:
            self.count = max(self.count, 2)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
