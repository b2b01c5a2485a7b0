"""What a push or pull costs on this machine: CPU seconds of worker and ps, seconds of a round trip, calls a second.

CPU seconds are those of all threads of a process, read from /proc (Linux). One cluster holds all workers; in each round
all loads come in turn, so that all figures see the same machine. In some a worker rests between its calls: what a call
takes more then is what caches lose, and many workers wait as long for their turns.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dps.monitor.beside import ExtraWorker, workers
from dps.monitor.setting import Roles, Setting
from dps.task.server import Server
from dps.transport.current import runtime

QUIET_CORES = 0.3
"""Up to so many cores taken by other programs a round counts as undisturbed."""
LEAST_QUIET = 3
"""Rounds; with fewer undisturbed ones all are taken."""


Costed = Mapping[str, float]
"""Medians as `medians` gives them."""


class CostLoad(NamedTuple):
    """What one sample measures: so many workers at a work; the only one rests for `rest_s` between its calls."""

    workers: int = 1
    rest_s: float = 0.0
    work: str = "push"


@dataclass(frozen=True)
class Sample:
    """One round of a load."""

    load: CostLoad
    per_s: float
    """Calls per second of all workers."""
    p50_s: float
    """Of a call of the first worker, from begin to result."""
    worker_s: float
    ps_s: float
    """CPU seconds of a call: of the first worker, and of all ps together."""
    others_cores: float
    """Cores that other programs kept busy meanwhile."""


@dataclass
class MeasuredCluster:
    """A chief, ps and workers as processes; the first worker is this one."""

    calls: Mapping[str, Callable[[], object]]
    """Of the first worker, by work."""
    others: list[ExtraWorker]
    ps: list[int]
    """Process ids."""

    def sample(self, load: CostLoad, at_least_s: float) -> Sample:
        """Let the load's workers work for a while. Blocks."""
        call, rest_s, others = self.calls[load.work], load.rest_s, self.others[: load.workers - 1]
        for beside in others:
            beside.begin_work(load.work)
        for _ in range(5):
            call()
        busy, ours, own, theirs = _busy_s(), _ours_s(), cpu_s(os.getpid()), sum(map(cpu_s, self.ps))
        now, took, resting_s = runtime().now, list[float](), 0.0
        began = now()
        while (at := now()) < began + at_least_s or len(took) < 5:
            if rest_s:
                before = _thread_s()
                runtime().sleep(rest_s)
                resting_s += _thread_s() - before
                at = now()
            call()
            took.append(now() - at)
        wall = now() - began
        own, theirs = cpu_s(os.getpid()) - own - resting_s, sum(map(cpu_s, self.ps)) - theirs
        taken = max(0.0, _busy_s() - busy - (_ours_s() - ours)) / wall
        per_s = len(took) / wall + sum([beside.end_work() for beside in others])
        return Sample(load, per_s, statistics.median(took), own / len(took), theirs / wall / per_s, taken)


@contextlib.contextmanager
def cluster(setting: Setting) -> Iterator[MeasuredCluster]:
    """All of a setting's tasks, joined and warm."""
    with Roles() as roles, contextlib.ExitStack() as stack:
        counts = ["--ps", str(setting.ps), "--workers", str(setting.workers)]
        target = roles.start(["--job", "chief", "--chief", "127.0.0.1:0", *counts, "--owned"])
        for task in range(setting.ps):
            roles.start(["--job", "ps", "--task", str(task), "--chief", target, "--bind", "127.0.0.1:0"])
        server = stack.enter_context(Server(None, "worker", 0, chief=target, trusted_network=True))
        others = stack.enter_context(workers(target, setting))
        with setting.session(server) as session:
            calls = setting.calls(session)
            for beside in others:
                beside.answers.get(timeout=60)
            yield MeasuredCluster(calls, others, [process.pid for process in roles.processes[1:]])
            for beside in others:
                beside.orders.put("end")
            session.request_stop()


def measured(
    setting: Setting, loads: Sequence[CostLoad], rounds: int, at_least_s: float
) -> dict[CostLoad, dict[str, Any]]:
    """For each load the medians over the rounds in which other programs were quiet. Blocks."""
    with cluster(setting) as running:
        samples = [running.sample(load, at_least_s) for _ in range(rounds) for load in loads]
    return {load: medians([s for s in samples if s.load == load]) for load in loads}


def medians(samples: Sequence[Sample]) -> dict[str, Any]:
    """Of each figure; `quiet`: how many rounds were undisturbed. With too few of those all rounds are taken."""
    quiet = [s for s in samples if s.others_cores <= QUIET_CORES]
    chosen = quiet if len(quiet) >= LEAST_QUIET else samples
    names = ("per_s", "p50_s", "worker_s", "ps_s", "others_cores")
    found: dict[str, Any] = {name: statistics.median(getattr(s, name) for s in chosen) for name in names}
    return {**found, "rounds": len(samples), "quiet": len(quiet)}


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process; those that ended count no more. 0 for one that is gone."""
    total = 0
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total / 1e9


def _thread_s() -> float:
    """CPU seconds of the calling thread."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


def _ours_s() -> float:
    """CPU seconds of this process and all below it."""
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += cpu_s(pid)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                waiting += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return total


def _busy_s() -> float:
    """Seconds that the machine's cores were not idle, over all cores."""
    fields = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    user, nice, system, idle, iowait, interrupts, soft, stolen = fields
    del idle, iowait
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
