"""Starts tasks of a launched run again: those that died, as often as their job allows, and those of lost machines."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Mapping, Sequence

from dps.errors import DpsError
from dps.launch.supervision.ending import TasksEnding
from dps.launch.supervision.engine import Started
from dps.launch.supervision.outcome import describe
from dps.launch.supervision.plan import runs_program
from dps.launch.supervision.tasks import Tasks


class Evictions:
    """Handles tasks whose place is about to go. `add_notice` may be called on any thread, all else on the supervisor's.

    The tasks of such a place are told to end in order. A worker ends after its step, and a ps once its values are
    saved; both are started again elsewhere. The chief is known by its address, so it cannot move, and a run needs a
    worker: if the chief's place goes, or those of all workers, the chief is told to end the run in order.
    """

    def __init__(self, children: Mapping[str, Started], say: Callable[[str], None]) -> None:
        self._children, self._say = children, say
        self._notices: queue.SimpleQueue[tuple[Sequence[str], str]] = queue.SimpleQueue()
        self._told: set[Started] = set()
        """Tasks that were told to end because their place is about to go."""
        self.ends_run = False
        """Whether the run ends because its machines go, and not because it is done."""

    def add_notice(self, names: Sequence[str], where: str) -> None:
        """The place of these tasks is about to go."""
        self._notices.put((names, where))

    def end_evicted(self) -> None:
        """Tell the tasks to end whose place is about to go."""
        while not self._notices.empty():
            names, where = self._notices.get()
            going = [child for name in names if (child := self._children.get(name)) is not None and child.is_alive]
            workers = [child for name, child in self._children.items() if name.startswith("worker:") and child.is_alive]
            if "chief" in names or (workers and set(workers) <= {*going, *self._told}):
                self.ends_run = True
                self._say(f"the run ends in order with {where}, and begins again from its checkpoint")
                going = [child for name, child in self._children.items() if name == "chief" and child.is_alive]
            for child in going:
                self._told.add(child)
                child.send_signal(signal.SIGTERM)

    @property
    def may_begin_again(self) -> bool:
        """Whether the run, which is over, was ended by the loss of machines: it can begin again from its checkpoint."""
        chief = self._children.get("chief")
        return self.ends_run or (chief is not None and chief.is_displaced and bool(chief.code))

    def is_evicted(self, child: Started) -> bool:
        """Whether a task that has ended is to be started again elsewhere: it was told so, or its machine was lost."""
        if not child.is_displaced or self.ends_run or child.name == "chief":
            return False
        if child.name.startswith("evaluator:") and child.code == 0:
            return False
        return child in self._told or (child.code or 0) < 0 or not runs_program(child.name)


NEVER_AGAIN = (0, 2, 3)
"""Exit codes after which a task is not started again: it is done, was started wrongly, or the run is over."""


class Restarts:
    """Decides which tasks are started again, and starts them."""

    def __init__(self, tasks: Tasks, moving: Evictions, ending: TasksEnding, say: Callable[[str], None]) -> None:
        self._tasks, self._moving, self._ending, self._say = tasks, moving, ending, say
        self._left: dict[str, int] = {}
        """How often each task may still be started again."""

    def restart_if_allowed(self, child: Started, code: int) -> bool:
        """A task has ended; start it again if it may be. Returns whether it was."""
        if not (self._ending.begun or runs_program(child.name) or code in NEVER_AGAIN):
            self._tasks.note_crash(child.name, code)
        return self._may_restart(child, code) and self._start_again(child, code)

    def _may_restart(self, child: Started, code: int) -> bool:
        """Whether a task that has ended is started again. A program that has failed by itself is not."""
        name, tasks, ending = child.name, self._tasks, self._ending
        if not ending.begun and not ending.interrupted and self._moving.is_evicted(child):
            return tasks.lost_task() in ("", name)
        if ending.begun or code in NEVER_AGAIN or self._left.setdefault(name, tasks.plan.job(name).restarts) < 1:
            return False
        if runs_program(name):
            there = not tasks.lost_task() and not tasks.is_undriven() and not tasks.has_ended_well()
            return code < 0 and not ending.interrupted and there
        return tasks.plan.owned or bool(tasks.workers_alive())

    def _start_again(self, child: Started, code: int) -> bool:
        """Start a task again; returns whether there was a place for it."""
        name = child.name
        if not child.is_displaced:
            self._left[name] -= 1
        self._say(f"{name} ended with {describe(code)}; it is started again")
        try:
            self._tasks.start_task(name)
        except DpsError as error:
            self._say(f"{name} cannot be started again: {error}")
            return False
        return True
