"""Reads messages from a socket: copies small frames and rejects malformed messages."""

from __future__ import annotations

from collections.abc import Container

import zmq

from dps.transport.endpoint import Delivery, Route
from dps.transport.outgoing import CUT, MAX_FRAMES

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


def take(socket: zmq.Socket[bytes], address: str | None, inproc: bool, ended: Container[Route] = ()) -> Delivery | None:
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
