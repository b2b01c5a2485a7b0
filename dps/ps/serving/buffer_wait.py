"""Finds a buffer for a version that is sent. A pull that finds none waits for other readers, for a bounded time."""

from __future__ import annotations

import weakref

from dps.ps.serving.pace import Pace
from dps.ps.store.hold import Hold
from dps.ps.store.store import Store


class Wait:
    """The wait of one pull for a buffer."""

    __slots__ = ("last", "pace", "until")

    def __init__(self) -> None:
        self.until = self.last = 0.0
        """When it asks again, and when it stops waiting, on the runtime's clock; 0: it has not waited yet."""
        self.pace: Pace | None = None


class BufferWait:
    """Holds for values that are sent. A large shard uses two buffers if possible: one is read while the other is
    current. If readers are slow, a third one is made, which stays."""

    def __init__(self, store: Store) -> None:
        self._store, self._tuning = store, store.runtime.tuning.serving
        self.sent = 0
        """Bytes of values that have left, or were read in place and returned, in all."""
        self._stuck = False
        """Whether readers have lately kept all buffers for long. Then no pull waits for more than a moment."""
        self.copies = 0
        """How many pulls were answered from a copy."""
        self._copied: weakref.ref[Hold] | None = None

    def hold(self, wait: Wait, arenas: list[int] | None) -> Hold | None:
        """Hold the current version of these arenas (None: of all); None if the pull has to ask again when a reader has
        finished, or at `wait.until`."""
        store = self._store
        hold = store.hold(arenas=arenas, sparing=True)
        if hold is not None:
            self._stuck = self._stuck and wait.pace is None
            return hold
        if self._must_wait(wait):
            return None
        hold = store.hold(arenas=arenas)
        if hold is None:
            self.copies += 1
            hold = self._copy_version()
        return hold

    def _must_wait(self, wait: Wait) -> bool:
        now, grows = self._store.runtime.now(), self._store.may_grow
        if wait.pace is None:
            wait.pace = Pace(now, self.sent, self._tuning)
            patient = grows or (self._store.is_large and not self._stuck)
            last = now + (self._tuning.buffer_wait_most_s if patient else self._tuning.buffer_wait_s)
            wait.until, wait.last = wait.pace.due if patient else last, last
        elif now >= wait.until:
            if now >= wait.last or wait.pace.is_slow(now, self.sent):
                self._stuck = not grows
                return False
            wait.until = min(now + self._tuning.window_s, wait.last)
        return True

    def _copy_version(self) -> Hold:
        """A copy of the current version, made once for all pulls that read it at this time."""
        found = self._copied() if self._copied is not None else None
        if found is None or found.counter != self._store.counter:
            found = self._store.copy()
            self._copied = weakref.ref(found)
        return found
