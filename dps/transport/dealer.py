"""An endpoint's connection to one node: a DEALER socket, its monitor, and messages that wait for the connection."""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from dps.record import record
from dps.transport.address import is_loopback, parse
from dps.transport.endpoint import Buffer
from dps.transport.outgoing import MAX_FRAME_NBYTES, Loans, finish

WAITING_MESSAGES = 1024
WAITING_NBYTES = 64 << 20
"""Bounds on the messages that wait for a node which is not connected; beyond either the oldest are dropped."""

SILENCE_S = 5.0
"""A connection ends after this much silence of the peer. Heartbeats are sent five times as often."""

BUFFERED, BUFFERED_HERE = 1 << 20, 1 << 18
"""Kernel buffer bytes of a connection, each way, and of one within this machine. There latency is low, so a small
buffer suffices, and its bytes are still in the cache when they are read."""

_UP = int(zmq.Event.HANDSHAKE_SUCCEEDED)
_DOWN = int(zmq.Event.DISCONNECTED)


@record
class _Waiting:
    header: bytes
    frames: Sequence[Buffer]
    large: list[bool]
    done: Callable[[], None] | None
    nbytes: int


def new_identity() -> bytes:
    """16 random bytes that name one endpoint to its peers. libzmq reserves names with a leading zero."""
    return bytes([1 + os.urandom(1)[0] % 255]) + os.urandom(15)


def set_stream_options(socket: zmq.Socket[bytes], url: str, silence_s: float) -> None:
    """Set options that ROUTER and DEALER sockets share: no limit on counts, a limit on sizes, heartbeats, buffers."""
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.MAXMSGSIZE, MAX_FRAME_NBYTES)
    if url.startswith("inproc://"):
        return
    socket.set(zmq.HANDSHAKE_IVL, 5000)
    silence_ms = round(1000 * silence_s)
    socket.set(zmq.HEARTBEAT_IVL, max(1, silence_ms // 5))
    socket.set(zmq.HEARTBEAT_TIMEOUT, silence_ms)
    socket.set(zmq.HEARTBEAT_TTL, silence_ms)
    if url.startswith("tcp://"):
        nbytes = BUFFERED_HERE if is_loopback(parse(url).host) else BUFFERED
        socket.set(zmq.SNDBUF, nbytes)
        socket.set(zmq.RCVBUF, nbytes)
        if url.startswith("tcp://["):
            socket.set(zmq.IPV6, 1)


class Dealer:
    """One DEALER. Messages go to libzmq only while the peer is connected (`up`); else its queues would grow unseen."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, url: str, identity: bytes, silence_s: float
    ) -> None:
        self.address = address
        self.url = url
        self.inproc = url.startswith("inproc://")
        self.up = False
        self._was_up = False
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None
        self._context = context
        self._identity, self._silence_s = identity, silence_s
        self._waiting: deque[_Waiting] = deque()
        self._waiting_nbytes = 0

    def open(self) -> zmq.Socket[bytes]:
        """Make the socket and let it connect; with `inproc://` only once the name is bound."""
        self.socket = socket = self._context.socket(zmq.DEALER)
        set_stream_options(socket, self.url, self._silence_s)
        socket.set(zmq.ROUTING_ID, self._identity)
        # Not ZMQ_IMMEDIATE: with it libzmq 4.3.5 throws unread messages away when the peer goes, and aborts the
        # process (fq.cpp, "!_more") when that comes between two frames that are being received.
        if not self.inproc:
            socket.set(zmq.RECONNECT_IVL, 50)
            socket.set(zmq.RECONNECT_IVL_MAX, 1000)
            socket.set(zmq.CONNECT_TIMEOUT, 5000)
            self.monitor = self._watch(socket)
        socket.connect(self.url)
        return socket

    def _watch(self, socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        where = f"inproc://monitor-{os.urandom(16).hex()}"
        socket.monitor(where, _UP | _DOWN)
        monitor = self._context.socket(zmq.PAIR)
        monitor.set(zmq.LINGER, 0)
        monitor.set(zmq.RCVHWM, 0)  # a full queue here would block libzmq's thread
        monitor.connect(where)
        return monitor

    def changes(self) -> list[bool]:
        """The monitor's events since the last call: True for up, False for down, alternating."""
        found: list[bool] = []
        state = self.up
        while self.monitor is not None:
            try:
                event = self.monitor.recv_multipart(zmq.NOBLOCK)[0]
            except zmq.Again:
                break
            up = struct.unpack_from("=H", event)[0] == _UP
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
            self._keep(header, frames, large, done)
            return
        if not loans.send(self.socket, (header,), frames, large, done) and done is not None:
            finish(done)

    def _keep(
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

    def rise(self, loans: Loans) -> None:
        """The peer is connected: send the messages that waited."""
        self.up = self._was_up = True
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
