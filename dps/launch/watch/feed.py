"""What the page of a run shows: its figures now, how they changed while it was watched, and its last lines of log."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from math import isfinite
from statistics import fmean
from typing import Any

from dps.launch.runs.logs import Reader
from dps.launch.runs.monitor import Monitor
from dps.launch.runs.reports import RunReports
from dps.launch.runs.status import run_values
from dps.launch.runs.times import seconds, utc
from dps.launch.supervision.output import plain
from dps.transport.clock import wall

MOST_POINTS = 1200
"""Points of a curve. When there are more every second one is left out, and from then on only every second reading adds
one: the curve of a long run has at least half as many, evenly."""
LOG_LINES, LINE_LENGTH = 200, 2000
LOG_S = 600.0
"""Lines that are so much older than a run's last one are not read when the watching begins."""
TAIL = 1 << 14
"""Bytes at the end of a log in which the time of its last line is looked for."""
STAMPS = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ", re.M)
MOST_CHECKPOINTS = 50
CURVES = ("at", "step", "loss", "pushes_per_s", "examples_per_s", "mb_per_s", "staleness", "mean_staleness")
"""What a point has, in this order; None for what nobody has said. `mb_per_s`: gradients and values, of all workers."""


class Curves:
    """The points of all curves since the watching began."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self.points: list[list[float | None]] = []
        self.thinned = 0
        """How often every second point was left out."""
        self._most, self._every, self._readings = most, 1, 0

    def add_point(self, point: list[float | None]) -> None:
        """Add the figures of a reading, if it is its turn."""
        self._readings += 1
        if (self._readings - 1) % self._every:
            return
        self.points.append(point)
        if len(self.points) > self._most:
            self.points = self.points[::2]
            self._every *= 2
            self.thinned += 1


class PageFeed:
    """Turns readings of a run into what pages are sent. One thread adds readings; each page has another thread, which
    waits for them."""

    def __init__(self, path: str) -> None:
        self._changed = threading.Condition()
        self._curves, self._monitor = Curves(), Monitor()
        self._now: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        """The figures of the last reading in which the chief answered."""
        self._readings = 0
        self._closed = False
        self._checkpoints: deque[dict[str, Any]] = deque(maxlen=MOST_CHECKPOINTS)
        logs = os.path.join(path, "logs")
        self._logs = Reader(logs, since=first_time(logs))
        self._lines: deque[list[str]] = deque(maxlen=LOG_LINES)
        self._line_count = 0

    def add_reading(self, reports: RunReports) -> None:
        """Take a reading of the run, and the lines that its tasks have printed meanwhile."""
        lines = [
            [each.at, each.task, plain(each.text)[:LINE_LENGTH]] for each in deque(self._logs.read_new(), LOG_LINES)
        ]
        status, tasks = run_values(reports), self._monitor.rows_of(reports)
        training, at = status["training"], wall()
        with self._changed:
            saved = training.get("saved")
            if saved and saved not in [each["name"] for each in self._checkpoints]:
                self._checkpoints.append({"name": saved, "seen": at})
            if training:
                self._curves.add_point(point(at, training, tasks))
                self._last = {"at": at, "training": training, "ps": status["ps"], "tasks": tasks}
            self._lines.extend(lines)
            self._line_count += len(lines)
            self._now = json_ready({
                "at": at, "status": status, "tasks": tasks, "checkpoints": list(self._checkpoints),
                "is_over": reports.view.is_over, "trouble": reports.trouble, "last": {} if training else self._last,
            })  # fmt: skip
            self._readings += 1
            self._changed.notify_all()

    def whole(self) -> dict[str, Any]:
        """All that a page shows."""
        with self._changed:
            return self._whole()

    def _whole(self) -> dict[str, Any]:
        return self._now | {"curves": CURVES, "points": list(self._curves.points), "lines": list(self._lines)}

    def updates(self, silent_s: float) -> Iterator[dict[str, Any] | None]:
        """For one page: first all, then after each reading what is new; None after each `silent_s` without any. Ends
        when the feed is closed. Blocks."""
        readings = thinned = -1
        points = lines = 0
        while True:
            with self._changed:
                if readings == self._readings and not self._closed:
                    self._changed.wait(silent_s)
                if self._closed:
                    return
                if readings == self._readings:
                    news = None
                elif thinned != self._curves.thinned:
                    news = self._whole()
                else:
                    new_lines = min(self._line_count - lines, len(self._lines))
                    news = self._now | {
                        "points": self._curves.points[points:],
                        "lines": list(self._lines)[len(self._lines) - new_lines :],
                    }
                readings, thinned = self._readings, self._curves.thinned
                points, lines = len(self._curves.points), self._line_count
            yield news

    def close(self) -> None:
        """End the updates of all pages."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._monitor.close()


def point(at: float, training: dict[str, Any], tasks: list[dict[str, Any]]) -> list[float | None]:
    """The figures of a reading that curves show."""
    stale = [row["staleness"] for row in tasks if row["staleness"] is not None]
    moved = [
        row["MB/s in"] + row["MB/s out"] for row in tasks
        if row["staleness"] is not None and None not in (row["MB/s in"], row["MB/s out"])
    ]  # fmt: skip
    loss = training["loss"] if isinstance(training["loss"], float) else None
    return [
        at, training["step"], loss, training["pushes_per_s"], training["examples_per_s"], sum(moved) if moved else None,
        max(stale, default=None), fmean(stale) if stale else None,
    ]  # fmt: skip


def json_ready(value: Any) -> Any:
    """Plain values with texts in place of infinities and NaN, which JSON does not have."""
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): json_ready(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(each) for each in value]
    return value


def first_time(logs: str) -> str:
    """From when on the lines in a folder of logs are read; "" if there are none, or all are to be read."""
    last = ""
    for name in os.listdir(logs) if os.path.isdir(logs) else ():
        with open(os.path.join(logs, name), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            last = max([last, *(stamp.decode() for stamp in STAMPS.findall(file.read()))])
    return utc(seconds(last) - LOG_S) if last else ""
