"""How fast bytes move to others: whether at the pace of a fast connection, and what leaves within a moment."""

from __future__ import annotations

WINDOW_S = 0.5
"""How long is looked before anything is said: a busy machine holds everybody up for some tenths of a second."""
SLOW_NBYTES_S = 130e6
"""What a connection of 1 Gbit/s does not reach."""

SHORTEST_S = 1e-3
"""Less says nothing of a connection."""


class Pace:
    """Of a count of bytes that rises, from a moment on. Times in seconds on the runtime's clock."""

    __slots__ = ("_at", "_moved")

    def __init__(self, now: float, moved: int) -> None:
        self._at, self._moved = now, moved

    @property
    def due(self) -> float:
        """When something can be said."""
        return self._at + WINDOW_S

    def is_slow(self, now: float, moved: int) -> bool:
        """Whether too little has moved in a window; another begins then. False before it is `due`."""
        if now < self.due:
            return False
        slow = moved - self._moved < SLOW_NBYTES_S * (now - self._at)
        self._at, self._moved = now, moved
        return slow


class Rates:
    """How fast values left to each session when it last had some."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def note(self, incarnation: int, nbytes: int, seconds: float) -> None:
        """So many bytes have left within so many seconds."""
        self._known[incarnation] = nbytes / max(seconds, SHORTEST_S)

    def within(self, incarnation: int, seconds: float) -> int:
        """How many bytes would leave within so many seconds; 0 where nothing is known."""
        return int(self._known.get(incarnation, 0.0) * seconds)

    def forget(self, incarnation: int) -> None:
        """A session has ended."""
        self._known.pop(incarnation, None)
