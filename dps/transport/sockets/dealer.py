"""An endpoint's connection to one node: a DEALER socket, its monitor, and messages that wait for the connection."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import zmq

from dps.process.record import record
from dps.transport.endpoint import Buffer
from dps.transport.sockets.frames import Loans, finish
from dps.transport.sockets.options import Sockets

if TYPE_CHECKING:
    from dps.transport.sockets.handshake import Handshake

WAITING_MESSAGES = 1024
WAITING_NBYTES = 64 << 20
"""Bounds on the messages that wait for a node which is not connected; beyond either the oldest are dropped."""

SILENCE_S = 5.0
"""A connection ends after this much silence of the peer. Heartbeats are sent five times as often."""

_UP = int(zmq.Event.HANDSHAKE_SUCCEEDED)
_DOWN = int(zmq.Event.DISCONNECTED)
_FAILED = int(
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH
)


@record
class _Waiting:
    header: bytes
    frames: Sequence[Buffer]
    large: list[bool]
    done: Callable[[], None] | None
    nbytes: int


class Dealer:
    """One DEALER. Messages go to libzmq only while the peer is connected (`up`); else its queues would grow unseen.

    More than 12 attributes: a connection is one thing, and each says something else of it."""

    def __init__(self, sockets: Sockets, address: str, url: str, user: str, greetings: Mapping[str, bytes]) -> None:
        """`user`: whose key the listener has (`Accepted.user`). `greetings`: the header that opens each connection, by
        address."""
        self.address, self.user = address, user
        self._handshake: Handshake | None = None
        self.url = url
        self.inproc = url.startswith("inproc://")
        self.up = False
        self._was_up = False
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None
        self._sockets = sockets
        self._greetings = greetings
        self._waiting: deque[_Waiting] = deque()
        self._waiting_nbytes = 0

    def open(self) -> zmq.Socket[bytes]:
        """Make the socket and let it connect; with `inproc://` only once the name is bound."""
        keys = None if self._sockets.keys is None or self.inproc else self.handshake.choice()
        self.socket = self._sockets.dealer(self.url, keys)
        if not self.inproc:
            self.monitor = self._sockets.monitor(self.socket, _UP | _DOWN | _FAILED)
        self.socket.connect(self.url)
        return self.socket

    @property
    def handshake(self) -> Handshake:
        """The keys that this connection tries, and what became of it. Made when it is needed."""
        if self._handshake is None:
            from dps.transport.sockets.handshake import Handshake  # here: most connections have no keys, and come up

            self._handshake = Handshake(self.address, self.user, self._sockets.keys)
        return self._handshake

    def expect(self, user: str) -> bool:
        """Note whose key the listener has; returns whether to connect again, because another one was expected."""
        if self.user == user or self.up or self.inproc:
            return False
        self.user, self._handshake = user, None
        return True

    def failures(self) -> list[int]:
        """The failed handshakes since the last call, as events of libzmq's monitor."""
        if self._handshake is None or not self._handshake.events:
            return []
        found, self._handshake.events = self._handshake.events, []
        return found

    def changes(self) -> list[bool]:
        """The monitor's events since the last call: True for up, False for down, alternating. Others are `failures`."""
        found: list[bool] = []
        state = self.up
        while self.monitor is not None:
            try:
                event = self.monitor.recv_multipart(zmq.NOBLOCK)[0]
            except zmq.Again:
                break
            number = struct.unpack_from("=H", event)[0]
            if number & _FAILED:
                self.handshake.events.append(number)
                continue
            up = number == _UP
            if up != state:
                found.append(up)
                state = up
        return found

    def send(
        self,
        header: bytes,
        frames: Sequence[Buffer],
        large: list[bool],
        done: Callable[[], None] | None,
        loans: Loans,
    ) -> None:
        """Hand the message to libzmq, or keep it until the peer is connected."""
        if not self.up or self.socket is None:
            self._queue_message(header, frames, large, done)
            return
        if loans.send_message(self.socket, (header,), frames, large, done) and done is not None:
            finish(done)

    def _queue_message(
        self, header: bytes, frames: Sequence[Buffer], large: list[bool], done: Callable[[], None] | None
    ) -> None:
        kept = [frame if big else memoryview(frame).tobytes() for frame, big in zip(frames, large, strict=True)]
        nbytes = len(header) + sum(memoryview(frame).nbytes for frame in kept)
        if done is not None and not any(large):
            finish(done)
            done = None
        self._waiting.append(_Waiting(header, kept, large, done, nbytes))
        self._waiting_nbytes += nbytes
        while len(self._waiting) > WAITING_MESSAGES or (
            self._waiting_nbytes > WAITING_NBYTES and len(self._waiting) > 1
        ):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._waiting.popleft()
        self._waiting_nbytes -= oldest.nbytes
        if oldest.done is not None:
            finish(oldest.done)

    @property
    def expected(self) -> bool:
        """Whether messages wait for a first connection."""
        return bool(self._waiting) and not self._was_up

    def greet(self, loans: Loans) -> None:
        """Introduce this endpoint if the peer is connected."""
        greeting = self._greetings.get(self.address)
        if greeting and self.up and self.socket is not None:
            loans.send_message(self.socket, (greeting,), [], [], None)

    def rise(self, loans: Loans) -> None:
        """The peer is connected: introduce this endpoint, and send the messages that waited."""
        self.up = self._was_up = True
        if self._handshake is not None:
            self._handshake.succeeded()
        self.greet(loans)
        waiting, self._waiting, self._waiting_nbytes = self._waiting, deque(), 0
        for message in waiting:
            self.send(message.header, message.frames, message.large, message.done, loans)

    def fall(self) -> None:
        """The peer is gone: drop the messages that wait."""
        self.up = False
        while self._waiting:
            self._drop_oldest()

    def close(self, linger_s: float = 0.0) -> None:
        """Close the sockets. libzmq goes on sending for `linger_s` seconds; messages that wait here are kept."""
        if self.socket is None:
            return
        if self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close(0)
        self.socket.close(round(1000 * linger_s))
        self.socket = self.monitor = None
