"""Hands messages to libzmq without copying, and tracks when their buffers may be reused."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Container, Sequence

import zmq

from dps.process.telemetry import log
from dps.transport.endpoint import Buffer, Delivery, Route

ZERO_COPY_NBYTES = 64 * 1024
"""Frames from this size on are not copied (below it, a copy is cheaper than tracking when the buffer is free)."""

MAX_FRAME_NBYTES = 1 << 30
"""Longer frames are refused on both sides. Runs of variables are sent in pieces of 1 MiB, so this leaves room for
whole arrays in unusual messages. It bounds the memory that libzmq reserves for a forged length (the memory is not used
until bytes really arrive)."""

MAX_FRAMES = 4096
"""The most array frames in one message. Even the largest models send one run per shard, not a frame per variable."""

CUT = bytes.fromhex("c4c1a5e0d05b4f7793f2a86a0b1e97d3")
"""The last frame of a message whose sending Ctrl-C interrupted. libzmq cannot withdraw the first frames, so the
receiver drops the message."""

_MORE = zmq.NOBLOCK | zmq.SNDMORE


def large_frames(frames: Sequence[Buffer]) -> list[bool]:
    """Which frames are sent without a copy. Raises ValueError for frames that cannot be sent."""
    if len(frames) > MAX_FRAMES:
        raise ValueError(f"a message of {len(frames)} frames, at most {MAX_FRAMES} are possible; join some of them")
    large = []
    for frame in frames:
        view = memoryview(frame)
        if not view.c_contiguous:
            raise ValueError(
                f"a frame of shape {view.shape} is not C-contiguous; send numpy.ascontiguousarray(array) instead"
            )
        if view.nbytes > MAX_FRAME_NBYTES:
            raise ValueError(f"a frame of {view.nbytes} bytes, at most {MAX_FRAME_NBYTES} are possible; send pieces")
        large.append(view.nbytes >= ZERO_COPY_NBYTES)
    return large


def _transfer(
    socket: zmq.Socket[bytes], head: Sequence[bytes], frames: Sequence[Buffer], large: list[bool], track: bool
) -> list[zmq.MessageTracker] | int:
    """Give one message to libzmq; returns the trackers of its large frames, or why nobody takes it, as an errno.

    If the peer disconnects in the middle, libzmq still needs the other frames, and drops them.
    """
    left = len(head) + len(frames)
    first = True
    for part in head:
        left -= 1
        try:
            socket.send(part, _MORE if left else zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
                raise
            if first:
                return errno.EAGAIN if isinstance(error, zmq.Again) else errno.EHOSTUNREACH
        first = False
    trackers = []
    for frame, is_large in zip(frames, large, strict=True):
        left -= 1
        flags = _MORE if left else zmq.NOBLOCK
        try:
            if not is_large:
                socket.send(frame, flags)
            elif track:
                trackers.append(socket.send(frame, flags, copy=False, track=True))
            else:
                socket.send(frame, flags, copy=False)
        except zmq.Again:
            continue
    return trackers


def finish(done: Callable[[], None]) -> None:
    """Call a sender's `done`. If it raises, log the error and continue."""
    try:
        done()
    except Exception:
        log.exception("the callback of a message that was sent failed")


def _cut(socket: zmq.Socket[bytes]) -> None:
    """End a message that may be incomplete. If none is, this sends a message with only this frame, or nothing."""
    try:
        socket.send(CUT, zmq.NOBLOCK)
    except zmq.ZMQError:
        pass


