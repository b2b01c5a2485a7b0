"""The processors, memory and GPUs that a machine has for tasks, and how the GPUs are dealt out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from dps.errors import ConfigError
from dps.launch.supervision.plan import Resources
from dps.process.config import THREADS, cores

GPUS = "CUDA_VISIBLE_DEVICES"


class Machine:
    """The resources of one machine, and which of its GPUs are taken. `memory` in bytes; None: the system does not
    tell."""

    def __init__(self, name: str, cpus: int, memory: int | None, gpus: Sequence[str]) -> None:
        self.name = name
        self._has = Resources(cpus, memory, len(gpus))
        self._free = list(gpus)
        self._gpus: dict[str, list[str]] = {}
        """The GPUs of each task."""

    def assign_share(self, task: str, wanted: Resources) -> dict[str, str]:
        """Give a task what it wants; returns the variables that tell it. Raises ConfigError if there is less."""
        for what in ("cpus", "memory", "gpus"):
            want, there = getattr(wanted, what), getattr(self._has, what)
            if want is not None and there is not None and want > there:
                want, there = (f"{n / 1e9:.1f} GB" if what == "memory" else n for n in (want, there))
                raise ConfigError(f"{task} wants {what}: {want}; {self.name} has {there}; ask for less")
        found: dict[str, str] = {}
        if wanted.gpus is not None:
            self.take_share_back(task)
            if wanted.gpus > len(self._free):
                raise ConfigError(
                    f"the tasks of this run want more GPUs than {self.name} has ({self._has.gpus}); {task} gets none"
                )
            self._gpus[task], self._free = self._free[: wanted.gpus], self._free[wanted.gpus :]
            found[GPUS] = ",".join(self._gpus[task])
        if wanted.cpus is not None:
            found |= dict.fromkeys(THREADS, str(wanted.cpus))
        return found

    def take_share_back(self, task: str) -> None:
        """A task needs its GPUs no more."""
        self._free += self._gpus.pop(task, [])

    def as_dict(self) -> dict[str, object]:
        """Plain values, of which `machine_from` makes it again elsewhere."""
        return {"cpus": self._has.cpus, "memory": self._has.memory, "gpus": self._free}


def this_machine(environ: Mapping[str, str]) -> Machine:
    """The machine of this process."""
    return Machine("this machine", cores(), memory_bytes(), visible_gpus(environ))


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
