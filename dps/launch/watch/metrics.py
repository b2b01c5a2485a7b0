"""A run's figures in the text format of Prometheus, with the names that its conventions ask for.

A counter never goes back while the watching lives. Those of the ps begin anew with each run epoch (a rollback), and
those of a worker with each of its sessions: what they had reached is kept, and the new counts are added to it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from math import inf, isnan, nan

from dps.launch.runs import folder
from dps.launch.runs.reports import RunReports
from dps.launch.runs.states import OVER, RUNNING
from dps.launch.runs.status import training_of
from dps.transport.clock import wall

TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("CREATED", "PENDING", "BUILDING", RUNNING, *OVER)
TIMES = {"read_s": "reading_data", "computed_s": "computing", "moved_s": "moving_values", "waited_s": "waiting"}
"""The times of a worker, with the words for what it did."""
FAMILIES = {
    "dps_run_info": "The run that is watched.",
    "dps_run_state": "1 for the state of the run, 0 for all others.",
    "dps_chief_up": "Whether the chief answered the last reading.",
    "dps_last_reading_timestamp_seconds": "When the run was read last, in seconds since 1970.",
    "dps_run_epoch": "The run epoch: one more after each rollback.",
    "dps_step": "The global step. It goes back in a rollback.",
    "dps_steps_total": "Steps since the watching began, and those before; steps that a rollback repeats count again.",
    "dps_loss": "The mean of the workers' last losses.",
    "dps_worker_step": "The step of a worker's last push.",
    "dps_worker_loss": "The loss of a worker's last push.",
    "dps_worker_batch_examples": "Examples in a push of a worker, if it has said so.",
    "dps_worker_steps_total": "Steps that the times of a worker are about.",
    "dps_worker_time_seconds_total": "What a worker spent its time with.",
    "dps_session_pushes_total": "Pushes of a worker that a ps has finished.",
    "dps_session_received_bytes_total": "Bytes of gradients that a ps got from a worker.",
    "dps_session_sent_bytes_total": "Bytes of values that a ps sent to a worker.",
    "dps_session_staleness_versions": "How many versions old the values of a worker's last push were, on a ps.",
    "dps_ps_up": "Whether a ps answered the last reading.",
    "dps_ps_version": "The version of a ps's shard.",
    "dps_ps_size_bytes": "Bytes of the values of a ps's shard.",
    "dps_ps_leases": "Buffers of a ps that are being read.",
    "dps_ps_pushes_total": "Pushes by what became of them on a ps: applied, dropped or refused.",
    "dps_ps_pulls_total": "Pulls that a ps has answered.",
    "dps_ps_refused_messages_total": "Messages that a ps has refused.",
    "dps_task_up": "Whether the process of a task runs.",
    "dps_task_restarts_total": "How often a task was started again.",
    "dps_task_cpu_usage_ratio": "Processors that a task uses: 1 is all of one.",
    "dps_task_memory_bytes": "Resident memory of a task.",
    "dps_task_gpu_usage_ratio": "How much of its GPU a task uses, by NVML.",
    "dps_task_gpu_memory_bytes": "Memory of GPUs that a task uses, by NVML.",
}
"""Every family with what it holds. A name with "_total" at its end is a counter, any other a gauge."""
USED = {
    "cpu_percent": ("dps_task_cpu_usage_ratio", 0.01), "memory_mb": ("dps_task_memory_bytes", 1e6),
    "gpu_percent": ("dps_task_gpu_usage_ratio", 0.01), "gpu_memory_mb": ("dps_task_gpu_memory_bytes", 1e6),
}  # fmt: skip
"""Figures of usage.json, each with its family and its unit."""

Labels = tuple[tuple[str, str], ...]


class Totals:
    """Counters that never go back, out of counters that begin anew."""

    def __init__(self) -> None:
        self._last: dict[object, tuple[int, tuple[float, ...]]] = {}
        self._before: dict[object, tuple[float, ...]] = {}

    def of_group(self, key: object, values: tuple[float, ...], epoch: int) -> tuple[float, ...]:
        """The totals of counters that begin anew together: they did if one fell, or the run epoch is another."""
        last_epoch, last = self._last.get(key, (epoch, values))
        before = self._before.get(key, (0.0,) * len(values))
        if epoch != last_epoch or any(new < old for new, old in zip(values, last, strict=True)):
            before = tuple(sum(pair) for pair in zip(before, last, strict=True))
        self._last[key], self._before[key] = (epoch, values), before
        return tuple(sum(pair) for pair in zip(before, values, strict=True))

    def of_rises(self, key: object, value: float) -> float:
        """The sum of all rises of a value; what it falls by is not taken off. The first value is a rise from 0."""
        _, (last,) = self._last.get(key, (0, (0.0,)))
        (before,) = self._before.get(key, (0.0,))
        self._last[key], self._before[key] = (0, (value,)), (before + max(0.0, value - last),)
        return self._before[key][0]


class RunMetrics:
    """The figures of one run. One thread adds readings, others ask for the text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Totals()
        self._gauges: dict[str, dict[Labels, float]] = {}
        self._counters: dict[str, dict[Labels, float]] = {}
        """They stay when a task no longer says them."""

    def add_reading(self, reports: RunReports) -> None:
        """Take a reading of the run. To be called for each, so that no rollback is missed."""
        used = {} if reports.view.is_over else folder.read(os.path.join(reports.view.path, "usage.json"))
        with self._lock:
            self._gauges = {}
            for name, value, labels in self._of_run(reports):
                self._set(name, value, labels)
            for name, value, labels in self._of_ps(reports):
                self._set(name, value, labels)
            for task, figures in used.items():
                for figure, (name, unit) in USED.items():
                    if figures.get(figure) is not None:
                        self._set(name, figures[figure] * unit, {"task": task})

    def _set(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        if value is not None:
            of = self._counters if name.endswith("_total") else self._gauges
            of.setdefault(name, {})[tuple(labels.items())] = value

    def _of_run(self, reports: RunReports) -> Iterator[tuple[str, float | None, dict[str, str]]]:
        view, chief = reports.view, reports.chief
        yield "dps_run_info", 1, {"run": view.id, "name": str(view.asked.get("name") or "")}
        yield from (("dps_run_state", view.state == state, {"state": state}) for state in STATES)
        yield "dps_chief_up", bool(chief), {}
        yield "dps_last_reading_timestamp_seconds", wall(), {}
        for task, values in view.tasks.items():
            yield "dps_task_up", values["state"] == RUNNING, {"task": task}
            yield "dps_task_restarts_total", values["restarts"], {"task": task}
        if not chief:
            return
        training = training_of(chief, reports.ps)
        yield "dps_run_epoch", chief["epoch"], {}
        yield "dps_loss", number(training["loss"]), {}
        if (step := training["step"]) is not None:
            yield "dps_step", step, {}
            yield "dps_steps_total", self._totals.of_rises("steps", step), {}
        for worker, (step, _, loss) in chief["progress"].items():
            yield "dps_worker_step", step, {"worker": worker}
            yield "dps_worker_loss", number(loss), {"worker": worker}
        for worker, batch in chief["batches"].items():
            yield "dps_worker_batch_examples", batch, {"worker": worker}
        for worker, told in training.get("workers", {}).items():  # absent before workers told their times
            times = tuple(told[name] for name in ("steps", *TIMES))
            steps, *spent = self._totals.of_group(("times", worker), times, chief["epoch"])
            yield "dps_worker_steps_total", steps, {"worker": worker}
            for activity, seconds in zip(TIMES.values(), spent, strict=True):
                yield "dps_worker_time_seconds_total", seconds, {"worker": worker, "activity": activity}

    def _of_ps(self, reports: RunReports) -> Iterator[tuple[str, float | None, dict[str, str]]]:
        for index, values in reports.ps.items():
            ps = f"ps:{index}"
            yield "dps_ps_up", values["state"] != "no answer", {"ps": ps}
            if "step" not in values:  # it did not answer, or has no variables
                continue
            epoch, label = values["epoch"], {"ps": ps}
            yield "dps_ps_version", values["version"], label
            yield "dps_ps_size_bytes", values["nbytes"], label
            yield "dps_ps_leases", values["leases"], label
            results = ("applied", "dropped", "refused")
            counted = tuple(values[name] for name in (*results, "pulls"))
            *pushes, pulls = self._totals.of_group(ps, counted, epoch)
            yield from (
                ("dps_ps_pushes_total", count, label | {"result": result})
                for result, count in zip(results, pushes, strict=True)
            )
            yield "dps_ps_pulls_total", pulls, label
            (refused,) = self._totals.of_group(("refused", ps), (values["refused_messages"],), 0)
            yield "dps_ps_refused_messages_total", refused, label
            for worker, session in values["sessions"].items():
                both = label | {"worker": worker}
                counted = session["pushes"], session["received"], session["sent"]
                done, received, sent = self._totals.of_group((ps, worker), counted, epoch)
                yield "dps_session_pushes_total", done, both
                yield "dps_session_received_bytes_total", received, both
                yield "dps_session_sent_bytes_total", sent, both
                yield "dps_session_staleness_versions", session["staleness"], both

    def text(self) -> str:
        """All figures, in Prometheus's text format."""
        with self._lock:
            lines = []
            for name, about in FAMILIES.items():
                kind, of = ("counter", self._counters) if name.endswith("_total") else ("gauge", self._gauges)
                if name in of:
                    lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
                    lines += [f"{name}{labelled(labels)} {figure(value)}" for labels, value in of[name].items()]
        return "\n".join(lines) + "\n"


def number(value: object) -> float | None:
    """A loss as a number; one that is no JSON number was told as text."""
    return {"nan": nan, "inf": inf, "-inf": -inf}[value] if isinstance(value, str) else value  # type: ignore[return-value]


def labelled(labels: Labels) -> str:
    """The labels of a series, as the text format has them."""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels) + "}" if labels else ""


def escaped(value: str) -> str:
    """A label's value: names of runs are their users' texts."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", " ")


def figure(value: float) -> str:
    """A number, as the text format has it."""
    return "NaN" if isnan(value) else "+Inf" if value == inf else "-Inf" if value == -inf else repr(float(value))
