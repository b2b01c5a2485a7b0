"""The table of several runs at their end: parameters, state, time, and a metric at the highest step of each.

The metric of a run is the number behind the metric's name in the line with the highest global step; of several such
lines, in the last one. The step of a line is the number behind "step" in it. Where the line has none, it is the highest
step of the task's earlier lines with the metric: "loss 0.5" at a program's end is newer than its "step 90 loss 0.6".
Lines of tasks that never say a step count only where no task says one.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import Any

from dps.errors import ConfigError
from dps.launch.runs import table
from dps.launch.runs.logs import Reader
from dps.launch.runs.times import age
from dps.launch.runs.view import read_run
from dps.launch.supervision.output import plain
from dps.process.record import record
from dps.transport.clock import wall

NUMBER = r"[-+]?(?:nan|inf|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
STEP = re.compile(r"(?<![a-z])step\s*[:=]?\s*(\d{1,3}(?:,\d{3})+|\d+)(?!\w|\.\d)", re.IGNORECASE)
UNKNOWN = -1
"""The step of a line that comes before any step."""


@record
class FoundMetric:
    """A metric in the output of a run. `step`: None if the task has said none."""

    value: float
    task: str
    step: int | None


def parse_metric(text: str) -> tuple[str, bool]:
    """The name of a metric, and whether its largest value comes first: "loss", "accuracy:max"."""
    name, colon, order = text.partition(":")
    if not name or (colon and order not in ("min", "max")):
        raise ConfigError(f"got --metric {text!r}; wanted NAME, or NAME:max to have the largest first")
    return name, order == "max"


def newest(path: str, name: str) -> FoundMetric | None:
    """The metric of a run, as in "step 20, loss 0.5", "loss=0.5" or "loss: nan"; None if no task has printed it."""
    wanted = re.compile(rf"(?<!\w){re.escape(name)}\s*[:=]?\s*({NUMBER})(?!\w|\.\d)", re.IGNORECASE)
    reached: dict[str, int] = {}
    best, found = UNKNOWN, None
    for entry in Reader(os.path.join(path, "logs")).read_new():
        text = plain(entry.text)
        if entry.task == "dps" or not (
            values := wanted.findall(text)
        ):  # the launcher only repeats what tasks have said
            continue
        said, before = STEP.search(text), reached.get(entry.task, UNKNOWN)
        step = before if said is None else int(said[1].replace(",", ""))
        reached[entry.task] = max(before, step)
        if step >= best:
            best, found = step, FoundMetric(float(values[-1]), entry.task, None if step == UNKNOWN else step)
    return found


def rows(paths: Sequence[str], metric: str | None) -> list[dict[str, Any]]:
    """A row for each run, sorted by the metric if there is one; runs without a value come last."""
    name, largest_first = parse_metric(metric) if metric else ("", False)
    made = []
    for path in paths:
        view = read_run(path, wall())
        row: dict[str, Any] = {"id": view.id, **view.asked.get("values", {}), "state": view.state}
        row |= {"exit code": view.values["exit_code"], "took": age(table.took_s(view, wall()))}
        if name:
            found = newest(path, name)
            row |= {name: found and found.value, f"{name} of": found and found.task}
            row |= {f"{name} at step": found and found.step}
        made.append(row)
    if name:
        made.sort(key=lambda row: _order(row[name], largest_first))
    return made


def _order(value: float | None, largest_first: bool) -> tuple[int, float]:
    """What rows are sorted by: a value that is no number comes after those that are, and a missing one last."""
    if value is None or math.isnan(value):
        return (2 if value is None else 1, 0.0)
    return (0, -value if largest_first else value)


def report(paths: Sequence[str], metric: str | None, as_json: bool) -> None:
    """Print the table."""
    found = rows(paths, metric)
    if as_json:
        table.print_json([{name: _strict(value) for name, value in row.items()} for row in found])
    else:
        print(table.text(list(found[0]), found))


def _strict(value: Any) -> Any:
    """A value for JSON, which has no infinities and no NaN: these become texts."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