class Loans:
    """Buffers that libzmq is still reading, with the callbacks to call when it has finished."""

    SCAN = 8
    _FIRST_RECHECK_S = 0.001
    _LAST_RECHECK_S = 0.064

    def __init__(self) -> None:
        self.open: deque[tuple[zmq.MessageTracker, Callable[[], None]]] = deque()
        self._unknown: list[Callable[[], None]] = []  # interrupted sends: what libzmq still reads is unknown
        self.recheck_s = self._FIRST_RECHECK_S
        """How long a wait may last before the loans are checked again; grows while no buffer is returned."""

    def send_message(
        self,
        socket: zmq.Socket[bytes],
        head: Sequence[bytes],
        frames: Sequence[Buffer],
        large: list[bool],
        done: Callable[[], None] | None,
    ) -> int:
        """Hand one message over; 0, or why that cannot be: EAGAIN if the queue of the peer is full, EHOSTUNREACH if it
        is gone. Then the caller must call `done`."""
        try:
            trackers = _transfer(socket, head, frames, large, done is not None)
        except BaseException:
            _cut(socket)
            if done is not None:
                self._unknown.append(done)
            raise
        if isinstance(trackers, int):
            return trackers
        if done is None:
            return 0
        if trackers:
            self.open.append((zmq.MessageTracker(*trackers), done))
            self.recheck_s = self._FIRST_RECHECK_S
        else:
            finish(done)
        return 0

    def return_buffers(self) -> None:
        """Call the callbacks that are due among the oldest few. Others move to the end, so that none hides another."""
        returned = False
        for _ in range(min(self.SCAN, len(self.open))):
            loan = self.open.popleft()
            if loan[0].done:
                returned = True
                finish(loan[1])
            else:
                self.open.append(loan)
        self.recheck_s = self._FIRST_RECHECK_S if returned else min(2 * self.recheck_s, self._LAST_RECHECK_S)

    def close(self, wait_s: float) -> None:
        """Wait up to `wait_s` seconds for all buffers, then call every remaining callback."""
        deadline = time.monotonic() + wait_s
        while self.open:
            tracker, done = self.open.popleft()
            try:
                tracker.wait(timeout=max(0.0, deadline - time.monotonic()))
            except zmq.NotDone:
                pass
            finish(done)
        while self._unknown:
            finish(self._unknown.pop())


COPIED_NBYTES = 16 * 1024
"""Received frames below this size are copied, because libzmq leaves them unaligned in a buffer that many frames share.
Longer frames have their own memory, at a multiple of 8 bytes."""

AT_ONCE = 16
"""The most messages that are dropped before timers and other sockets get their turn."""


class Malformed(Exception):
    """A message without a header, with too many frames, or incomplete because its sender was interrupted. It has been
    removed from the socket."""

    def __init__(self, route: Route, source: zmq.Frame) -> None:
        super().__init__(route)
        self.route, self.source = route, source


def read_message(
    socket: zmq.Socket[bytes], address: str | None, inproc: bool, ended: Container[Route] = ()
) -> Delivery | None:
    """One message, or None if there is none. `address` is the node at the other end, None for a ROUTER.

    On inproc a frame is the sender's own memory, so all frames are copied, because they must belong to the receiver.
    Messages of `ended` routes are dropped.
    """
    try:
        route: Route = socket.recv(zmq.NOBLOCK) if address is None else address
        left = AT_ONCE
        while route in ended:
            while socket.recv(zmq.NOBLOCK, copy=False).more:
                pass
            left -= 1
            if not left:
                return None
            route = socket.recv(zmq.NOBLOCK)
        head = socket.recv(zmq.NOBLOCK, copy=False)
        header, more = head.bytes, head.more
        frames: list[memoryview] = []
        while more and len(frames) < MAX_FRAMES:
            frame = socket.recv(zmq.NOBLOCK, copy=False)
            more = frame.more
            copied = inproc or len(frame) < COPIED_NBYTES
            frames.append(memoryview(frame.bytes) if copied else frame.buffer)
    except zmq.Again:
        return None
    except BaseException:  # Ctrl-C half-way
        _skip(socket)
        raise
    if more:
        _skip(socket)
        raise Malformed(route, head)
    if not header or (frames[-1] if frames else header) == CUT:
        raise Malformed(route, head)
    return Delivery(route, header, frames, head if address is None else None)


def _skip(socket: zmq.Socket[bytes]) -> None:
    """Drop the rest of a message of which a part was received."""
    while socket.get(zmq.RCVMORE):
        socket.recv(zmq.NOBLOCK, copy=False)
