"""Decides which asynchronous pushes are applied while they arrive."""

from __future__ import annotations

from dps.transport.tuning import ORDINARY


class Worth:
    """Decides whether to apply the next push while it arrives. If another push came in between, so that the work was
    lost, twice as many pushes are skipped after it; if none did, half as many."""

    def __init__(self, most: int = ORDINARY.store.most_skipped) -> None:
        """`most`: the most pushes that are skipped."""
        self._most, self._skips, self._left = most, 0, 0

    def a_try(self) -> bool:
        """Whether to try this push."""
        self._left -= self._left > 0
        return self._left == 0

    def note(self, good: bool) -> None:
        """The outcome of a try."""
        self._skips = self._skips // 2 if good else min(self._most, 2 * self._skips + 1)
        self._left = self._skips + 1 if self._skips else 0
