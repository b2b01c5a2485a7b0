"""Credit: how many pushes of several pieces may be on their way to a ps at one time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dps.actors.ref import Sender
from dps.ps.serving.pace import Pace
from dps.transport.tuning import ORDINARY, Tuning

Key = tuple[int, int]
"""Of a push: the incarnation of its session, and its number."""


@dataclass(slots=True)
class _Held:
    """A credit: since when, when a piece last came, and how many bytes have come."""

    since: float
    heard: float
    here: int = 0


class Credits:
    """Who has credit on one shard and who wants it, in the order of asking. Events come in with their time in seconds;
    `grants` returns who may send now, and `asks_again` when to call `grants` again.

    Where memory is spared one push is on its way at a time, and a second one beside it where that is brought slowly.
    """

    def __init__(self, nbytes: int, tuning: Tuning = ORDINARY) -> None:
        """`nbytes`: of a whole push."""
        self._tuning, self._serving = tuning.intake, tuning.serving
        self._nbytes = nbytes
        self.held: dict[Key, _Held] = {}
        """The pushes that have credit."""
        self._wanted: OrderedDict[Key, Sender] = OrderedDict()
        self._pace = Pace(0.0, 0, tuning.serving)
        """Of the pushes with credit."""
        self._slow = 0
        """How many windows in a row, since when pushes were last fast, brought too little; see `Tuning`."""
        self._timer_at = 0.0

    def wanted(self, key: Key, sender: Sender) -> None:
        """Somebody wants credit."""
        self._wanted[key] = sender

    def waits(self, key: Key) -> bool:
        """Whether it was not granted yet."""
        return key in self._wanted

    def heard(self, key: Key, here: int, now: float) -> None:
        """A piece of a push of several is here; `here`: bytes of it that have come. It may have had its credit with the
        result of another push."""
        if key not in self.held:
            self._wanted.pop(key, None)
            self._hold(key, now)
        self.held[key].heard, self.held[key].here = now, here

    def over(self, key: Key, now: float) -> None:
        """A push needs its credit no longer."""
        held = self.held.pop(key, None)
        if held is not None and self._nbytes >= self._serving.slow_nbytes_s * (now - held.since):
            self._slow = 0

    def expire(self, now: float) -> list[Key]:
        """Take credit from senders that bring nothing; their pushes."""
        expired = [key for key, held in self.held.items() if held.heard < now - self._tuning.credit_s]
        for key in expired:
            del self.held[key]
        return expired

    def grants(self, now: float, spares: bool) -> list[Sender]:
        """Who gets credit now: those who have waited longest, as far as there is some. `spares`: memory is worth that
        pushes come one after the other."""
        granted = []
        while self._wanted and self._may_grant(now, spares):
            key, sender = self._wanted.popitem(last=False)
            self._hold(key, now)
            granted.append(sender)
        return granted

    def asks_again(self, now: float) -> float | None:
        """In how many seconds the pace of the push on its way is known, if somebody waits for that and no timer is set
        for it; who calls sets one."""
        if not self._wanted or len(self.held) >= self._tuning.credits or self._timer_at > now:
            return None
        self._timer_at = self._pace.due
        return self._timer_at - now

    def _hold(self, key: Key, now: float) -> None:
        self.held[key] = _Held(now, now)
        self._pace = Pace(now, self._here(), self._serving)

    def _may_grant(self, now: float, spares: bool) -> bool:
        most, slow = self._tuning.credits, self._tuning.slow_windows
        if not self.held or len(self.held) >= most or self._slow >= slow or not spares:
            return len(self.held) < most
        if now >= self._pace.due:
            self._slow = self._slow + 1 if self._pace.is_slow(now, self._here()) else 0
        return self._slow >= slow

    def _here(self) -> int:
        return sum(held.here for held in self.held.values())
