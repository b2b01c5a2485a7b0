"""The engine of this machine: each task is a child process of this one, and dies with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from dps.config import THREADS, cores
from dps.errors import ConfigError
from dps.launch.child import Child
from dps.launch.engines.engine import Line, Order, Started
from dps.launch.plan import Plan, Resources

GPUS = "CUDA_VISIBLE_DEVICES"


class LocalEngine:
    """Starts tasks as processes. `cpus` sets the threads of numeric libraries; `gpus` are dealt out in turn; `memory`
    is compared with that of the machine, and not limited."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._gpus: dict[str, str] = {}
        """Which GPUs each task sees."""
        self._threads: dict[str, int] = {}

    def check(self, plan: Plan) -> None:
        """Raise ConfigError if a task wants more than this machine has. Deals out the GPUs."""
        free = visible_gpus(self._environ)
        has = Resources(cores(), memory_bytes(), len(free))
        for name in plan.tasks():
            wanted = plan.job(name).resources
            for what in ("cpus", "memory", "gpus"):
                want, there = getattr(wanted, what), getattr(has, what)
                if want is not None and there is not None and want > there:
                    raise ConfigError(f"{name} wants {what}: {want}; this machine has {there}")
            if wanted.gpus is not None:
                if wanted.gpus > len(free):
                    raise ConfigError(
                        f"the tasks of this run want more GPUs than this machine has ({has.gpus}); {name} gets none"
                    )
                self._gpus[name], free = ",".join(free[: wanted.gpus]), free[wanted.gpus :]
            if wanted.cpus is not None:
                self._threads[name] = wanted.cpus

    def start(self, order: Order, line: Line, ended: Callable[[Started], None]) -> Started:
        """Start a task as a child process."""
        env = dict(order.env)
        if order.name in self._threads:
            env = {name: str(self._threads[order.name]) for name in THREADS if name not in self._environ} | env
        if order.name in self._gpus:
            env.setdefault(GPUS, self._gpus[order.name])
        return Child(order, env, line, ended)


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs that this process may give to tasks, as CUDA_VISIBLE_DEVICES names them."""
    if GPUS in environ:
        return [name for name in environ[GPUS].split(",") if name.strip()]
    devices = os.listdir("/dev") if os.path.isdir("/dev") else []
    return sorted((name[6:] for name in devices if name[:6] == "nvidia" and name[6:].isdecimal()), key=int)


def memory_bytes() -> int | None:
    """The memory of this machine; None if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
