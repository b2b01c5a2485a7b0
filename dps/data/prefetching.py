"""Makes elements ahead, in a task of its own, while the loop uses earlier ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from dps.data.stage import Block, Cursor, Stage, State, check_stage
from dps.transport.current import runtime


class Handover:
    """A bounded queue from one task to one other. `put` and `get` block; `close` lets both continue."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._line: deque[Any] = deque()
        self._changed = runtime().condition()
        self.closed = False

    def put(self, item: Any, tell: Callable[[], None] = lambda: None) -> bool:
        """Wait for room, put the item in and call `tell`; False if the other end is closed."""
        self._changed.wait(lambda: self.closed or len(self._line) < self._capacity)
        self._line.append(item)
        self._changed.notify()
        tell()
        return not self.closed

    def get(self) -> Any:
        """Wait for the next item."""
        self._changed.wait(lambda: bool(self._line))
        item = self._line.popleft()
        self._changed.notify()
        return item

    def poll(self) -> Any:
        """The next item, or None while there is none. Does not wait."""
        item = self._line.popleft() if self._line else None
        self._changed.notify()
        return item

    def close(self) -> None:
        """Close the queue: nothing more is put in or taken."""
        self.closed = True
        self._changed.notify()


class Prefetch:
    """Reads up to `count` elements ahead."""

    name = "prefetch"

    def __init__(self, of: Stage, count: int) -> None:
        self.of, self.count, self.arrays = of, count, of.arrays

    def open_cursor(self, epoch: int, at: State | None) -> PrefetchCursor:
        at = check_stage(at, self.name)
        return PrefetchCursor(self.of.open_cursor(epoch, at and at["of"]), self.count)


class PrefetchCursor:
    """The reading end of a task that reads ahead. Its state is that of the last element taken, not of the last one
    read."""

    def __init__(self, of: Cursor, count: int) -> None:
        self._line, self._of, self._state = Handover(count), of, of.state()
        self._begun = self._ended = False

    def read_block(self, count: int) -> Block:
        if not self._begun:
            self._begun = True
            line, of = self._line, self._of  # the task refers to nothing of this cursor, which ends it when it goes
            runtime().spawn("prefetch", lambda: _read_ahead(of, line))
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


def _read_ahead(of: Cursor, line: Handover) -> None:
    """Read until the end, an error, or the other end is closed."""
    goes_on = True
    while goes_on:
        state = of.state()
        try:
            block: Block = of.read_block(1)
            goes_on = line.put((block, of.state(), None)) and len(block) > 0
        except Exception as error:
            line.put(([], state, error))
            goes_on = False
    of.close()
