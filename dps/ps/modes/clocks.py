"""Bounded staleness (SSP) as a state machine: who may read, by how many steps it is ahead. Lives on the step ps.

Invariant at every granted read: own clock - lowest clock of the living workers <= bound.
(Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.)
"""

from __future__ import annotations


class Clocks:
    """A worker's clock is the number of its acknowledged pushes, and never falls. A worker that kept a reader waiting
    until the reader's deadline does not count until its clock rises again.
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._clock: dict[int, int] = {}
        self._base: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._late: set[int] = set()

    def set_members(self, names: dict[int, str]) -> None:
        """The names of the living workers by incarnation. A new worker starts at the lowest clock of the others."""
        lowest = min((c for i, c in self._counted().items() if i in names), default=0)
        self._clock = {i: self._clock.get(i, lowest) for i in names}
        self._base = {i: self._base.get(i, lowest) for i in names}
        self._names = dict(names)
        self._late &= set(names)

    def record_pushes(self, incarnation: int, pushes: int) -> None:
        """A session says how many of its pushes were acknowledged since it joined."""
        before = self._clock.get(incarnation)
        if before is not None and self._base[incarnation] + pushes > before:
            self._clock[incarnation] = self._base[incarnation] + pushes
            self._late.discard(incarnation)

    def may_read(self, incarnation: int) -> bool:
        """Whether a session may read now. Sessions that are not workers always may."""
        return not self._behind(incarnation)

    def drop_late(self, incarnation: int) -> list[str]:
        """A reader's deadline has come: the workers for which it waits do not count any more. Returns their names."""
        late = self._behind(incarnation)
        self._late |= set(late)
        return [self._names[i] for i in late]

    def now(self) -> dict[int, int]:
        """The clocks by incarnation, of the sessions that have reported theirs."""
        return dict(self._clock)

    def lowest(self) -> int:
        """The lowest clock of the workers that count."""
        return min(self._counted().values(), default=0)

    def slowest(self) -> list[str]:
        """Names of the workers with the lowest clock."""
        lowest = self.lowest()
        return [self._names[i] for i, clock in self._counted().items() if clock == lowest]

    def _behind(self, incarnation: int) -> list[int]:
        """The workers that are so far behind a session that it may not read."""
        own = self._clock.get(incarnation)
        return [] if own is None else [i for i, clock in self._counted().items() if own - clock > self.bound]

    def _counted(self) -> dict[int, int]:
        return {i: clock for i, clock in self._clock.items() if i not in self._late}
