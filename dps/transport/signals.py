"""The signals that an endpoint gets beside its messages: events of its sockets, and calls of other threads."""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import zmq

from dps.transport.wake import Wake


class Signals:
    """The wake descriptor and all monitors, behind one descriptor. Only `call` and `wake` may be used by any thread."""

    def __init__(self) -> None:
        self.woken = False
        """Whether a `wake` has not been heeded yet."""
        self._wake = Wake()
        self._calls: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake.fd, selectors.EVENT_READ, self._wake.clear)
        self.fd = int(cast(Any, self._selector).fileno())  # epoll and kqueue have one

    def watch(self, monitor: zmq.Socket[bytes], attend: Callable[[], None]) -> None:
        """Call `attend` when a monitor has events, and now: the descriptor reports new ones only after all are read."""
        self._selector.register(monitor.fileno(), selectors.EVENT_READ, attend)
        attend()

    def unwatch(self, monitor: zmq.Socket[bytes]) -> None:
        """Stop watching a monitor. Call this before it is closed."""
        self._selector.unregister(monitor.fileno())

    def attend(self, wait_s: float = 0.0) -> None:
        """Handle what there is. Blocks up to `wait_s` seconds."""
        for key, _ in self._selector.select(wait_s):
            key.data()
        while self._calls:
            self._calls.popleft()()

    def call(self, call: Callable[[], None]) -> None:
        """Have the owner call something in its next `attend`."""
        self._calls.append(call)
        self._wake.set()

    def wake(self) -> None:
        """Make the owner's wait end."""
        self.woken = True
        self._wake.set()

    def close(self) -> None:
        self._selector.close()
        self._wake.close()
