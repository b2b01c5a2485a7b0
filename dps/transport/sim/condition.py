"""Lets simulated tasks of one process wait for each other in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from dps.transport.sim.scheduler import SHORTEST_S, Scheduler, SimTask


class SimCondition:
    """As `dps.transport.endpoint.Condition`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[SimTask] = []

    def notify(self) -> None:
        """As Condition.notify."""
        for task in self._waiting:
            self._scheduler.rouse(task)

    def wait(self, ready: Callable[[], bool], timeout_s: float = inf) -> bool:
        """As Condition.wait."""
        scheduler = self._scheduler
        deadline = scheduler.now + (max(timeout_s, SHORTEST_S) if timeout_s > 0 else 0.0)
        while not ready() and scheduler.now < deadline:
            task = scheduler.task()
            self._waiting.append(task)
            try:
                scheduler.block(task, deadline)
            finally:
                self._waiting.remove(task)
        return ready()
