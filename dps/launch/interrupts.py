"""Counts Ctrl-C and SIGTERM for a launcher."""

from __future__ import annotations

import signal
from typing import Any


class Interrupts:
    """Counts Ctrl-C (and SIGTERM) while it is active, instead of raising KeyboardInterrupt."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._seen)
        return self

    def _seen(self, *_: object) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
