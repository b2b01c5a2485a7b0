"""The program of a LocalCluster's worker process: runs a function by its path and returns its result through a pipe."""

from __future__ import annotations

import math
import os
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from dps.calls.failures import Failure, failure_of
from dps.calls.functions import pack_value, unpack_arguments
from dps.errors import ConfigError, DpsError
from dps.process import endings, telemetry
from dps.process.functions import load, show_sources
from dps.transport.dtypes import dtype_of, wire_name
from dps.variables.items import PLAIN, pack, unpack


def as_number(leaf: Any) -> tuple[int, Any] | None:
    """Numbers of numpy's travel as Python's, among the arguments and results of a run."""
    return (PLAIN, leaf.item()) if isinstance(leaf, np.generic) else None


def write_value(fd: int, value: Any) -> None:
    """Write one value to a pipe: its form with the dtypes and shapes of its arrays, then these. Blocks while the pipe
    is full."""
    form, arrays = pack(value, as_number)
    header = msgpack.packb((form, [(wire_name(array.dtype), array.shape) for array in arrays]))
    _write_bytes(fd, struct.pack("<Q", len(header)) + header)
    for array in arrays:
        _write_bytes(fd, array.reshape(-1).view(np.uint8).data)


def _write_bytes(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_value(fd: int) -> Any:
    """Read one value from a pipe; the caller owns its arrays. Raises EOFError if the other end is closed. Blocks."""
    (n,) = struct.unpack("<Q", _read_bytes(fd, 8))
    form, described = msgpack.unpackb(_read_bytes(fd, n))
    arrays = []
    for name, shape in described:
        dtype = dtype_of(name)
        arrays.append(np.frombuffer(_read_bytes(fd, math.prod(shape) * dtype.itemsize), dtype).reshape(shape))
    return unpack(form, arrays)


def _read_bytes(fd: int, n: int) -> bytes:
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
    order = read_value(orders)
    os.close(orders)
    sending = threading.Lock()  # a user's threads may push, too

    def report(what: dict[str, Any]) -> None:
        with sending:
            write_value(reports, what)

    def pushed(row: dict[str, Any]) -> None:
        report({"progress": row})

    def opened(session: dict[str, Any]) -> None:
        report({"opened": session})

    telemetry.listen(pushed, opened)
    sys.path[:] = [*order["path"], *(p for p in sys.path if p not in order["path"])]
    try:
        report({"result": _run_order(order)})
    except BaseException as error:
        failure = Failure(str(error)) if isinstance(error, _NotLoaded) else failure_of(error)
        report({"failure": [failure.error, failure.trace, failure.place]})
        sys.exit(error.exit_code if isinstance(error, DpsError) else 1)
    finally:
        telemetry.forget(pushed, opened)
        os.close(reports)


class _NotLoaded(ConfigError):
    """The function cannot be loaded. The message is sufficient; a traceback of the import would hide it."""


def _run_order(order: dict[str, Any]) -> Any:
    from dps.task.server import Server

    function = _load_function(order)
    args, named = unpack_arguments(order["form"], order["arrays"])
    with Server.from_env() as server, endings.program():
        value = function(server, *args, **named)
    return pack_value(value, order["name"], as_number)


def _load_function(order: dict[str, Any]) -> Callable[..., Any]:
    if order["code"]:
        show_sources(order["sources"])
        return _load_shipped(order["code"])
    try:
        return load(order["function"])
    except ConfigError as error:
        raise _NotLoaded(str(error)) from None


def _load_shipped(code: bytes) -> Callable[..., Any]:
    """A notebook's function, from the parent process on this machine through a private pipe (decision 46)."""
    import importlib

    function: Callable[..., Any] = importlib.import_module("cloudpickle").loads(code)
    return function
