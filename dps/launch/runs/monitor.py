"""`dps monitor`: a row for each task of a run, with its step, its rate, its staleness and what it uses."""

from __future__ import annotations

import contextlib
from typing import Any

from dps.errors import DpsError
from dps.launch.asking import Asking
from dps.launch.runs.keeping import full_name
from dps.launch.runs.usage import cpu_s, gpu_memory_mb, is_same, memory_mb
from dps.launch.runs.view import View
from dps.transport.current import runtime

COLUMNS = (
    "task", "state", "step", "steps/s", "pushes/s", "staleness", "CPU %", "memory MB", "GPU MB", "restarts",
)  # fmt: skip
ANSWER_S = 2.0


class Monitor:
    """Reads a run again and again; rates are those since the last reading."""

    def __init__(self) -> None:
        self._asking: Asking | None = None
        self._before: dict[tuple[str, str], tuple[float, float]] = {}
        """Of each task and counter, when it was read last, and what it was."""

    def rows(self, view: View) -> list[dict[str, Any]]:
        """The rows of a run as it is now. Blocks for up to some seconds if chief or ps do not answer."""
        stats = {} if view.over or not view.values["chief"] else self._stats(view.values["chief"])
        gpus = gpu_memory_mb()
        rows = []
        for name, task in view.tasks.items():
            row: dict[str, Any] = {"task": full_name(view.id, name), "state": task["state"]}
            row |= {"restarts": task["restarts"], "GPU MB": "N/A"}
            if is_same(task["pid"], task["start"]):
                used = cpu_s(task["pid"])
                rate = None if used is None else self._rate(name, "cpu", used)
                row["CPU %"] = None if rate is None else round(100 * rate)
                memory = memory_mb(task["pid"])
                row["memory MB"] = None if memory is None else round(memory)
                if gpus is not None:
                    row["GPU MB"] = round(gpus.get(task["pid"], 0.0))
            behind = [ps["staleness"][name] for ps in stats.values() if name in ps.get("staleness", ())]
            row["staleness"] = max(behind, default=None)
            rows.append(row | self._of_ps(name, stats.get(name, {})))
        return rows

    def _of_ps(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """What a ps says of itself."""
        if "step" not in values:
            return {}
        return {
            "step": values["step"], "steps/s": self._rate(name, "step", values["step"]),
            "pushes/s": self._rate(name, "applied", values["applied"]),
        }  # fmt: skip

    def _rate(self, name: str, what: str, value: float) -> float | None:
        """How fast a counter grows, per second; None the first time."""
        at = runtime().now()
        before = self._before.get((name, what))
        self._before[name, what] = at, value
        return None if before is None or at <= before[0] else max(0.0, value - before[1]) / (at - before[0])

    def _stats(self, chief: str) -> dict[str, dict[str, Any]]:
        """What each ps that answers says of itself, by its name."""
        self._asking = self._asking or Asking(chief, "dps monitor", ANSWER_S)
        with contextlib.suppress(DpsError):
            return {f"ps:{task}": values for task, values in self._asking.ps(self._asking.chief()).items()}
        return {}

    def close(self) -> None:
        if self._asking is not None:
            self._asking.close()
