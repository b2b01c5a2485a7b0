"""How often the optimizer was applied to each part of an arena: the t of Adam."""

from __future__ import annotations

import numpy as np

from dps.transport.wire import Array


class Applied:
    """The counts of one arena. An update of all parts costs no pass over them."""

    def __init__(self, parts: int) -> None:
        self.together = 0
        """How often all parts were updated together."""
        self._parts = parts
        self._more: Array | None = None
        """How often each part was updated beside that; None while none was."""

    def begin(self, counts: list[int]) -> None:
        """Continue with the counts of a checkpoint."""
        self.together = min(counts, default=0)
        for place, count in enumerate(counts):
            if count > self.together:
                self.add(place, count - self.together)

    def of(self, place: int) -> int:
        """The count of the part at that place."""
        return self.together if self._more is None else self.together + int(self._more[place])

    def add(self, place: int, times: int = 1) -> None:
        """The part at that place was updated alone, so many times."""
        if self._more is None:
            self._more = np.zeros(self._parts, np.int64)
        self._more[place] += times

    def all(self) -> list[int]:
        """The counts of all parts, in their order."""
        return [self.of(place) for place in range(self._parts)]

    @property
    def differ(self) -> bool:
        """Whether two parts have different counts."""
        return self._more is not None and not (self._more == self._more[0]).all()
