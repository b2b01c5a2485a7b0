"""What a worker process of a LocalCluster runs: a function by its path, its results sent back through a pipe."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import Any

from dps import telemetry
from dps.launch.functions import load
from dps.launch.values import receive, send


def main() -> None:
    """Read the order from the pipe that DPS_RUN_FDS names, run it as this task, report progress and the result."""
    orders, reports = map(int, os.environ["DPS_RUN_FDS"].split(","))
    order = receive(orders)
    os.close(orders)
    sending = threading.Lock()  # a user's threads may push, too

    def report(what: dict[str, Any]) -> None:
        with sending:
            send(reports, what)

    def progress(row: dict[str, Any]) -> None:
        report({"progress": row})

    telemetry.on_progress.append(progress)
    sys.path[:] = [*order["path"], *(p for p in sys.path if p not in order["path"])]
    try:
        report({"result": _run(order)})
    except BaseException as error:
        report({"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
        raise
    finally:
        if progress in telemetry.on_progress:
            telemetry.on_progress.remove(progress)
        os.close(reports)


def _run(order: dict[str, Any]) -> Any:
    from dps.server import Server

    function = _shipped(order["code"]) if order["code"] else load(order["function"])
    with Server.from_env() as server:
        return function(server, *order["args"])


def _shipped(code: bytes) -> Any:
    """A notebook's function, from the parent process on this machine through a private pipe (design, decision 10)."""
    import importlib

    return importlib.import_module("cloudpickle").loads(code)
