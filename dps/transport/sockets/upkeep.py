"""The regular work of a bound endpoint beside its messages: it sends again, and checks its connections."""

from __future__ import annotations

import errno
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import zmq

from dps.process.telemetry import log
from dps.transport.endpoint import Buffer
from dps.transport.sockets.connections import LOOK_S
from dps.transport.sockets.frames import Loans, finish
from dps.transport.sockets.listener import Listener
from dps.transport.sockets.wakeups import Poller, Signals

REST_S = 0.02
"""How long the comings and goings of connections are left alone after some were seen."""


class Upkeep:
    """The regular work of one endpoint."""

    def __init__(self, listener: Listener, loans: Loans, poller: Poller, signals: Signals) -> None:
        self.connections = listener.connections
        self.backlog: Backlog | None = None
        """Made when it is needed."""
        self.due_at = self._check_at = math.inf if listener.inproc else 0.0
        """When `run_due` is due, on the clock of time.monotonic."""
        self._loans, self._listener, self._poller, self._signals = loans, listener, poller, signals
        self._watched = False

    def watch_listener(self) -> None:
        """Begin to read the listener and its monitor."""
        self._poller.register(self._listener.socket)
        self._watch_monitor()

    def unwatch_listener(self) -> None:
        """Read neither, because the listener is about to be closed."""
        self._poller.unregister(self._listener.socket)
        if self._watched:
            self._signals.unwatch(self._listener.monitor)
        self._watched = False

    def _watch_monitor(self) -> None:
        self._watched = True
        self._signals.watch(self._listener.monitor, self._read_monitor)

    def _read_monitor(self) -> None:
        """Connections came or went. Further ones do not wake this thread for REST_S: many may come in vain."""
        if self.connections.read_monitor() and self._watched:
            self._signals.unwatch(self._listener.monitor)
            self._watched = False
            self.due_at = min(self.due_at, time.monotonic() + REST_S)

    def run_due(self, now: float) -> None:
        """Do what is due."""
        if not self._watched:
            self._watch_monitor()
        socket, backlog = self._listener.socket, self.backlog
        self._poller.used(socket)
        if backlog is not None:
            backlog.send_waiting(socket)
        if now >= self._check_at:
            self._check_at = now + LOOK_S
            self.connections.end_stalled(bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN), self._poller.rounds)
        self.due_at = self._check_at if self._watched else min(self._check_at, now + REST_S)
        if backlog is not None and backlog.waiting:
            self.due_at = min(self.due_at, now + backlog.retry_s)

    def send(
        self, route: bytes, header: bytes, frames: Sequence[Buffer], large: list[bool], done: Callable[[], None] | None
    ) -> None:
        """Hand a message over for the peer at a route; if it has no room, keep it."""
        socket, backlog, failed = self._listener.socket, self.backlog, errno.EAGAIN
        self._poller.used(socket)
        if backlog is None or route not in backlog.waiting:
            failed = self._loans.send_message(socket, (route, header), frames, large, done)
        if failed == errno.EAGAIN:
            self._open_backlog().queue_message(route, header, frames, large, done)
        elif failed and done is not None:
            finish(done)

    def _open_backlog(self) -> Backlog:
        """What keeps messages, which are tried again soon."""
        if self.backlog is None:
            self.backlog = Backlog(self._loans)
        self.due_at = 0.0
        return self.backlog

    def close(self) -> None:
        if self.backlog is not None:
            self.backlog.close()


MESSAGES, NBYTES = 65536, 64 << 20
"""The most messages that wait for one peer, and the most copied bytes of all that wait. Large frames are not copied."""
FIRST_S, LAST_S = 0.002, 0.064
"""When they are tried again, s: libzmq does not tell when the queue of one peer has room."""


class _Letter(NamedTuple):
    header: bytes
    frames: Sequence[Buffer]
    large: list[bool]
    done: Callable[[], None] | None
    nbytes: int


class Backlog:
    """The messages of one listener that wait for room in the queues of their peers. Messages beyond the bounds are
    dropped, as any message may be; senders ask again."""

    def __init__(self, loans: Loans) -> None:
        self._loans = loans
        self.waiting: dict[bytes, deque[_Letter]] = {}
        """The waiting messages, by route. A message for a route that is here must be `queue_message`, so that the order
        stays."""
        self.dropped = 0
        self._nbytes = 0
        self.retry_s = FIRST_S
        """How long to wait before `send_waiting`."""

    def queue_message(
        self, route: bytes, header: bytes, frames: Sequence[Buffer], large: list[bool], done: Callable[[], None] | None
    ) -> None:
        """Keep a message whose peer has no room. Small frames are copied."""
        kept = [frame if big else memoryview(frame).tobytes() for frame, big in zip(frames, large, strict=True)]
        nbytes = len(header) + sum(len(frame) for frame, big in zip(kept, large, strict=True) if not big)
        if done is not None and not any(large):
            finish(done)
            done = None
        waiting = self.waiting.setdefault(route, deque())
        if len(waiting) < MESSAGES and self._nbytes + nbytes <= NBYTES:
            waiting.append(_Letter(header, kept, large, done, nbytes))
            self._nbytes += nbytes
            return
        if not self.dropped:
            log.warning("a peer does not read its answers: they are dropped from now on; further ones are not logged")
        self.dropped += 1
        if done is not None:
            finish(done)

    def send_waiting(self, socket: zmq.Socket[bytes]) -> None:
        """Send what can be sent by now."""
        before = self._nbytes, len(self.waiting)
        for route, waiting in list(self.waiting.items()):
            self._send(socket, route, waiting)
            if not waiting:
                del self.waiting[route]
        moved = before != (self._nbytes, len(self.waiting))
        self.retry_s = FIRST_S if moved else min(2 * self.retry_s, LAST_S)

    def _send(self, socket: zmq.Socket[bytes], route: bytes, waiting: deque[_Letter]) -> None:
        while waiting:
            header, frames, large, done, nbytes = waiting[0]
            failed = self._loans.send_message(socket, (route, header), frames, large, done)
            if failed == errno.EAGAIN:
                return
            waiting.popleft()
            self._nbytes -= nbytes
            if failed and done is not None:
                finish(done)

    def close(self) -> None:
        """Nothing more is sent."""
        for letter in (letter for waiting in self.waiting.values() for letter in waiting):
            if letter.done is not None:
                finish(letter.done)
        self.waiting.clear()
