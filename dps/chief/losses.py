"""Counts the steps that are lost when a run epoch ends, from what its ps and sessions report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class _Reached:
    """The highest step of one run epoch that anybody has told of."""

    epoch: int
    step: int
    silent: set[int] = field(default_factory=set)
    """Sessions that took part when it ended, and have not said since how far they got."""
    unknown: bool = False
    """Another chief led it: of sessions that have closed it is not known how far they got."""
    counted: bool = False
    """Its step ps has told how far it got."""

    def heard(self, session: int, step: int) -> None:
        self.step = max(self.step, step)
        self.silent.discard(session)


class Losses:
    """Of the run epoch of now, and of the last one that trained and is over.

    What is told of that one is certain when its step ps has told its step, or all of its sessions have: those that
    closed before, and those that were there at its end. A session that was lost tells nothing any more.
    """

    def __init__(self) -> None:
        self._now: _Reached | None = None
        self._ended: _Reached | None = None

    def trains(self, epoch: int, step: int, unknown: bool = False) -> None:
        """A run epoch trains, from this step on. `unknown`: another chief began it."""
        self._now = _Reached(epoch, step, unknown=unknown)

    def over(self, sessions: Iterable[int]) -> None:
        """The run epoch of now is over; these sessions took part."""
        if self._now is not None:
            self._now.silent = set(sessions)
            self._ended, self._now = self._now, None

    def closed(self, session: int, epoch: int, step: int) -> None:
        """A session has closed, at this step of this run epoch."""
        for reached in (self._ended, self._now):
            if reached is not None:
                reached.heard(session, step if reached.epoch == epoch else 0)

    def joins(self, session: int, epoch: int, step: int) -> None:
        """A session comes that has got as far as this step in this run epoch."""
        if self._ended is None and self._now is None and epoch:
            self._ended = _Reached(epoch, step, unknown=True)
        if self._ended is not None and self._ended.epoch == epoch:
            self._ended.heard(session, step)

    def counted(self, epoch: int, step: int) -> None:
        """The step ps of a run epoch that is over says how far it got."""
        if self._ended is not None and self._ended.epoch == epoch:
            self._ended.step, self._ended.counted = max(self._ended.step, step), True

    @property
    def reached(self) -> int:
        """The highest step of the run epoch that is over; 0 where none is."""
        return 0 if self._ended is None else self._ended.step

    def certain(self, epoch: int) -> bool:
        """Whether that is all, but for pushes that nobody was told the result of, to one who was last
        in this run epoch."""
        ended = self._ended
        return ended is None or (ended.epoch == epoch and (ended.counted or not (ended.unknown or ended.silent)))
