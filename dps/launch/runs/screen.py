"""Redraws a table on a terminal: with rich where it is installed (dps[monitor]), else as text."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
from collections.abc import Sequence
from typing import Any, Protocol

from dps.launch.runs import table
from dps.launch.runs.states import FAILED, KILLED, LOST, RUNNING, SUCCEEDED

CLEAR = "\x1b[H\x1b[2J"
COLOURS = {RUNNING: "green", SUCCEEDED: "cyan", FAILED: "red", LOST: "red", KILLED: "yellow"}


class Screen(Protocol):
    """Shows one table at a time."""

    def show(self, head: str, columns: Sequence[str], rows: Sequence[table.Row]) -> None:
        """Replace what is shown."""

    def close(self) -> None:
        """Leave the last table."""


class Plain:
    """Text, on a terminal that is cleared each time."""

    def show(self, head: str, columns: Sequence[str], rows: Sequence[table.Row]) -> None:
        print(f"{CLEAR}{head}\n{table.text(columns, rows)}", flush=True)

    def close(self) -> None:
        pass


class Rich:
    """With colours, and drawn in place, so that nothing flickers."""

    def __init__(self) -> None:
        live = importlib.import_module("rich.live")
        self._live: Any = live.Live(auto_refresh=False, vertical_overflow="visible")
        self._live.start()

    def show(self, head: str, columns: Sequence[str], rows: Sequence[table.Row]) -> None:
        """Replace what is shown. Columns that the terminal has no room for are left out, from the right."""
        heads, *lines = table.cells(fitting(columns, rows, self._live.console.width), rows)
        text = importlib.import_module("rich.text").Text
        made = importlib.import_module("rich.table").Table(box=None, pad_edge=False, title_justify="left", title=head)
        for column in heads:
            made.add_column(column, no_wrap=True)
        for cells in lines:
            made.add_row(*(text(cell, style=COLOURS.get(cell, "")) for cell in cells))
        self._live.update(made, refresh=True)

    def close(self) -> None:
        self._live.stop()


def fitting(columns: Sequence[str], rows: Sequence[table.Row], width: int) -> Sequence[str]:
    """The first columns, as many as have room beside each other; at least one."""
    ends = itertools.accumulate(wide + len(table.GAP) for wide in table.widths(table.cells(columns, rows)))
    return columns[: max(1, sum(end - len(table.GAP) <= width for end in ends))]


def screen() -> Screen:
    """The best there is for this terminal."""
    draws = os.environ.get("TERM") != "dumb" and importlib.util.find_spec("rich") is not None
    return Rich() if draws else Plain()
