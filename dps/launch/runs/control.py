"""Ends a run from outside: an order to its keeper, and the keeper's own end if it does not react."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from dps.launch.runs import folder
from dps.launch.runs.identity import is_alive
from dps.launch.runs.states import LOST
from dps.launch.runs.times import seconds, utc
from dps.launch.runs.view import View, heartbeat, read_run
from dps.transport.clock import now, pause, wall

LOOK_S = 0.1
LEFT_S = 10.0
"""How long before the deadline a keeper of this machine is ended by force. Its tasks end with it."""


def ask_to_end(path: str, grace_s: float) -> None:
    """Order the keeper of a run to end it in order, and by force after a grace. A run that is over is left alone."""
    if read_run(path, wall()).is_over:
        return
    name = f"kill-{os.uname().nodename}-{os.getpid()}.json"
    folder.write(os.path.join(path, "orders", name), {"order": "kill", "grace_s": grace_s})


def wait_for_end(path: str, deadline: float, force: bool = False) -> View:
    """Wait until a run is over; returns it as it is then, or at the deadline on `now`. `force`: end a keeper of this
    machine that does not react, some seconds before the deadline. Blocks."""
    view = read_run(path, wall())
    while not view.is_over and now() < deadline:
        if force and now() >= deadline - LEFT_S:
            _end_keeper(view)
        pause(LOOK_S)
        view = read_run(path, wall())
    return view


def _end_keeper(view: View) -> None:
    """SIGKILL the keeper of a run, if it is a process of this machine."""
    keeper = view.values.get("keeper")
    if keeper is not None and is_alive(keeper):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(keeper["pid"]), signal.SIGKILL)


SILENT_S = 3600.0
"""A run whose keeper on another machine is lost is removed only if it was silent for so long: the machine, or a file
system, may come back."""


def choose_runs(root: str, older_than_s: float | None, keep: int, at: float) -> list[View]:
    """The runs to remove: those that ended longer ago, without the newest `keep` of all that are over. A run goes on
    from another one's OUTPUT_DIR (--resume): that one stays as long as the other is there."""
    views = [read_run(os.path.join(root, str(number)), at) for number in folder.readable(root)]
    over = [view for view in views if _is_over(view)]
    old = [view for view in over[: max(0, len(over) - keep)] if at - ended_at(view) > (older_than_s or 0.0)]
    while True:
        going = {view.id for view in old}
        outputs = [str(view.asked.get("output") or "") for view in views if view.id not in going]
        left = [view for view in old if not any(_holds(view.path, output) for output in outputs)]
        if len(left) == len(old):
            return left
        old = left


def _is_over(view: View) -> bool:
    """Whether nothing of a run goes on, as far as is seen from here."""
    keeper = view.values.get("keeper")
    alive = False if keeper is None else is_alive(keeper)
    if not view.is_over or alive:
        return False
    return alive is not None or view.state != LOST or (view.silent_s or 0.0) > SILENT_S


def _holds(path: str, output: str) -> bool:
    return os.path.abspath(output).startswith(os.path.join(path, ""))


def ended_at(view: View) -> float:
    """The time when a run ended, in seconds since 1970; for a lost run, its last heartbeat."""
    if view.state != LOST and view.values["since"]:
        return seconds(view.values["since"])
    beat = heartbeat(view.path)
    return os.path.getmtime(view.path) if beat is None else beat


def nbytes(path: str) -> int:
    """Bytes of all files below a folder."""
    found = 0
    for where, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                found += os.lstat(os.path.join(where, name)).st_size
    return found


def size_text(nbytes: int) -> str:
    """A number of bytes for people: "12 kB", "3.4 MB", "1,200.0 MB"."""
    return f"{nbytes / 1e3:.0f} kB" if nbytes < 1e6 else f"{nbytes / 1e6:,.1f} MB"


def remove_runs(views: Sequence[View], remove: bool) -> Iterator[dict[str, Any]]:
    """A row for each run, once it is removed. A folder that cannot be removed raises OSError, and what could be is
    gone."""
    for view in views:
        row = {"id": view.id, "name": view.asked.get("name"), "state": view.state, "ended": utc(ended_at(view))}
        row["nbytes"] = nbytes(view.path)
        if remove:
            _remove(view.path)
        yield row


def _remove(path: str) -> None:
    """Remove the folder of a run. It gets another name first, so that nobody sees half of a run."""
    root, run = os.path.split(path)
    if int(run) > folder.last(root):
        folder.replace(os.path.join(root, folder.LAST), f"{run}\n")
    going = os.path.join(root, f".{run}.removed")
    with contextlib.suppress(FileNotFoundError):  # somebody else removes it
        os.rename(path, going)
        shutil.rmtree(going)


def remove_leftovers(root: str) -> None:
    """Remove what an earlier call has left."""
    for name in os.listdir(root) if os.path.isdir(root) else ():
        if name.startswith(".") and name.endswith(".removed"):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
