"""The program of a LocalCluster's worker process: runs a function by its path and returns its result through a pipe."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from dps import telemetry
from dps.errors import ConfigError, DpsError
from dps.functions import load, show_sources
from dps.launch.failures import Failure, failure_of
from dps.launch.values import receive, send


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
    from dps.server import Server

    function = _function(order)
    with Server.from_env() as server:
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
