"""Decides when to report a wait to people: after 2 s, then every 10 s."""

from __future__ import annotations

FIRST_S = 2.0
AGAIN_S = 10.0


class Patience:
    """Reporting times for one task that waits now and then. Times are the runtime's."""

    def __init__(self, first_s: float = FIRST_S) -> None:
        self._first_s = first_s
        self._since: float | None = None
        self._tell_at = 0.0

    def due(self, now: float) -> bool:
        """Whether to report the current wait now. The first call of a wait begins it."""
        if self._since is None:
            self._since, self._tell_at = now, now + self._first_s
        if now < self._tell_at:
            return False
        self._tell_at = now + AGAIN_S
        return True

    def over(self) -> None:
        """End the current wait."""
        self._since = None
