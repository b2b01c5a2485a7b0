"""What a run's files, its chief and its ps say at one time; `dps status`, `monitor` and `watch` read it with this."""

from __future__ import annotations

from typing import Any

from dps.errors import DpsError
from dps.launch.commands.operating import StatusClient
from dps.launch.runs import request
from dps.launch.runs.keeper import use_keys
from dps.launch.runs.view import View
from dps.process.record import record


@record
class RunReports:
    """One reading of a run. `chief`: its report on itself, {} if the run does not go on or it did not answer; `ps`:
    that of each ps, by its number; `trouble`: why the chief said nothing, for people."""

    view: View
    chief: dict[str, Any]
    ps: dict[str, dict[str, Any]]
    trouble: str = ""


class RunReader:
    """Reads a run again and again, over connections that it keeps. For one thread. Close it.

    `name`: the command that reads, for the logs of the tasks; `answer_s`: how long each answer may take."""

    def __init__(self, name: str, answer_s: float) -> None:
        self._name, self._answer_s = name, answer_s
        self._asking: StatusClient | None = None

    def read(self, view: View) -> RunReports:
        """What chief and ps say now, beside the files that `view` was read from. Blocks for up to some seconds if they
        do not answer."""
        address = "" if view.is_over else view.values["chief"]
        if not address:
            return RunReports(view, {}, {})
        try:
            if self._asking is None:
                use_keys(view.path, request.read_variables(view.path))
                self._asking = StatusClient(address, self._name, self._answer_s)
            chief = self._asking.ask_chief()
            return RunReports(view, chief, self._asking.ask_ps(chief))
        except DpsError as error:
            return RunReports(view, {}, {}, str(error))

    def close(self) -> None:
        if self._asking is not None:
            self._asking.close()
