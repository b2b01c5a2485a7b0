"""Credit: how many pushes of several pieces may be on their way to a ps at one time."""

from __future__ import annotations

from collections import OrderedDict

from dps.actors.messages import Waiting
from dps.actors.ref import Sender
from dps.ps.serving.pace import SLOW_NBYTES_S, Pace
from dps.ps.shard import Shard

CREDITS = 2
"""Pushes of several pieces that may be on their way to a ps at one time."""
SLOW = 3
"""After so many slow windows nobody waits until another's push is here; until one is brought at a pace."""
CREDIT_TIMEOUT_S = 5.0
"""A sender that brings no piece for so long loses its credit and its staged pieces."""

Key = tuple[int, int]
"""Of a push: the incarnation of its session, and its number."""


class Credits:
    """Who has credit and who wants it, in the order of asking.

    Where the pieces of a push go while it is applied, a large shard has one push on its way at a time: the next begins
    when half of the memory of the one before has gone, or beside it where that one is brought slowly.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[Key, float] = OrderedDict()
        """When something was last heard of each."""
        self._wanted: OrderedDict[Key, Sender] = OrderedDict()
        self._since: dict[Key, float] = {}
        """When each got its credit."""
        self._pace: Pace | None = None
        self._slow = 0
        """How many windows in a row, since when pushes were last fast, brought too little; see SLOW."""
        self._looks_at = 0.0
        """When a timer looks again at who wants credit."""

    def __contains__(self, key: Key) -> bool:
        return key in self._held

    def clear(self) -> None:
        """Another run epoch has begun."""
        self._held.clear()
        self._wanted.clear()
        self._since.clear()
        self._slow, self._looks_at = 0, 0.0

    def ask(self, shard: Shard, key: Key, sender: Sender) -> None:
        """Somebody wants credit: it is answered now, and again when there is some."""
        self._wanted[key] = sender
        self.grant(shard)
        if key in self._wanted:
            shard.node.answer(sender, Waiting(f"{shard.node.name} takes {CREDITS} large pushes at a time"))

    def begins(self, shard: Shard, key: Key) -> None:
        """The first piece of a push is here; it may have had its credit with the result of another."""
        if key not in self._held:
            self._wanted.pop(key, None)
            self._hold(shard, key)

    def heard(self, key: Key, now: float) -> None:
        """A piece has come."""
        if key in self._held:
            self._held[key] = now

    def over(self, shard: Shard, key: Key) -> None:
        """A push needs its credit no longer."""
        if self._held.pop(key, None) is not None:
            took_s = shard.node.runtime.now() - self._since.pop(key)
            if shard.layout.gradient_nbytes >= SLOW_NBYTES_S * took_s:
                self._slow = 0
            self.grant(shard)

    def half_gone(self, shard: Shard, key: Key) -> None:
        """Half of a push is applied, and its memory has gone: the next one comes while the rest is."""
        if key in self._held and self._wanted:
            self.over(shard, key)
            shard.node.flush()

    def grant(self, shard: Shard) -> None:
        """Give credit to those who have waited longest, as far as there is some."""
        while self._wanted and self._may_grant(shard):
            key, sender = self._wanted.popitem(last=False)
            self._hold(shard, key)
            shard.node.answer(sender)

    def _hold(self, shard: Shard, key: Key) -> None:
        now = shard.node.runtime.now()
        self._held[key] = self._since[key] = now
        self._pace = Pace(now, self._here(shard))

    def _may_grant(self, shard: Shard) -> bool:
        if not self._held or len(self._held) >= CREDITS or self._slow >= SLOW or not shard.spares:
            return len(self._held) < CREDITS
        assert self._pace is not None
        now = shard.node.runtime.now()
        if now >= self._pace.due:
            self._slow = self._slow + 1 if self._pace.is_slow(now, self._here(shard)) else 0
        if self._slow < SLOW and self._looks_at <= now:
            self._looks_at = self._pace.due
            shard.node.after(self._pace.due - now, lambda: None if shard.ended else self.grant(shard))
        return self._slow >= SLOW

    def _here(self, shard: Shard) -> int:
        """Bytes of the pushes with credit that have come."""
        nbytes = 0
        for incarnation, number in self._held:
            ledger = shard.ledgers.get(incarnation)
            staged = None if ledger is None else ledger.staged.get(number)
            nbytes += 0 if staged is None else staged.here
        return nbytes

    def expire(self, shard: Shard | None, now: float) -> None:
        """Take credit and staged pieces from senders that bring nothing."""
        for key in [k for k, at in self._held.items() if at < now - CREDIT_TIMEOUT_S]:
            ledger = shard.ledgers.get(key[0]) if shard is not None else None
            if ledger is not None and (staged := ledger.staged.get(key[1])) is not None and not staged.whole:
                ledger.discard(key[1])
            del self._held[key], self._since[key]
        if shard is not None:
            self.grant(shard)
