"""The real clock alone, for who waits for processes and loads nothing else of the transport."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds on the clock of `Runtime.now` outside a simulation."""
    return time.monotonic()
