"""Measures how fast bytes move: whether a connection is slow."""

from __future__ import annotations

from dps.transport.tuning import ServingTuning


class Pace:
    """The rate at which a count of bytes grows. Times are in seconds on the runtime's clock."""

    __slots__ = ("_at", "_moved", "_tuning")

    def __init__(self, now: float, moved: int, tuning: ServingTuning) -> None:
        self._at, self._moved, self._tuning = now, moved, tuning

    @property
    def due(self) -> float:
        """When `is_slow` can be answered."""
        return self._at + self._tuning.window_s

    def is_slow(self, now: float, moved: int) -> bool:
        """Whether too few bytes were counted in this window; the next window begins then. False before it is `due`."""
        if now < self.due:
            return False
        slow = moved - self._moved < self._tuning.slow_nbytes_s * (now - self._at)
        self._at, self._moved = now, moved
        return slow
