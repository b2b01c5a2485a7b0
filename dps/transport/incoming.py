"""Reads messages from a socket: copies small frames and rejects malformed messages."""

from __future__ import annotations

import zmq

from dps.transport.endpoint import Delivery
from dps.transport.outgoing import CUT, MAX_FRAMES

COPIED_NBYTES = 16 * 1024
"""Received frames below this size are copied, because libzmq leaves them unaligned in a buffer that many frames share.
Longer frames have their own memory, at a multiple of 8 bytes."""


class Malformed(Exception):
    """A message without a header, with too many frames, or incomplete because its sender was interrupted. It has been
    removed from the socket."""


def take(socket: zmq.Socket[bytes], address: str | None, inproc: bool) -> Delivery | None:
    """One message, or None if there is none. `address` is the node at the other end, None for a ROUTER.

    On inproc a frame is the sender's own memory, so all frames are copied, because they must belong to the receiver.
    """
    try:
        route = socket.recv(zmq.NOBLOCK) if address is None else address
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
        raise Malformed
    if not header or (frames[-1] if frames else header) == CUT:
        raise Malformed
    return Delivery(route, header, frames, head if address is None else None)


def _skip(socket: zmq.Socket[bytes]) -> None:
    """Drop the rest of a message of which a part was received."""
    while socket.get(zmq.RCVMORE):
        socket.recv(zmq.NOBLOCK, copy=False)
