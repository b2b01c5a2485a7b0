"""`dps monitor`: a row for each task of a run, with its step, its rates, its staleness and what it uses."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dps.launch.runs import folder
from dps.launch.runs.reports import RunReader, RunReports
from dps.launch.runs.status import training_of
from dps.launch.runs.view import View
from dps.launch.supervision.output import full_name
from dps.transport.clock import now

COLUMNS = (
    "task", "state", "step", "loss", "pushes/s", "examples/s", "staleness", "MB/s in", "MB/s out", "CPU %", "memory MB",
    "GPU %", "GPU MB", "restarts",
)  # fmt: skip
UNKNOWN = ("examples/s", "GPU %", "GPU MB")
"""Columns whose figures are not known of every task: what is missing is shown as N/A."""
USED = {"CPU %": "cpu_percent", "memory MB": "memory_mb", "GPU %": "gpu_percent", "GPU MB": "gpu_memory_mb"}
ANSWER_S = 2.0

Stats = dict[str, dict[str, Any]]
"""The report of each ps on itself, by its name."""


class Monitor:
    """Reads a run again and again; rates are those since the last reading."""

    def __init__(self) -> None:
        self._reader = RunReader("dps monitor", ANSWER_S)
        self._before: dict[tuple[str, ...], tuple[float, float]] = {}
        """The time and value of each counter's last reading."""
        self.why = ""
        """Why the training is slow or stands still, as of the last reading; "" if there is nothing to say."""

    def rows(self, view: View) -> list[dict[str, Any]]:
        """The rows of a run as it is now; None for what is not known. Blocks for up to some seconds if chief or ps do
        not answer."""
        reports = self._reader.read(view)
        self.why = training_of(reports.chief, reports.ps)["why"] if reports.chief else ""
        return self.rows_of(reports)

    def rows_of(self, reports: RunReports) -> list[dict[str, Any]]:
        """The rows of a run as it was read."""
        view, chief = reports.view, reports.chief
        stats = {f"ps:{task}": values for task, values in reports.ps.items()}
        progress, batches = chief.get("progress", {}), chief.get("batches", {})
        flows = {ps: self._flows(ps, values) for ps, values in stats.items()}
        used = {} if view.is_over else folder.read(os.path.join(view.path, "usage.json"))
        rows = []
        for name, task in view.tasks.items():
            row: dict[str, Any] = dict.fromkeys(COLUMNS)
            row |= {"task": full_name(view.id, name), "state": task["state"], "restarts": task["restarts"]}
            for column, figure in USED.items():
                value = used.get(name, {}).get(figure)
                row[column] = None if value is None else round(value)
            if name in flows:
                row |= self._of_ps(name, stats[name], flows[name])
            row |= _of_worker(progress.get(name), batches.get(name))
            if own := {ps: each[name] for ps, each in flows.items() if name in each}:
                row |= _of_session(name, stats, own, batches.get(name))
            rows.append(row)
        return rows

    def _flows(self, ps: str, values: Mapping[str, Any]) -> Stats:
        """The rates of each session of a ps: pushes that no other ps counts, bytes received and bytes sent."""
        return {
            name: {what: self._rate((ps, name, what), session[what]) for what in ("counted", "received", "sent")}
            for name, session in values.get("sessions", {}).items()
        }

    def _of_ps(self, name: str, values: Mapping[str, Any], flows: Stats) -> dict[str, Any]:
        """The figures of a ps."""
        if "step" not in values:
            return {}
        return {
            "step": values["step"], "pushes/s": self._rate((name, "applied"), values["applied"]),
            "MB/s in": _megabytes(flows, "received"), "MB/s out": _megabytes(flows, "sent"),
        }  # fmt: skip

    def _rate(self, counter: tuple[str, ...], value: float) -> float | None:
        """How fast a counter grows, per second; None the first time. One that begins anew grows by nothing."""
        at = now()
        before = self._before.get(counter)
        self._before[counter] = at, value
        return None if before is None or at <= before[0] else max(0.0, value - before[1]) / (at - before[0])

    def close(self) -> None:
        self._reader.close()


def _of_worker(progress: Sequence[Any] | None, batch: int | None) -> dict[str, Any]:
    """The figures of a worker, as it tells the chief itself every 2 s. `batch`: as of `_of_session`."""
    if not progress:
        return {}
    step, rate, loss = progress
    return {"step": step, "loss": loss, "pushes/s": rate, "examples/s": None if batch is None else rate * batch}


def _of_session(name: str, stats: Stats, flows: Stats, batch: int | None) -> dict[str, Any]:
    """The figures of a worker, as the ps that it has a session with tell them: each push is counted by one of them.
    `batch`: examples in a push, None: it has not said."""
    moved: dict[str, Any] = {"MB/s in": _megabytes(flows, "sent"), "MB/s out": _megabytes(flows, "received")}
    told = [stats[ps]["sessions"][name] for ps in flows]
    if not any(session["pushes"] for session in told):  # it only reads
        return moved
    rates = [each["counted"] for each in flows.values()]
    pushes = None if None in rates else sum(rates)
    moved |= {
        "step": max(session["step"] for session in told),
        "staleness": max(session["staleness"] for session in told),
    }
    return moved if pushes is None else moved | {"pushes/s": pushes, "examples/s": batch and pushes * batch}


def _megabytes(flows: Stats, what: str) -> float | None:
    """The sum of rates in MB; None if one is not known yet."""
    rates = [each[what] for each in flows.values()]
    return None if None in rates else sum(rates) / 1e6


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows for people."""
    return [
        row | {name: "N/A" if row[name] is None else f"{row[name]:,.0f}" for name in UNKNOWN}
        | {name: _rounded(row[name]) for name in ("pushes/s", "MB/s in", "MB/s out")}
        for row in rows
    ]  # fmt: skip


def _rounded(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}" if rate >= 0.1 or not rate else f"{rate:.1g}"
