"""Checks and encodes arguments and results that travel between processes: plain values and arrays, never code."""

from __future__ import annotations

import os
import struct
from typing import Any

import msgpack
import numpy as np

from dps.transport.dtypes import dtype_of, is_float, wire_name

ARRAY, TUPLE = 1, 2


def pack(value: Any) -> bytes:
    """Encode None, bool, int, float, str, bytes, list, tuple, dict and numpy values; TypeError names other types."""
    packed: bytes = msgpack.packb(value, default=_plain, strict_types=True)
    return packed


def unpack(data: bytes) -> Any:
    """Decode a value; the caller owns its arrays."""
    return msgpack.unpackb(data, ext_hook=_back, strict_map_key=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and (value.dtype.kind in "fiub" or is_float(value.dtype)):
        header = msgpack.packb((wire_name(value.dtype), list(value.shape)))
        return msgpack.ExtType(ARRAY, struct.pack("<I", len(header)) + header + np.ascontiguousarray(value).tobytes())
    if isinstance(value, tuple):
        return msgpack.ExtType(TUPLE, pack(list(value)))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return dict(value)
    raise TypeError(
        f"a {type(value).__name__} cannot travel between processes; wanted numbers, text, bytes, lists, tuples, dicts "
        "and numpy arrays"
    )


def _back(kind: int, data: bytes) -> Any:
    if kind == ARRAY:
        (n,) = struct.unpack_from("<I", data)
        dtype, shape = msgpack.unpackb(data[4 : 4 + n])
        return np.frombuffer(data[4 + n :], dtype_of(dtype)).reshape(shape).copy()
    if kind == TUPLE:
        return tuple(unpack(data))
    return msgpack.ExtType(kind, data)


def send(fd: int, value: Any) -> None:
    """Write one value to a pipe. Blocks while the pipe is full."""
    data = pack(value)
    view = memoryview(struct.pack("<Q", len(data)) + data)
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int) -> Any:
    """Read one value from a pipe. Raises EOFError if the other end is closed. Blocks."""
    (n,) = struct.unpack("<Q", _read(fd, 8))
    return unpack(_read(fd, n))


def _read(fd: int, n: int) -> bytes:
    parts = bytearray()
    while len(parts) < n:
        data = os.read(fd, min(n - len(parts), 1 << 20))
        if not data:
            raise EOFError("the other end is closed")
        parts += data
    return bytes(parts)
