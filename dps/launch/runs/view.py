"""Reads a run from outside: its files, and whether its keeper is alive."""

from __future__ import annotations

import os
from typing import Any

from dps.launch.runs import folder
from dps.launch.runs.identity import is_alive
from dps.launch.runs.states import CREATED, KILLED, LOST, OVER
from dps.launch.runs.times import age, seconds
from dps.process.record import record

SILENT_S = 30.0
"""A keeper whose last sign of life is older than this is lost."""


@record
class View:
    """A run as others see it. `asked`: run.json; `values`: state.json, with the states as they read now;
    `silent_s`: the age of the keeper's last sign of life, None if there was none."""

    path: str
    asked: dict[str, Any]
    values: dict[str, Any]
    silent_s: float | None

    @property
    def id(self) -> str:
        return os.path.basename(self.path)

    @property
    def state(self) -> str:
        return str(self.values["state"])

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.values["tasks"]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for --json."""
        told = {name: self.asked.get(name) for name in ("name", "command", "values", "output", "resumes", "created")}
        return {"id": self.id, "path": self.path, **told, **self.values}


def read_run(path: str, at: float) -> View:
    """A run as it reads at this time on this machine's clock. Changes nothing."""
    asked = folder.read(os.path.join(path, "run.json"))
    values = folder.read(os.path.join(path, "state.json"))
    beat = heartbeat(path)
    silent_s = None if beat is None else max(0.0, at - beat)
    if not values:  # its maker writes it within a moment
        values = {"state": CREATED, "since": "", "tasks": {}, "exit_code": None, "reason": "", "chief": ""}
        beat = os.path.getmtime(path)
    if values["state"] not in OVER and not _is_kept(values.get("keeper"), None if beat is None else at - beat):
        _mark_lost(values, KILLED if kill_orders(path) else LOST, silent_s)
    return View(path, asked, values, silent_s)


def find_live_runs(root: str, at: float) -> list[View]:
    """The runs that go on, by their numbers; those of a grid that wait for their turn do not."""
    found = [read_run(os.path.join(root, str(number)), at) for number in folder.readable(root)]
    return [view for view in found if not view.is_over and view.state != CREATED]


def _is_kept(keeper: dict[str, Any] | None, silent_s: float | None) -> bool:
    alive = None if keeper is None else is_alive(keeper)
    if alive is False:
        return False
    return silent_s is None or silent_s <= SILENT_S


def _mark_lost(values: dict[str, Any], state: str, silent_s: float | None) -> None:
    """The states that a lost keeper could not write."""
    values["state"] = state
    heard = "was never heard of" if silent_s is None else f"was last heard of {age(silent_s)} ago"
    values["reason"] = values["reason"] or f"its keeper has gone; it {heard}"
    for task in values["tasks"].values():
        if task["state"] not in OVER:
            task["state"] = state


def heartbeat(path: str) -> float | None:
    """The time of the keeper's last sign of life, in seconds since 1970 on its clock; None if there was none."""
    try:
        with open(os.path.join(path, "heartbeat"), encoding="utf-8") as file:
            return seconds(file.read().strip())
    except (FileNotFoundError, ValueError):
        return None


def kill_orders(path: str) -> list[str]:
    """The orders to end a run."""
    orders = os.path.join(path, "orders")
    if not os.path.isdir(orders):
        return []
    return sorted(os.path.join(orders, name) for name in os.listdir(orders) if name.endswith(".json"))
