"""Messages for peers whose queue in libzmq is full: they wait here, in order and within bounds, and are tried again."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import zmq

from dps.telemetry import log
from dps.transport.endpoint import Buffer
from dps.transport.outgoing import Loans, finish

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
        """The waiting messages, by route. A message for a route that is here must be `put`, so that the order stays."""
        self.dropped = 0
        self._nbytes = 0
        self.patience_s = FIRST_S
        """How long to wait before `retry`."""

    def put(
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

    def retry(self, socket: zmq.Socket[bytes]) -> None:
        """Send what can be sent by now."""
        before = self._nbytes, len(self.waiting)
        for route, waiting in list(self.waiting.items()):
            self._send(socket, route, waiting)
            if not waiting:
                del self.waiting[route]
        moved = before != (self._nbytes, len(self.waiting))
        self.patience_s = FIRST_S if moved else min(2 * self.patience_s, LAST_S)

    def _send(self, socket: zmq.Socket[bytes], route: bytes, waiting: deque[_Letter]) -> None:
        while waiting:
            header, frames, large, done, nbytes = waiting[0]
            failed = self._loans.send(socket, (route, header), frames, large, done)
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
