"""The table of several runs at their end: parameters, state, time, and the last value of a metric in their output."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from dps.errors import ConfigError
from dps.launch.runs import table
from dps.launch.runs.logs import Reader
from dps.launch.runs.times import age
from dps.launch.runs.view import look
from dps.transport.clock import wall

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


def parse_metric(text: str) -> tuple[str, bool]:
    """The name of a metric, and whether its largest value comes first: "loss", "accuracy:max"."""
    name, colon, order = text.partition(":")
    if not name or (colon and order not in ("min", "max")):
        raise ConfigError(f"got --metric {text!r}; wanted NAME, or NAME:max to have the largest first")
    return name, order == "max"


def last_value(path: str, name: str) -> float | None:
    """The last number that stands behind a metric's name in the output of a run, as in "loss 0.5" or "loss=0.5"."""
    wanted = re.compile(rf"(?<!\w){re.escape(name)}\s*[:=]?\s*({NUMBER})(?![\w.])")
    found = None
    for entry in Reader(os.path.join(path, "logs")).new():
        for match in wanted.finditer(entry.text):
            found = float(match[1])
    return found


def rows(paths: Sequence[str], metric: str | None) -> list[dict[str, Any]]:
    """A row for each run, sorted by the metric if there is one; runs without a value come last."""
    name, largest_first = parse_metric(metric) if metric else ("", False)
    made = []
    for path in paths:
        view = look(path, wall())
        row: dict[str, Any] = {"id": view.id, **view.asked.get("values", {}), "state": view.state}
        row |= {"exit code": view.values["exit_code"], "took": age(table.took_s(view, wall()))}
        made.append(row | ({name: last_value(path, name)} if name else {}))
    if name:
        made.sort(key=lambda row: (row[name] is None, 0.0 if row[name] is None else row[name] * (-1) ** largest_first))
    return made


def report(paths: Sequence[str], metric: str | None, as_json: bool) -> None:
    """Print the table."""
    found = rows(paths, metric)
    if as_json:
        from dps.launch.commands import print_json

        print_json(found)
    else:
        print(table.text(list(found[0]), found))
