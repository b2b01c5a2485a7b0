"""Starts tasks of a launched run again: those that died, as often as their job allows, and those of lost machines."""

from __future__ import annotations

from collections.abc import Callable

from dps.errors import DpsError
from dps.launch.ending import Ending
from dps.launch.engines.engine import Started
from dps.launch.moving import Moving
from dps.launch.outcome import describe
from dps.launch.plan import runs_program
from dps.launch.tasks import Tasks

NEVER_AGAIN = (0, 2, 3)
"""Exit codes after which a task is not started again: it is done, was started wrongly, or the run is over."""


class Restarts:
    """Decides which tasks are started again, and starts them."""

    def __init__(self, tasks: Tasks, moving: Moving, ending: Ending, say: Callable[[str], None]) -> None:
        self._tasks, self._moving, self._ending, self._say = tasks, moving, ending, say
        self._left: dict[str, int] = {}
        """How often each task may still be started again."""

    def handle(self, child: Started, code: int) -> bool:
        """A task has ended; start it again if it may be. Returns whether it was."""
        if not (self._ending.begun or runs_program(child.name) or code in NEVER_AGAIN):
            self._tasks.note_crash(child.name, code)
        return self._may(child, code) and self._start(child, code)

    def _may(self, child: Started, code: int) -> bool:
        """Whether a task that has ended is started again. A program that has failed by itself is not."""
        name, tasks, ending = child.name, self._tasks, self._ending
        if not ending.begun and not ending.interrupted and self._moving.moves(child):
            return tasks.lost() in ("", name)
        if ending.begun or code in NEVER_AGAIN or self._left.setdefault(name, tasks.plan.job(name).restarts) < 1:
            return False
        if runs_program(name):
            there = not tasks.lost() and not tasks.undriven() and not tasks.ended_well()
            return code < 0 and not ending.interrupted and there
        return tasks.plan.owned or bool(tasks.workers_alive())

    def _start(self, child: Started, code: int) -> bool:
        """Start a task again; returns whether there was a place for it."""
        name = child.name
        if not child.displaced:
            self._left[name] -= 1
        self._say(f"{name} ended with {describe(code)}; it is started again")
        try:
            self._tasks.start(name)
        except DpsError as error:
            self._say(f"{name} cannot be started again: {error}")
            return False
        return True
