"""The engine of this machine: each task is a child process of this one, and dies with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from dps.launch.hosts.machine import GPUS, this_machine
from dps.launch.runs.usage import UsageMeter
from dps.launch.supervision.child import Child
from dps.launch.supervision.engine import Engine, Line, Notice, Order, Started
from dps.launch.supervision.plan import RunPlan
from dps.transport.private_folders import private_chief, remove

NETWORK = {"DPS_BIND", "DPS_ADVERTISE", "DPS_PORTS", "DPS_KEYS", "DPS_TRUSTED_NETWORK"}
"""Variables that say how tasks use a network."""


def make_engine(settings: Mapping[str, Any]) -> Engine:
    """The engine of a run with these settings: all are for other engines."""
    return LocalEngine()


class LocalEngine:
    """Starts tasks as processes. `cpus` sets the threads of numeric libraries; `gpus` are dealt out in turn; `memory`
    is compared with that of the machine, and not limited."""

    elsewhere = False

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._shares: dict[str, dict[str, str]] = {}
        """The variables that tell each task what it has."""
        self._folder = ""
        """The folder of all tasks' sockets, if nothing says that they use a network."""
        self._children: dict[str, Child] = {}
        self._meter = UsageMeter()

    def check(self, plan: RunPlan) -> None:
        """Raise ConfigError if a task wants more than this machine has. Deals out the GPUs."""
        machine = this_machine(self._environ)
        self._shares = {name: machine.assign_share(name, plan.job(name).resources) for name in plan.tasks()}

    def open(self, plan: RunPlan, line: Line, notice: Notice) -> str:
        """Where the chief listens: in a private folder, if nothing says that the run uses a network."""
        if self._environ.get("DPS_KEYS") or plan.env.keys() & NETWORK:
            return plan.bind
        self._folder, bind = private_chief()
        return bind

    def start(self, order: Order, line: Line, ended: Callable[[Started], None]) -> Started:
        """Start a task as a child process."""
        share = self._shares.get(order.name, {})
        env = {name: value for name, value in share.items() if name == GPUS or name not in self._environ}
        child = self._children[order.name] = Child(order, env | dict(order.env), line, ended)
        return child

    def go_on(self) -> bool:
        """Whether a run whose chief has lost its machine can begin again: there is no other machine."""
        return False

    def used(self) -> dict[str, dict[str, float]]:
        """What the tasks use."""
        return self._meter.measure_tasks(
            {name: child.pid for name, child in list(self._children.items()) if child.is_alive}
        )

    def close(self) -> None:
        """Remove the folder of the sockets."""
        if self._folder:
            remove(self._folder)
