"""Credit: how many pushes of several pieces may be on their way to a ps at one time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dps.actors.ref import Sender
from dps.ps.serving.pace import Pace
from dps.transport.tuning import ORDINARY, Tuning

Key = tuple[int, int]
"""The key of a push: the incarnation of its session, and its number."""


@dataclass(slots=True)
class _Held:
    """A credit: when it was granted, when a piece last came, and how many bytes have come."""

    since: float
    heard: float
    here: int = 0


class Credits:
    """The sessions that have credit on one shard, and those that want it, in the order of asking. Events come in with
    their times in seconds. `take_granted` returns the sessions that may send now, and `next_grant_s` when to call
    `take_granted` again. If memory is to be saved, one push is in flight at a time, and a second one beside it if the
    first arrives slowly.
    """

    def __init__(self, nbytes: int, tuning: Tuning = ORDINARY) -> None:
        """`nbytes`: the bytes of a whole push."""
        self._tuning, self._serving = tuning.intake, tuning.serving
        self._nbytes = nbytes
        self.held: dict[Key, _Held] = {}
        """The pushes that have credit."""
        self.wanted: OrderedDict[Key, Sender] = OrderedDict()
        """The sessions that want credit for a push, those that have waited longest first."""
        self._pace = Pace(0.0, 0, tuning.serving)
        """The rate of the pushes with credit."""
        self._slow = 0
        """The number of slow windows in a row since pushes were last fast; see `Tuning`."""
        self._timer_at = 0.0

    def record_piece(self, key: Key, here: int, now: float) -> None:
        """A piece of a push of several pieces has arrived. `here`: how many of its bytes have arrived. It may have got
        its credit with the result of another push."""
        if key not in self.held:
            self.wanted.pop(key, None)
            self._hold_credit(key, now)
        self.held[key].heard, self.held[key].here = now, here

    def return_credit(self, key: Key, now: float) -> None:
        """A push no longer needs its credit."""
        held = self.held.pop(key, None)
        if held is not None and self._nbytes >= self._serving.slow_nbytes_s * (now - held.since):
            self._slow = 0

    def expire_credit(self, now: float) -> list[Key]:
        """Take credit from senders that have sent nothing for too long; returns their pushes."""
        expired = [key for key, held in self.held.items() if held.heard < now - self._tuning.credit_s]
        for key in expired:
            del self.held[key]
        return expired

    def take_granted(self, now: float, saves_memory: bool) -> list[Sender]:
        """Which sessions get credit now: those that have waited longest, while there is credit. `saves_memory`: pushes
        are to come one after the other, to save memory."""
        granted = []
        while self.wanted and self._may_grant(now, saves_memory):
            key, sender = self.wanted.popitem(last=False)
            self._hold_credit(key, now)
            granted.append(sender)
        return granted

    def next_grant_s(self, now: float) -> float | None:
        """The seconds until the rate of the push in flight is known, if a session waits for that and no timer is set;
        the caller sets one."""
        if not self.wanted or len(self.held) >= self._tuning.credits or self._timer_at > now:
            return None
        self._timer_at = self._pace.due
        return self._timer_at - now

    def _hold_credit(self, key: Key, now: float) -> None:
        self.held[key] = _Held(now, now)
        self._pace = Pace(now, self._nbytes_here(), self._serving)

    def _may_grant(self, now: float, saves_memory: bool) -> bool:
        most, slow = self._tuning.credits, self._tuning.slow_windows
        if not self.held or len(self.held) >= most or self._slow >= slow or not saves_memory:
            return len(self.held) < most
        if now >= self._pace.due:
            self._slow = self._slow + 1 if self._pace.is_slow(now, self._nbytes_here()) else 0
        return self._slow >= slow

    def _nbytes_here(self) -> int:
        return sum(held.here for held in self.held.values())
