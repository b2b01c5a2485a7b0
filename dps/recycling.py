"""Memory that is used again when nothing refers to it any more."""

from __future__ import annotations

import sys

import numpy as np

from dps.transport.wire import Array


class Recycled:
    """Runs of bytes for arrays that are given away: one that nothing refers to any more is used again.

    Fresh memory costs as much as the copy into it: each of its pages has to be found and cleared first.
    """

    KEPT = 4
    _OWN_REFERENCES = 3  # the list's, the loop's and getrefcount's

    def __init__(self) -> None:
        self._runs: list[Array] = []

    def take(self, nbytes: int) -> Array:
        """A run, its bytes undefined, for the caller to keep for as long as it likes."""
        for run in self._runs:
            if len(run) == nbytes and sys.getrefcount(run) <= self._OWN_REFERENCES:
                return run
        made: Array = np.empty(nbytes, np.uint8)
        self._runs = [*self._runs[1 - self.KEPT :], made]
        return made
