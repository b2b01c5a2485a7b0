"""The program of a LocalCluster's worker process: runs a function by its path and returns its result through a pipe."""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from dps.errors import ConfigError, DpsError
from dps.launch.clusters.run import Failure, failure_of
from dps.process import endings, telemetry
from dps.process.functions import load, show_sources
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


def main() -> None:
    """Read the order from the pipe that DPS_RUN_FDS names, run it as this task, report progress and the result.

    A failure is reported and not printed, because the process with the cluster prints it, once for all workers.
    """
    orders, reports = map(int, os.environ["DPS_RUN_FDS"].split(","))
    order = receive(orders)
    os.close(orders)
    sending = threading.Lock()  # a user's threads may push, too

    def report(what: dict[str, Any]) -> None:
        with sending:
            send(reports, what)

    def pushed(row: dict[str, Any]) -> None:
        report({"progress": row})

    def opened(session: dict[str, Any]) -> None:
        report({"opened": session})

    telemetry.listen(pushed, opened)
    sys.path[:] = [*order["path"], *(p for p in sys.path if p not in order["path"])]
    try:
        report({"result": _run(order)})
    except BaseException as error:
        failure = Failure(str(error)) if isinstance(error, _NotLoaded) else failure_of(error)
        report({"error": failure.error, "trace": failure.trace, "place": failure.place})
        sys.exit(error.exit_code if isinstance(error, DpsError) else 1)
    finally:
        telemetry.forget(pushed, opened)
        os.close(reports)


class _NotLoaded(ConfigError):
    """The function cannot be loaded. The message is sufficient; a traceback of the import would hide it."""


def _run(order: dict[str, Any]) -> Any:
    from dps.task.server import Server

    function = _function(order)
    with Server.from_env() as server, endings.program():
        return function(server, *order["args"], **order["named"])


def _function(order: dict[str, Any]) -> Callable[..., Any]:
    if order["code"]:
        show_sources(order["sources"])
        return _shipped(order["code"])
    try:
        return load(order["function"])
    except ConfigError as error:
        raise _NotLoaded(str(error)) from None


def _shipped(code: bytes) -> Callable[..., Any]:
    """A notebook's function, from the parent process on this machine through a private pipe (decision 46)."""
    import importlib

    function: Callable[..., Any] = importlib.import_module("cloudpickle").loads(code)
    return function
