"""What the processes of this machine use: processor time, memory, GPU memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

from dps.launch.runs.identity import start_of

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
ASK_S = 5.0


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


def is_same(pid: int | None, start: str) -> bool:
    """Whether this pid still means the process that started then."""
    return pid is not None and start != "" and start_of(pid) == start


def gpu_memory_mb() -> dict[int, float] | None:
    """GPU memory in MB by process; None if this machine has no nvidia-smi, or it does not answer."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, check=True, timeout=ASK_S).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    used: dict[int, float] = {}
    for line in told.splitlines():
        pid, _, amount = line.partition(",")
        if pid.strip().isdecimal() and amount.strip().isdecimal():
            used[int(pid)] = used.get(int(pid), 0.0) + float(amount) * 1.048576
    return used


def used_by(pids: dict[str, int]) -> dict[str, dict[str, float]]:
    """Processor seconds and memory of these processes, by the names of their tasks. Those that are not there are left
    out."""
    found: dict[str, dict[str, float]] = {}
    for name, pid in pids.items():
        cpu, memory = cpu_s(pid), memory_mb(pid)
        if cpu is not None and memory is not None:
            found[name] = {"cpu_s": cpu, "memory_mb": memory}
    return found
