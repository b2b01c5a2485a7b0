"""Reads TensorBoard's event files: records of length, checksum, message, checksum."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit (RFC 3720, appendix B.4: polynomial 0x1EDC6F41, reflected)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | (crc & 0x7FFF) << 17) + 0xA282EAD8) % (1 << 32)


def events(path: Path) -> list[Any]:
    """The `Event` messages of a file; AssertionError where a checksum is wrong or bytes are left over."""
    from tensorboardX.proto.event_pb2 import Event

    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        length = struct.unpack_from("<Q", data, at)[0]
        body = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body)
        found.append(Event.FromString(body))
        at += length + 16
    assert at == len(data)
    return found
