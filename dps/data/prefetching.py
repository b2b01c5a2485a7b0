"""Elements that are made ahead, by a task of their own, while others are used."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from dps.data.stage import Block, Cursor, Stage, State, check
from dps.transport.current import runtime

LOOK_S, SELDOM_S = 1e-3, 16e-3
"""In the simulator a side that waits looks so often: at first, and when it has waited for long."""


class Handover:
    """A bounded line from one task to another. `put` and `get` block; `close` lets both go on."""

    def __init__(self, capacity: int) -> None:
        self._runtime, self._capacity = runtime(), capacity
        self._line: deque[Any] = deque()
        self._changed = threading.Condition()
        self.closed = False

    def put(self, item: Any, tell: Callable[[], None] = lambda: None) -> bool:
        """Wait for room, put the item there and `tell`; False when nobody wants it any more."""
        self._wait(lambda: self.closed or len(self._line) < self._capacity)
        with self._changed:
            self._line.append(item)
            self._changed.notify_all()
        tell()
        return not self.closed

    def get(self) -> Any:
        """Wait for the next item."""
        self._wait(lambda: bool(self._line))
        with self._changed:
            item = self._line.popleft()
            self._changed.notify_all()
        return item

    def poll(self) -> Any:
        """The next item, or None while there is none. Does not wait."""
        with self._changed:
            item = self._line.popleft() if self._line else None
            self._changed.notify_all()
        return item

    def close(self) -> None:
        """Nothing is wanted any more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        if self._runtime.simulated:
            pause_s = LOOK_S
            while not ready():
                self._runtime.sleep(pause_s)
                pause_s = min(2 * pause_s, SELDOM_S)
        else:
            with self._changed:
                self._changed.wait_for(ready)


class Prefetch:
    """Up to so many elements ahead."""

    name = "prefetch"

    def __init__(self, of: Stage, count: int) -> None:
        self.of, self.count, self.arrays = of, count, of.arrays

    def open(self, epoch: int, at: State | None) -> PrefetchCursor:
        at = check(at, self.name)
        return PrefetchCursor(self.of.open(epoch, at and at["of"]), self.count)


class PrefetchCursor:
    """The other end of a task that reads. Its state is that of the last element taken, not of the last one read."""

    def __init__(self, of: Cursor, count: int) -> None:
        self._line, self._of, self._state = Handover(count), of, of.state()
        self._begun = self._ended = False

    def take(self, count: int) -> Block:
        if not self._begun:
            self._begun = True
            line, of = self._line, self._of  # the task refers to nothing of this cursor, which ends it when it goes
            runtime().spawn("prefetch", lambda: _read(of, line))
        if self._ended:
            return []
        block, self._state, error = self._line.get()
        self._ended = not len(block)
        if error is not None:
            raise error
        return block

    def state(self) -> State:
        return {"stage": Prefetch.name, "of": self._state}

    def close(self) -> None:
        self._line.close()
        if not self._begun:
            self._of.close()

    def __del__(self) -> None:
        self._line.close()


def _read(of: Cursor, line: Handover) -> None:
    """Read until the end, an error, or nobody wants more."""
    goes_on = True
    while goes_on:
        state = of.state()
        try:
            block: Block = of.take(1)
            goes_on = line.put((block, of.state(), None)) and len(block) > 0
        except Exception as error:
            line.put(([], state, error))
            goes_on = False
    of.close()
