"""Makes elements ahead, in a task of its own, while the loop uses earlier ones."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from dps.data.stage import Block, Cursor, DerivedStage, Stage, State
from dps.transport.current import runtime


class PrefetchQueue:
    """A bounded queue from one task to one other. `put` and `get` block; `close` lets both continue."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._queue: deque[Any] = deque()
        self._changed = runtime().condition()
        self.closed = False

    def put(self, item: Any, tell: Callable[[], None] = lambda: None) -> bool:
        """Wait for room, put the item in and call `tell`; False if the other end is closed."""
        self._changed.wait(lambda: self.closed or len(self._queue) < self._capacity)
        self._queue.append(item)
        self._changed.notify()
        tell()
        return not self.closed

    def get(self) -> Any:
        """Wait for the next item; None if the queue is closed and has none."""
        self._changed.wait(lambda: self.closed or bool(self._queue))
        return self.poll()

    def poll(self) -> Any:
        """The next item, or None while there is none. Does not wait."""
        item = self._queue.popleft() if self._queue else None
        self._changed.notify()
        return item

    def close(self) -> None:
        """Close the queue: nothing more is put in or taken."""
        self.closed = True
        self._changed.notify()


class PrefetchCursor:
    """The reading end of a task that reads ahead. Its state is that of the last element taken, not of the last one
    read."""

    def __init__(self, stage: Prefetch, of: Cursor, at: State | None) -> None:
        self._queue, self._of, self._state = PrefetchQueue(stage.count), of, of.state()
        self._begun = self._ended = False

    def read_block(self, count: int) -> Block:
        if not self._begun:
            self._begun = True
            queue, of = self._queue, self._of  # the task refers to nothing of this cursor, which ends it when it goes
            runtime().spawn("prefetch", lambda: _read_ahead(of, queue))
        if self._ended:
            return []
        block: Block
        error: Exception | None
        block, self._state, error = self._queue.get() or ([], self._state, None)  # closed by another thread
        if error is not None:
            raise error
        self._ended = not len(block)
        return block

    def state(self) -> State:
        return {"stage": Prefetch.name, "of": self._state}

    def close(self) -> None:
        self._queue.close()
        if not self._begun:
            self._of.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter ends, the task stands still, and may have the lock for ever; the name `sys` may be gone.
        if not is_finalizing():
            self._queue.close()


class Prefetch(DerivedStage):
    """Reads up to `count` elements ahead."""

    name = "prefetch"
    cursor = PrefetchCursor

    def __init__(self, of: Stage, count: int) -> None:
        self.of, self.count, self.arrays = of, count, of.arrays


def _read_ahead(of: Cursor, queue: PrefetchQueue) -> None:
    """Read until the end, or the other end is closed. An error takes the place of an element, as without a task."""
    goes_on = True
    while goes_on:
        block: Block = []
        error: Exception | None = None
        try:
            block = of.read_block(1)
        except Exception as raised:
            error = raised
        goes_on = queue.put((block, of.state(), error)) and (error is not None or len(block) > 0)
    of.close()
