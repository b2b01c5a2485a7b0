"""The program of a LocalCluster's worker process: runs a function by its path and returns its result through a pipe."""

from __future__ import annotations

import contextlib
import math
import os
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from dps.calls.failures import Failure, failure_of
from dps.calls.functions import pack_value, unpack_arguments
from dps.errors import ConfigError, DpsError
from dps.process import endings, telemetry
from dps.process.functions import load, show_sources
from dps.transport.current import runtime
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


TOGETHER_S = 0.05
"""For so long rows of progress are collected before they are sent."""
MOST_ROWS = 10_000
"""As many rows are sent at once, by the thread that has made the last one."""


class ReportPipe:
    """Sends a worker's reports through a pipe. Rows of progress are sent together: each message wakes the process that
    reads it, and takes the time of half a small push."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rows = fd, deque[tuple[float, dict[str, Any]]]()
        self._sending, self._has_rows = threading.Lock(), threading.Event()
        threading.Thread(target=self._send_rows, name="dps reports progress", daemon=True).start()

    def add_row(self, row: dict[str, Any]) -> None:
        """Send a row of progress soon. Blocks only while the pipe is full and many rows wait."""
        self._rows.append((runtime().now(), row))
        if not self._has_rows.is_set():
            self._has_rows.set()
        if len(self._rows) >= MOST_ROWS:
            self.send()

    def send(self, *reports: dict[str, Any]) -> None:
        """Send all rows, and then these reports. Blocks while the pipe is full."""
        with self._sending:
            if self._fd < 0:  # a thread pushes on although the function has returned
                return
            rows, now = [self._rows.popleft() for _ in range(len(self._rows))], runtime().now()
            if rows:
                write_value(self._fd, {"progress": [row for _, row in rows], "ago_s": [now - at for at, _ in rows]})
            for report in reports:
                write_value(self._fd, report)

    def close(self) -> None:
        """Send all rows, and nothing more from now on. Blocks as `send`."""
        with contextlib.suppress(OSError):  # nobody reads
            self.send()
        with self._sending:
            os.close(self._fd)
            self._fd = -1

    def _send_rows(self) -> None:
        while True:
            self._has_rows.wait()
            runtime().sleep(TOGETHER_S)
            self._has_rows.clear()
            try:
                self.send()
            except OSError:  # nobody reads, or the worker has ended
                return


def main() -> None:
    """Read the order from the pipe that DPS_RUN_FDS names, run it as this task, report progress and the result.

    A failure is reported and not printed, because the process with the cluster prints it, once for all workers.
    """
    orders, reports = map(int, os.environ["DPS_RUN_FDS"].split(","))
    order = read_value(orders)
    os.close(orders)
    told = ReportPipe(reports)

    def opened(session: dict[str, Any]) -> None:
        told.send({"opened": session})

    telemetry.listen(told.add_row, opened)
    sys.path[:] = [*order["path"], *(p for p in sys.path if p not in order["path"])]
    try:
        told.send({"result": _run_order(order)})
    except BaseException as error:
        failure = Failure(str(error)) if isinstance(error, _NotLoaded) else failure_of(error)
        told.send({"failure": [failure.error, failure.trace, failure.place]})
        sys.exit(error.exit_code if isinstance(error, DpsError) else 1)
    finally:
        telemetry.forget(told.add_row, opened)
        told.close()


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
