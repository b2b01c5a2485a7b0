"""Writes summary files: JSON lines, and TensorBoard event files."""

from __future__ import annotations

import importlib
import json
import math
import struct
from typing import Any, Protocol

from dps.checkpoint.storage import Storage
from dps.errors import MissingExtra


class SummaryFile(Protocol):
    """A file that only grows. Each write adds a whole row or, after an error, nothing."""

    def write(self, wall_time: float, row: dict[str, Any]) -> None:
        """Add a row. Raises CheckpointError if the disk refuses. Blocks."""


class JsonLines:
    """One JSON object per line. Numbers that JSON cannot represent (NaN, infinities) become null."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path = storage, path

    def write(self, wall_time: float, row: dict[str, Any]) -> None:
        """As SummaryFile.write."""
        strict = {key: None if _not_finite(value) else value for key, value in row.items()}
        line = json.dumps({"wall_time": wall_time, **strict}, ensure_ascii=False, allow_nan=False)
        self._storage.append(self._path, line.encode() + b"\n")


class EventFile:
    """TensorBoard's format: records of length, its checksum, an `Event` message of protobuf, and its checksum.

    Every number of a row becomes a scalar under its name. A row with `event` becomes a session start at its step, so
    TensorBoard discards what it has read of that step and later ones.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self.check_installed()
        self._storage, self._path = storage, path
        self._begun = False

    @staticmethod
    def check_installed() -> None:
        """Raises ConfigError, with the name of the extra, if tensorboardX is missing. Imports it, which may take
        seconds if torch is installed."""
        try:
            importlib.import_module("tensorboardX")
        except ImportError:
            raise MissingExtra(
                "event files need tensorboardX, which is not installed; pip install 'dps[tensorboard]'"
            ) from None

    def write(self, wall_time: float, row: dict[str, Any]) -> None:
        """As SummaryFile.write."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        data = b"" if self._begun else _record(Event(wall_time=wall_time, file_version="brain.Event:2"))
        if "event" in row:
            start = SessionLog(status=SessionLog.START)
            data += _record(Event(wall_time=wall_time, step=row["step"], session_log=start))
        else:
            values = [
                Summary.Value(tag=tag, simple_value=value)
                for tag, value in row.items()
                if tag != "step" and isinstance(value, int | float) and not isinstance(value, bool)
            ]
            data += _record(Event(wall_time=wall_time, step=row["step"], summary=Summary(value=values)))
        self._storage.append(self._path, data)
        self._begun = True


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _record(event: Any) -> bytes:
    """A TFRecord: little-endian length (uint64), its masked CRC-32C, the bytes, their masked CRC-32C."""
    data: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    """CRC-32C, rotated right by 15 bits plus a constant, as readers of TFRecord files expect."""
    from tensorboardX.crc32c import crc32c

    crc = int(crc32c(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
