"""Bounded staleness (SSP) as a state machine: who may read, by how many steps it is ahead. Lives on the step ps.

Invariant at every granted read: own clock - lowest clock of the living workers <= bound.
(Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.)
"""

from __future__ import annotations


class Clocks:
    """A worker's clock is the number of its acknowledged pushes; it never falls."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._clock: dict[int, int] = {}
        self._base: dict[int, int] = {}
        self._names: dict[int, str] = {}

    def set_members(self, names: dict[int, str]) -> None:
        """The living workers' names by incarnation; a new one starts at the lowest clock of the others."""
        lowest = min((c for i, c in self._clock.items() if i in names), default=0)
        self._clock = {i: self._clock.get(i, lowest) for i in names}
        self._base = {i: self._base.get(i, lowest) for i in names}
        self._names = dict(names)

    def acknowledged(self, incarnation: int, pushes: int) -> None:
        """A session says how many of its pushes were acknowledged since it joined."""
        if incarnation in self._clock:
            self._clock[incarnation] = max(self._clock[incarnation], self._base[incarnation] + pushes)

    def may_read(self, incarnation: int) -> bool:
        """Whether a session may read now; sessions that are no workers always may."""
        own = self._clock.get(incarnation)
        return own is None or own - min(self._clock.values()) <= self.bound

    def now(self) -> dict[int, int]:
        """The clocks by incarnation, as far as the sessions have told."""
        return dict(self._clock)

    def lowest(self) -> int:
        """The lowest clock of all workers."""
        return min(self._clock.values(), default=0)

    def slowest(self) -> list[str]:
        """Names of the workers with the lowest clock."""
        lowest = self.lowest()
        return [self._names[i] for i, clock in self._clock.items() if clock == lowest]
