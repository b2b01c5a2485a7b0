"""Which asynchronous pushes are applied while they arrive."""

from __future__ import annotations

from dps.transport.tuning import ORDINARY


class Worth:
    """Whether to apply the next push while it arrives. Each time that another one came in between, and the work was for
    nothing, twice as many are left alone; each time that none did, half as many."""

    def __init__(self, most: int = ORDINARY.store.most_skipped) -> None:
        """`most`: how many are left alone at most."""
        self._most, self._skips, self._left = most, 0, 0

    def a_try(self) -> bool:
        """Whether this push is to be tried."""
        self._left -= self._left > 0
        return self._left == 0

    def note(self, good: bool) -> None:
        """What came of a try."""
        self._skips = self._skips // 2 if good else min(self._most, 2 * self._skips + 1)
        self._left = self._skips + 1 if self._skips else 0
