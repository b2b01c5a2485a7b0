"""Measures what processes of this machine use: processor time, memory and GPUs."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Mapping
from typing import Any

from dps.transport.clock import now, pause

LOOK_S = 2.0


class Gpus:
    """Looks every 2 s, on a thread of its own, because a driver may hang. `latest`: of each process that uses a GPU its
    `gpu_memory_mb`, and its `gpu_percent` if the driver tells it."""

    def __init__(self, nvml: Any) -> None:
        self.latest: dict[int, dict[str, float]] = {}
        self._nvml = nvml
        self._seen: dict[int, int] = {}
        """The time up to which the samples of each GPU were read."""

    def watch(self) -> None:
        """Look again and again. Never returns."""
        while True:
            with contextlib.suppress(self._nvml.NVMLError):
                self.read_gpus()
            pause(LOOK_S)

    def read_gpus(self) -> None:
        """Read all GPUs once."""
        found: dict[int, dict[str, float]] = {}
        for number in range(self._nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(self._nvml.NVMLError):
                self._read_gpu(number, found)
        self.latest = found

    def _read_gpu(self, number: int, found: dict[int, dict[str, float]]) -> None:
        device = self._nvml.nvmlDeviceGetHandleByIndex(number)
        processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
        busy = self._busy_percent(number, device, [process.pid for process in processes])
        for process in processes:
            of = found.setdefault(process.pid, {})
            if process.usedGpuMemory is not None:
                of["gpu_memory_mb"] = of.get("gpu_memory_mb", 0.0) + process.usedGpuMemory / 1e6
            if process.pid in busy:
                of["gpu_percent"] = of.get("gpu_percent", 0.0) + busy[process.pid]

    def _busy_percent(self, number: int, device: Any, pids: list[int]) -> dict[int, float]:
        """How many percent of the time each process computes on a GPU. Where the driver does not tell processes apart,
        a process that is alone there has what the GPU has."""
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(device, self._seen.get(number, 0))
        except nvml.NVMLError as error:
            if getattr(error, "value", None) == nvml.NVML_ERROR_NOT_FOUND:  # nobody has computed since
                return dict.fromkeys(pids, 0.0)
            return {pids[0]: float(nvml.nvmlDeviceGetUtilizationRates(device).gpu)} if len(pids) == 1 else {}
        self._seen[number] = max((sample.timeStamp for sample in samples), default=0)
        latest = {sample.pid: float(sample.smUtil) for sample in sorted(samples, key=lambda sample: sample.timeStamp)}
        return dict.fromkeys(pids, 0.0) | latest


_gpus: Gpus | None = None
_asked = False


def gpus_used() -> dict[int, dict[str, float]]:
    """The use of each process, as it was measured last. {} if no process uses a GPU, or NVML or its package is
    missing."""
    global _gpus, _asked
    if not _asked:
        _asked = True
        _gpus = _find_gpus()
    return {} if _gpus is None else _gpus.latest


def _find_gpus() -> Gpus | None:
    """The GPUs of this machine, which are being watched from now on."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no package, no driver, or one that it does not know: there are no figures
        return None
    gpus = Gpus(nvml)
    threading.Thread(target=gpus.watch, name="dps looks at GPUs", daemon=True).start()
    return gpus


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


class UsageMeter:
    """Measures tasks of this machine again and again. For one thread."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float]] = {}
        """The time of each process's last measurement, and its processor seconds then."""

    def measure_tasks(self, pids: Mapping[str, int]) -> dict[str, dict[str, float]]:
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
