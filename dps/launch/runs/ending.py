"""Ends a run from outside: an order to its keeper, and the keeper's own end if it does not react."""

from __future__ import annotations

import contextlib
import os
import signal

from dps.launch.runs import folder
from dps.launch.runs.identity import lives
from dps.launch.runs.view import View, look
from dps.transport.clock import now, pause, wall

LOOK_S = 0.1
LEFT_S = 10.0
"""How long before the deadline a keeper of this machine is ended by force. Its tasks end with it."""


def ask_to_end(path: str, grace_s: float) -> None:
    """Order the keeper of a run to end it in order, and by force after a grace. A run that is over is left alone."""
    if look(path, wall()).over:
        return
    name = f"kill-{os.uname().nodename}-{os.getpid()}.json"
    folder.write(os.path.join(path, "orders", name), {"order": "kill", "grace_s": grace_s})


def wait_for_end(path: str, deadline: float, force: bool = False) -> View:
    """Wait until a run is over; returns it as it is then, or at the deadline on `now`. `force`: end a keeper of this
    machine that does not react, some seconds before the deadline. Blocks."""
    view = look(path, wall())
    while not view.over and now() < deadline:
        if force and now() >= deadline - LEFT_S:
            _end_keeper(view)
        pause(LOOK_S)
        view = look(path, wall())
    return view


def _end_keeper(view: View) -> None:
    """SIGKILL the keeper of a run, if it is a process of this machine."""
    keeper = view.values.get("keeper")
    if keeper is not None and lives(keeper):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(keeper["pid"]), signal.SIGKILL)
