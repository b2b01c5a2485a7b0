"""How fast bytes move to others: whether at the pace of a fast connection, and what leaves within a moment."""

from __future__ import annotations

from dps.transport.tuning import ORDINARY, ServingTuning


class Pace:
    """Of a count of bytes that rises, from a moment on. Times in seconds on the runtime's clock."""

    __slots__ = ("_at", "_moved", "_tuning")

    def __init__(self, now: float, moved: int, tuning: ServingTuning) -> None:
        self._at, self._moved, self._tuning = now, moved, tuning

    @property
    def due(self) -> float:
        """When something can be said."""
        return self._at + self._tuning.window_s

    def is_slow(self, now: float, moved: int) -> bool:
        """Whether too little has moved in a window; another begins then. False before it is `due`."""
        if now < self.due:
            return False
        slow = moved - self._moved < self._tuning.slow_nbytes_s * (now - self._at)
        self._at, self._moved = now, moved
        return slow


class Rates:
    """How fast values left to each session when it last had some."""

    def __init__(self, shortest_s: float = ORDINARY.serving.shortest_s) -> None:
        """`shortest_s`: a shorter time says nothing of a connection."""
        self._shortest_s = shortest_s
        self._known: dict[int, float] = {}

    def note(self, incarnation: int, nbytes: int, seconds: float) -> None:
        """So many bytes have left within so many seconds."""
        self._known[incarnation] = nbytes / max(seconds, self._shortest_s)

    def within(self, incarnation: int, seconds: float) -> int:
        """How many bytes would leave within so many seconds; 0 where nothing is known."""
        return int(self._known.get(incarnation, 0.0) * seconds)

    def forget(self, incarnation: int) -> None:
        """A session has ended."""
        self._known.pop(incarnation, None)
