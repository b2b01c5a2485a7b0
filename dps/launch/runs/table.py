"""Tables of plain text for people, and the rows that they are made of."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dps.launch.runs.states import FAILED, KILLED, LOST, RUNNING, SUCCEEDED
from dps.launch.runs.times import age, local, seconds
from dps.launch.runs.view import View
from dps.launch.supervision.output import full_name

Row = Mapping[str, Any]

GAP = "  "
"""Between two columns."""


def text(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """A table with a head. Columns are as wide as they need to be; None is shown as "-"."""
    lines = cells(columns, rows)
    wide = widths(lines)
    return "\n".join(
        GAP.join(text.ljust(width) for text, width in zip(line, wide, strict=True)).rstrip() for line in lines
    )


def cells(columns: Sequence[str], rows: Sequence[Row]) -> list[list[str]]:
    """The head and the rows, as texts."""
    return [[column.upper() for column in columns], *([cell(row.get(column)) for column in columns] for row in rows)]


def widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """How wide each column has to be."""
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def cell(value: Any) -> str:
    """A value in a table."""
    return "-" if value is None or value == "" else f"{value:.4g}" if isinstance(value, float) else str(value)


RUN_COLUMNS = ("id", "name", "state", "since", "took", "tasks", "exit code")


def run_row(view: View, at: float) -> dict[str, Any]:
    """A run in a list of runs."""
    living = sum(task["state"] == "RUNNING" for task in view.tasks.values())
    return {
        "id": view.id, "name": view.asked.get("name"), "state": view.state, "since": local(view.values["since"]),
        "took": age(took_s(view, at)), "tasks": f"{living}/{len(view.tasks)}", "exit code": view.values["exit_code"],
    }  # fmt: skip


TASK_COLUMNS = ("task", "state", "since", "host", "pid", "restarts", "exit code")


def task_row(view: View, name: str) -> dict[str, Any]:
    """A task in the list of a run's tasks."""
    task = view.tasks[name]
    return {
        "task": full_name(view.id, name), "state": task["state"], "since": local(task["since"]),
        "host": task.get("host"), "pid": task["pid"], "restarts": task["restarts"],
        "exit code": task["exit_code"],
    }  # fmt: skip


def took_s(view: View, at: float) -> float:
    """How long a run has run, or ran."""
    entered = dict(reversed(view.values.get("history", [])))
    begin = entered.get("PENDING", entered.get("CREATED", ""))
    if not begin:
        return 0.0
    end = seconds(view.values["since"]) if view.state in entered and view.is_over else at
    if view.is_over and view.state not in entered:  # its keeper has gone
        end -= view.silent_s or 0.0
    return end - seconds(begin)


def print_json(values: object) -> None:
    """Print plain values as JSON."""
    import json

    print(json.dumps(values, indent=1))


CLEAR = "\x1b[H\x1b[2J"
COLOURS = {RUNNING: "green", SUCCEEDED: "cyan", FAILED: "red", LOST: "red", KILLED: "yellow"}


class Screen(Protocol):
    """Shows one table at a time."""

    def show(self, head: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Replace what is shown."""

    def close(self) -> None:
        """Leave the last table."""


class Plain:
    """Text, on a terminal that is cleared each time."""

    def show(self, head: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        print(f"{CLEAR}{head}\n{text(columns, rows)}", flush=True)

    def close(self) -> None:
        pass


class Rich:
    """With colours, and drawn in place, so that nothing flickers."""

    def __init__(self) -> None:
        live = importlib.import_module("rich.live")
        self._live: Any = live.Live(auto_refresh=False, vertical_overflow="visible")
        self._live.start()

    def show(self, head: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Replace what is shown. Columns that the terminal has no room for are left out, from the right."""
        heads, *lines = cells(fitting(columns, rows, self._live.console.width), rows)
        text = importlib.import_module("rich.text").Text
        made = importlib.import_module("rich.table").Table(box=None, pad_edge=False, title_justify="left", title=head)
        for column in heads:
            made.add_column(column, no_wrap=True)
        for line in lines:
            made.add_row(*(text(cell, style=COLOURS.get(cell, "")) for cell in line))
        self._live.update(made, refresh=True)

    def close(self) -> None:
        self._live.stop()


def fitting(columns: Sequence[str], rows: Sequence[Row], width: int) -> Sequence[str]:
    """The first columns, as many as have room beside each other; at least one."""
    ends = itertools.accumulate(wide + len(GAP) for wide in widths(cells(columns, rows)))
    return columns[: max(1, sum(end - len(GAP) <= width for end in ends))]


def screen() -> Screen:
    """The best there is for this terminal."""
    draws = os.environ.get("TERM") != "dumb" and importlib.util.find_spec("rich") is not None
    return Rich() if draws else Plain()
