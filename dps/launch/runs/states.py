"""The states of a run and its tasks as a state machine: events with times in, plain values for the state file out."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

from dps.launch.runs.times import utc
from dps.launch.supervision.outcome import TEARDOWN

CREATED, PENDING, BUILDING, RUNNING = "CREATED", "PENDING", "BUILDING", "RUNNING"
SUCCEEDED, FAILED, LOST, KILLED = "SUCCEEDED", "FAILED", "LOST", "KILLED"
OVER = (SUCCEEDED, FAILED, LOST, KILLED)
TOLD = (-signal.SIGTERM, -TEARDOWN)
"""How tasks end that were told to end."""


class States:
    """States of one run and of its tasks. `at`: seconds since 1970 on the keeper's clock.

    CREATED: it is planned. PENDING: its start has begun. BUILDING: its code is copied, or an image pulled. RUNNING.
    Then one of: SUCCEEDED (exit code 0, or a chief or ps that the run's end ended), FAILED, KILLED (somebody ended it).
    LOST is never written: it is what a run without a living keeper reads as.
    """

    def __init__(self, tasks: Iterable[str], at: float) -> None:
        self.values: dict[str, Any] = {"exit_code": None, "reason": "", "chief": "", "tasks": {}}
        self._killing = False
        self._enter_state(self.values, CREATED, at)
        for name in tasks:
            task = self.values["tasks"][name] = {
                "exit_code": None, "pid": None, "start": "", "host": "", "restarts": 0,
            }  # fmt: skip
            self._enter_state(task, CREATED, at)

    @staticmethod
    def _enter_state(of: dict[str, Any], state: str, at: float) -> None:
        if of.get("state") == state:
            return
        of["state"], of["since"] = state, utc(at)
        of.setdefault("history", []).append([state, utc(at)])

    @property
    def state(self) -> str:
        return str(self.values["state"])

    def begin_run(self, at: float, building: bool = False) -> None:
        """The keeper begins to start the tasks."""
        self._enter_state(self.values, BUILDING if building else PENDING, at)
        for task in self.values["tasks"].values():
            self._enter_state(task, PENDING, at)

    def record_listening(self, chief: str, at: float) -> None:
        """The chief listens: the run is up."""
        self.values["chief"] = chief
        self._enter_state(self.values, RUNNING, at)

    def record_start(self, name: str, pid: int, start: str, at: float, host: str = "") -> None:
        """A task runs, for the first time or again. `start`: its process's start time; `host`: "" for the keeper's."""
        task = self.values["tasks"][name]
        task["restarts"] += task["pid"] is not None
        task["pid"], task["start"], task["exit_code"], task["host"] = pid, start, None, host
        self._enter_state(task, RUNNING, at)

    def mark_killing(self) -> None:
        """Somebody ends the run: what ends by a signal from now on was killed."""
        self._killing = True

    def record_end(self, name: str, code: int, at: float) -> None:
        """A task has ended, with this exit code or by this signal (negative)."""
        task = self.values["tasks"][name]
        task["exit_code"] = code
        if self._killing and code != 0:
            state = KILLED
        else:
            state = SUCCEEDED if code == 0 or code in TOLD else FAILED
        self._enter_state(task, state, at)

    def finish_run(self, code: int, reason: str, at: float) -> None:
        """The run is over. Tasks that never ran take the run's end."""
        self.values["exit_code"], self.values["reason"] = code, reason
        self._enter_state(self.values, KILLED if self._killing else SUCCEEDED if code == 0 else FAILED, at)
        for task in self.values["tasks"].values():
            if task["state"] not in OVER:
                self._enter_state(task, KILLED, at)
