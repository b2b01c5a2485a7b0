"""Writes TensorBoard's event files: scalars, histograms, and the hyperparameters of a run."""

from __future__ import annotations

import importlib
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from dps.checkpoint.storage import Storage
from dps.errors import MissingExtra

SMALLEST, GROWTH = 1e-12, 1.1
"""The upper limit of the first bucket, and how much larger each next one is: as in TensorFlow's histograms."""


class Histogram:
    """How often numbers from 0 up occurred. It keeps counts of buckets, so it stays small however many come."""

    def __init__(self) -> None:
        self.count = 0
        self._least, self._largest = math.inf, 0.0
        self._sum = self._sum_squares = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count a number. One that is not finite, or is negative, is left out: no bucket is for it."""
        if not 0 <= value < math.inf:
            return
        self.count += 1
        self._least, self._largest = min(self._least, value), max(self._largest, value)
        self._sum += value
        self._sum_squares += value * value
        bucket = 0 if value < SMALLEST else 1 + math.floor(math.log(value / SMALLEST, GROWTH))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def to_proto(self) -> Any:
        """TensorBoard's `HistogramProto`. Each bucket ends at its limit and begins at the limit before it, so an empty
        one stands before each occupied bucket whose neighbour below is empty."""
        from tensorboardX.proto.summary_pb2 import HistogramProto

        limits, counts, before = [], [], 0
        for bucket, count in sorted(self._buckets.items()):
            if bucket != before and bucket - 1 != before:
                limits.append(_limit(bucket - 1))
                counts.append(0)
            limits.append(_limit(bucket))
            counts.append(count)
            before = bucket
        return HistogramProto(
            min=self._least, max=self._largest, num=self.count, sum=self._sum, sum_squares=self._sum_squares,
            bucket_limit=limits, bucket=counts,
        )  # fmt: skip


def _limit(bucket: int) -> float:
    return SMALLEST * GROWTH**bucket


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
        """Raises MissingExtra, with the name of the extra, if tensorboardX is missing. Imports it, which may take
        seconds if torch is installed."""
        try:
            importlib.import_module("tensorboardX")
        except ImportError:
            raise MissingExtra(
                "event files need tensorboardX, which is not installed; pip install 'dps[tensorboard]'"
            ) from None

    def write(self, wall_time: float, row: Mapping[str, Any], histograms: Mapping[str, Histogram]) -> None:
        """As SummaryFile.write."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        events = [] if self._begun else [Event(wall_time=wall_time, file_version="brain.Event:2")]
        if "event" in row:
            start = SessionLog(status=SessionLog.START)
            events.append(Event(wall_time=wall_time, step=row["step"], session_log=start))
            values = list(_hparams(wall_time, row["hparams"])) if row.get("hparams") else []
        else:
            values = [
                Summary.Value(tag=tag, simple_value=value)
                for tag, value in row.items()
                if tag != "step" and isinstance(value, int | float) and not isinstance(value, bool)
            ]
            values += [
                Summary.Value(tag=tag, histo=found.to_proto()) for tag, found in histograms.items() if found.count
            ]
        if values:
            events.append(Event(wall_time=wall_time, step=row["step"], summary=Summary(value=values)))
        self._storage.append(self._path, b"".join(map(_record, events)))
        self._begun = True


def _hparams(wall_time: float, hparams: Mapping[str, bool | float | str]) -> Iterator[Any]:
    """The summary with which TensorBoard's hparams plugin learns the hyperparameters of the folder's run."""
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData, SessionStartInfo
    from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

    started = SessionStartInfo(start_time_secs=wall_time)
    for name, value in hparams.items():
        if isinstance(value, str):
            started.hparams[name].string_value = value
        elif isinstance(value, bool):
            started.hparams[name].bool_value = value
        else:
            started.hparams[name].number_value = value
    content = HParamsPluginData(session_start_info=started, version=0).SerializeToString()
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=content)
    yield Summary.Value(tag="_hparams_/session_start_info", metadata=SummaryMetadata(plugin_data=plugin))


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
