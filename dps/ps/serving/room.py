"""Memory for the versions that are sent: who finds none waits for other readers, for a bounded time."""

from __future__ import annotations

import weakref

from dps.ps.serving.pace import Pace
from dps.ps.store.hold import Hold
from dps.ps.store.store import Store


class Wait:
    """Of one pull."""

    __slots__ = ("last", "pace", "until")

    def __init__(self) -> None:
        self.until = self.last = 0.0
        """On the runtime's clock: when it is to be asked again, and when it need not wait on; 0: it has not had to."""
        self.pace: Pace | None = None


class Room:
    """Holds for those who are sent values. A large shard makes do with two buffers as long as that goes: what is read
    in one while the other is current. One more is made where readers are slow, and stays."""

    def __init__(self, store: Store) -> None:
        self._store, self._tuning = store, store.runtime.tuning.serving
        self.sent = 0
        """Bytes of values that have left, or were read in place and given back, in all."""
        self._stuck = False
        """Whether readers last kept all buffers for long: then nobody waits for more than a moment."""
        self.copies = 0
        """Pulls that were answered from a copy."""
        self._copied: weakref.ref[Hold] | None = None

    def hold(self, wait: Wait, arenas: list[int] | None) -> Hold | None:
        """The current version of these arenas (None: of all); None: ask again when somebody is done, or at
        `wait.until`."""
        store = self._store
        hold = store.hold(arenas=arenas, sparing=True)
        if hold is not None:
            self._stuck = self._stuck and wait.pace is None
            return hold
        if self._waits(wait):
            return None
        hold = store.hold(arenas=arenas)
        if hold is None:
            self.copies += 1
            hold = self._copy()
        return hold

    def _waits(self, wait: Wait) -> bool:
        now, grows = self._store.runtime.now(), self._store.may_grow
        if wait.pace is None:
            wait.pace = Pace(now, self.sent, self._tuning)
            patient = grows or (self._store.is_large and not self._stuck)
            last = now + (self._tuning.room_most_s if patient else self._tuning.room_s)
            wait.until, wait.last = wait.pace.due if patient else last, last
        elif now >= wait.until:
            if now >= wait.last or wait.pace.is_slow(now, self.sent):
                self._stuck = not grows
                return False
            wait.until = min(now + self._tuning.window_s, wait.last)
        return True

    def _copy(self) -> Hold:
        """The current version copied out, once for all who read it meanwhile."""
        found = self._copied() if self._copied is not None else None
        if found is None or found.counter != self._store.counter:
            found = self._store.copy()
            self._copied = weakref.ref(found)
        return found
