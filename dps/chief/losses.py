"""Counts the steps that are lost when a run epoch ends, from what its ps and sessions report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class _Reached:
    """The highest step of one run epoch that any task has reported."""

    epoch: int
    step: int
    silent: set[int] = field(default_factory=set)
    """Sessions that took part when the epoch ended, or were lost before, and have not reported their step since."""
    unknown: bool = False
    """Whether another chief led the epoch. Then the last steps of closed sessions are not known."""
    counted: bool = False
    """Whether its step ps has reported the last step."""

    def heard(self, session: int, step: int) -> None:
        self.step = max(self.step, step)
        self.silent.discard(session)


class Losses:
    """Counts the steps of the current run epoch, and of the last epoch that trained and is over.

    The number for the latter is certain once its step ps has reported its step, or all of its sessions have: those that
    closed before, and those that took part at its end. A lost session can no longer report.
    """

    def __init__(self) -> None:
        self._now: _Reached | None = None
        self._ended: _Reached | None = None

    def trains(self, epoch: int, step: int, unknown: bool = False) -> None:
        """Note that a run epoch trains, from this step on. `unknown`: another chief began it."""
        self._now = _Reached(epoch, step, unknown=unknown)

    def over(self, sessions: Iterable[int]) -> None:
        """Note that the current run epoch is over; these sessions took part."""
        if self._now is not None:
            self._now.silent.update(sessions)
            self._ended, self._now = self._now, None

    def lost(self, session: int) -> None:
        """Note that a session of the current run epoch was lost, with the steps that only it was told of."""
        if self._now is not None:
            self._now.silent.add(session)

    def closed(self, session: int, epoch: int, step: int) -> None:
        """Note that a session has closed, at this step of this run epoch."""
        for reached in (self._ended, self._now):
            if reached is not None:
                reached.heard(session, step if reached.epoch == epoch else 0)

    def joins(self, session: int, epoch: int, step: int) -> None:
        """Note that a session joins that had reached this step of this run epoch."""
        if self._ended is None and self._now is None and epoch:
            self._ended = _Reached(epoch, step, unknown=True)
        if self._ended is not None and self._ended.epoch == epoch:
            self._ended.heard(session, step)

    def counted(self, epoch: int, step: int) -> None:
        """Note the last step that the step ps of a finished run epoch reports."""
        if self._ended is not None and self._ended.epoch == epoch:
            self._ended.step, self._ended.counted = max(self._ended.step, step), True

    @property
    def reached(self) -> int:
        """The highest known step of the last finished run epoch; 0 if there is none."""
        return 0 if self._ended is None else self._ended.step

    def certain(self, epoch: int) -> bool:
        """Whether `reached` is certain for a session whose last run epoch is `epoch`. Pushes whose result no session
        received are not counted."""
        ended = self._ended
        return ended is None or (ended.epoch == epoch and (ended.counted or not (ended.unknown or ended.silent)))
