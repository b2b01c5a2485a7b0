"""Decides whether to try something that pays only sometimes."""

from __future__ import annotations


class Backoff:
    """After a try that did not pay, twice as many occasions are skipped as before; after one that did, half as many."""

    __slots__ = ("_left", "_most", "_skips")

    def __init__(self, most: int) -> None:
        """`most`: the most occasions that are skipped."""
        self._most, self._skips, self._left = most, 0, 0

    def may_try(self) -> bool:
        """Whether to try on this occasion."""
        if self._left:
            self._left -= 1
        return not self._left

    def record_try(self, good: bool) -> None:
        """Note whether a try has paid."""
        if self._skips or not good:
            self._skips = self._skips // 2 if good else min(self._most, 2 * self._skips + 1)
            self._left = self._skips + 1 if self._skips else 0
