"""Whether bytes go on moving at the pace of a fast connection: over one, who waits for them does not wait long."""

from __future__ import annotations

WINDOW_S = 0.5
"""How long is looked before anything is said: a busy machine holds everybody up for some tenths of a second."""
SLOW_NBYTES_S = 130e6
"""What a connection of 1 Gbit/s does not reach."""


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
