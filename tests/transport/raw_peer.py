"""A peer of a listener that speaks ZMTP by hand: it sends messages in part, and reads nothing."""

from __future__ import annotations

import socket

PATIENCE_S = 30.0
GREETING_NBYTES = 64


def connected(address: str) -> socket.socket:
    """A connection on which the handshake of ZMTP without keys is done."""
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)), PATIENCE_S)
    made.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
    made.sendall(bytes([4, len(ready)]) + ready)
    left = GREETING_NBYTES + 1
    while left > 0:  # a message that comes before the listener has sent its READY is an error
        left -= len(made.recv(left)) or left
    return made


def frame(body: bytes, more: bool = False) -> bytes:
    """One frame of a message."""
    return bytes([2 + more]) + len(body).to_bytes(8, "big") + body
