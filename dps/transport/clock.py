"""The real clock, in a module of its own for processes that need nothing else of the transport."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds on the clock of `Runtime.now` outside a simulation."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970, as `Runtime.wall` outside a simulation."""
    return time.time()


def pause(seconds: float) -> None:
    """Sleep, as `Runtime.sleep` outside a simulation. Blocks."""
    time.sleep(seconds)
