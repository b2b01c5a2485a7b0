"""The tasks of a launched run that were started: their processes, their states, and which of them is lost."""

from __future__ import annotations

import os
import queue
from collections.abc import Mapping, Sequence
from typing import Protocol

from dps.launch.supervision.chief import LaunchedChief
from dps.launch.supervision.engine import Engine, Line, Order, Started
from dps.launch.supervision.outcome import describe
from dps.launch.supervision.plan import EVALUATOR, STDIN, RunPlan, runs_program
from dps.process.config import allowed_cpus, deal_cpus, format_cpus

PINNED = ("ps:", "worker:")
"""Tasks that keep to processors of their own. The chief has none, because it has little work."""


class TaskObserver(Protocol):
    """Is told of the tasks of a supervisor, on its thread."""

    def started(self, task: Started) -> None:
        """A task runs, for the first time or again."""

    def ended(self, name: str, code: int) -> None:
        """A task has ended, with this exit code or by this signal (negative)."""


class Tasks:
    """The tasks of a plan. A task that is started again replaces the one that has ended under its name."""

    def __init__(
        self, plan: RunPlan, chief: LaunchedChief, engine: Engine, line: Line, watch: TaskObserver | None
    ) -> None:
        """Raises ConfigError if tasks are to be pinned to processors and that is impossible."""
        self.plan = plan
        self.children: dict[str, Started] = {}
        self.states: dict[str, str] = {}
        """ "running", "done", or "failed" with the reason."""
        self.crashed: dict[str, int] = {}
        """Exit codes of ps and chief that died before the run had ended; the latest last."""
        self.cpus = deal_cpus([n for n in plan.tasks() if n.startswith(PINNED)], allowed_cpus()) if plan.pin else {}
        self._chief, self._engine, self._line, self._watch = chief, engine, line, watch
        self._keys = {"DPS_KEYS": os.environ["DPS_KEYS"]} if os.environ.get("DPS_KEYS") else {}
        self._ends: queue.Queue[Started] = queue.Queue()

    def start_task(
        self, name: str, run: Sequence[str] = (), extra: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
    ) -> Started:
        """Start a task. `run`: its program and arguments, instead of the plan's; `extra`: more variables. As long as
        the chief does not listen, the others wait for its address. Raises DpsError if there is no place for it."""
        env = {**self._keys, **self.plan.environment(name), **(extra or {})}
        waits = name != "chief" and not self._chief.address
        order = Order(name, self._flags(name, run), env, self.plan.folder, waits, pass_fds)
        child = self.children[name] = self._engine.start(order, self._line, self._record_end)
        self.states[name] = "running"
        if self._watch is not None:
            self._watch.started(child)
        return child

    def _flags(self, name: str, run: Sequence[str]) -> list[str]:
        if name == "chief":
            return self._chief.flags(self.plan)
        pinned = ["--cpus", format_cpus(self.cpus[name])] if name in self.cpus else []
        return [*pinned, *self.plan.flags(name, self._chief.address or STDIN, run)]

    def _record_end(self, child: Started) -> None:
        """A task has ended. Called on any thread."""
        if child.name == "chief":
            self._chief.record_end()
        self._ends.put(child)

    def next_end(self, wait_s: float) -> tuple[Started, int] | None:
        """The next task that has ended, and its exit code; None if there is none. Blocks up to `wait_s`."""
        try:
            child = self._ends.get(timeout=wait_s)
        except queue.Empty:
            return None
        code, name = child.code, child.name
        assert code is not None
        if self.children.get(name) is not child:
            return None
        self.states[name] = "done" if code == 0 else f"failed ({describe(code)})"
        if self._watch is not None:
            self._watch.ended(name, code)
        return child, code

    def note_crash(self, name: str, code: int) -> None:
        """A ps or the chief died before the run had ended."""
        self.crashed.pop(name, None)
        self.crashed[name] = code

    def workers_alive(self) -> list[str]:
        """The workers that run."""
        return [n for n, c in self.children.items() if n.startswith("worker") and c.is_alive]

    def programs_alive(self) -> list[str]:
        """The workers and evaluators that run."""
        return [n for n, c in self.children.items() if runs_program(n) and c.is_alive]

    def servers_alive(self) -> list[str]:
        """The tasks without a program that run, such as ps and chief."""
        return [n for n, c in self.children.items() if not runs_program(n) and c.is_alive]

    def has_work(self) -> bool:
        """Whether a worker runs, or the end of a task was not handled yet."""
        running = any(name.startswith("worker") and state == "running" for name, state in self.states.items())
        return running or not self._ends.empty()

    def has_ended_well(self) -> bool:
        """Whether the chief has ended the run, and with exit code 0: it does not come back."""
        return self.states.get("chief") == "done"

    def is_undriven(self) -> bool:
        """Whether the workers serve a program that has failed or was killed: nobody will call them."""
        return self.plan.serves and self.states.get(EVALUATOR, "").startswith("failed")

    def is_dismissed(self) -> bool:
        """Whether the workers serve a program that has ended in order, and has told those that were there to end."""
        return self.plan.serves and self.states.get(EVALUATOR, "") == "done"

    def lost_task(self) -> str:
        """The first ps or chief that failed and was not restarted; "" if there is none."""
        failed = [
            n for n, c in self.children.items()
            if not runs_program(n) and not c.is_alive and self.states[n].startswith("failed")
        ]  # fmt: skip
        return next((n for n in reversed(self.crashed) if n in failed), failed[0] if failed else "")
