"""Writes the files of a run that only its keeper writes: states, a heartbeat, logs, and what its tasks use."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dps.launch.output import Print
from dps.launch.runs import folder
from dps.launch.runs.identity import identity
from dps.launch.runs.logs import Log
from dps.launch.runs.times import utc
from dps.own_files import opener
from dps.transport.clock import wall

RESERVE = "reserve"
ROOM, ROOM_OF_TASK = 1 << 16, 1 << 12
"""Bytes that are kept for the last states of a run: at all, and for each task."""


def reserve(path: str, tasks: int) -> None:
    """Take room on the disk of a run for its last states, so that a full disk does not make a run that has ended read
    as lost. Raises OSError."""
    with open(os.path.join(path, RESERVE), "wb", opener=opener) as file:
        file.write(bytes(ROOM + ROOM_OF_TASK * tasks))


class Writing:
    """The files of one run. A full disk does not end the run, and is told once. `show` prints lines of tasks, if
    anybody looks."""

    def __init__(self, path: str, show: Print | None) -> None:
        self._path, self._show = path, show
        self._logs: dict[str, Log] = {}
        self._locked = threading.Lock()
        self._trouble = ""
        self._identity = identity()

    def state(self, values: Mapping[str, Any]) -> None:
        """Write the states."""
        self._try(lambda: folder.write(os.path.join(self._path, "state.json"), {**values, "keeper": self._identity}))

    def last_state(self, values: Mapping[str, Any]) -> None:
        """End the logs, and write the last states. On a full disk the room that was kept for them is given back at this
        moment, and not before: whatever still wrote would take it."""
        file = os.path.join(self._path, "state.json")
        for log in self._logs.values():
            self._try(log.close)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._path, RESERVE))
        try:
            folder.write(file, {**values, "keeper": self._identity})
        except OSError as error:
            if self._show is not None:
                self._show("dps", f"{file} cannot be written: {error.strerror}; the run is over and will read LOST")

    def beat(self) -> None:
        """Write a sign of life."""
        self._try(lambda: folder.replace(os.path.join(self._path, "heartbeat"), utc(wall()) + "\n"))

    def used(self, values: Mapping[str, Any]) -> None:
        """Write what the tasks use."""
        self._try(lambda: folder.write(os.path.join(self._path, "usage.json"), values))

    def line(self, name: str, text: str) -> None:
        """Write a line of a task to its log, and print it."""
        with self._locked:
            self._try(lambda: self._log(name).write(wall(), text))
        if self._show is not None:
            self._show(name, text)

    def _log(self, name: str) -> Log:
        if name not in self._logs:
            self._logs[name] = Log(os.path.join(self._path, "logs"), name)
        return self._logs[name]

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._trouble and self._show is not None:
                self._show("dps", f"{self._path} cannot be written: {error.strerror}; the run goes on")
            self._trouble = str(error)
