"""Measures what processes of this machine use: processor time, memory and GPUs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from dps.launch.runs.gpus import gpus_used
from dps.transport.clock import now

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def cpu_s(pid: int) -> float | None:
    """Processor seconds of a process and its threads; None if it is not there."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return None


def memory_mb(pid: int) -> float | None:
    """Resident memory in MB; None if the process is not there."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return None


class Meter:
    """Measures tasks of this machine again and again. For one thread."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float]] = {}
        """The time of each process's last measurement, and its processor seconds then."""

    def used(self, pids: Mapping[str, int]) -> dict[str, dict[str, float]]:
        """What these processes use, by the names of their tasks: `memory_mb`; from the second time on `cpu_percent`,
        the processor time since the last time (100: one processor); and what NVML tells. Those that have ended are
        left out."""
        at, gpus, before = now(), gpus_used(), self._before
        found: dict[str, dict[str, float]] = {}
        self._before = {}
        for name, pid in pids.items():
            cpu, memory = cpu_s(pid), memory_mb(pid)
            if cpu is None or memory is None:
                continue
            self._before[pid] = at, cpu
            found[name] = {"memory_mb": memory, **gpus.get(pid, {})}
            then, cpu_then = before.get(pid, (at, cpu))
            if at > then:
                found[name]["cpu_percent"] = 100 * max(0.0, cpu - cpu_then) / (at - then)
        return found
