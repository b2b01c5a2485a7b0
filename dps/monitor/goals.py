"""Compares measured figures with the goals for dps alone: which are met, and by how much others are missed.

Goals against other systems are in `benchmarks/peers`, memory in `benchmarks/memory.py`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dps.cluster.partition import MinSize
from dps.cluster.placement import Greedy
from dps.monitor import loops, works
from dps.monitor.rounds import PROBE_NBYTES, Rounds, Turn
from dps.monitor.setting import Setting, kernel, loop
from dps.monitor.works import IN_PLACE, REPEATED
from dps.process import config
from dps.training import optimizers as optim
from dps.transport import limits
from dps.transport.current import runtime
from dps.variables.planning import plan_of

Row = dict[str, Any]

KERNEL_NBYTES = 256 << 20
STARTS = 3
"""How often launches are timed; imports are timed three times as often."""
GROUND, OURS = "zmq, msgpack, numpy", "dps; dps.Session"


@dataclass(frozen=True)
class Goal:
    """A figure and its goal: at least `wanted`, or with `at_most` at most that."""

    work: str
    figure: float
    wanted: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        return self.figure <= self.wanted if self.at_most else self.figure >= self.wanted

    @property
    def verdict(self) -> str:
        """ "holds", or by how much the goal is missed."""
        if self.holds:
            return "holds"
        missing = self.figure / self.wanted - 1 if self.at_most else 1 - self.figure / self.wanted
        return f"{'over' if self.at_most else 'short'} by {missing:.0%}"


def settings() -> Iterator[tuple[Setting, list[str]]]:
    """The settings to measure, apart from kernels and starts."""
    pull, push, step, sync = ("pull", "push", "step", "sync")
    for wire in ("tcp", "socket"):
        yield Setting("dense", wire, "4k"), [pull, push]
    yield Setting("dense", "tcp", "64m"), [pull, pull + IN_PLACE]
    yield Setting("dense", "tcp", "resnet"), [pull, pull + IN_PLACE, push, push + IN_PLACE, step, step + IN_PLACE]
    yield Setting("dense", "socket", "64m"), [pull, push]
    yield Setting("dense", "socket", "256m"), [pull, push]
    yield Setting("dense", "socket", "resnet"), [pull, push, step]
    yield Setting("sparse", "tcp", "table", "adagrad"), [f"sparse {w}{e}" for e in ("", REPEATED) for w in (pull, push)]
    yield Setting("sync", "tcp", "small", workers=2), [sync, sync + IN_PLACE]
    for computing_ms in (0.7, 8.0, 20.0):
        yield loop(computing_ms), [f"loop {form}" for form in loops.FORMS]
    for computing_ms in (0.7, 8.0):
        yield loop(computing_ms, workers=2), [f"loop {form}" for form in ("step", "overlapped")]


def judged(results: list[Row], rounds: int, at_least_s: float) -> list[dict[str, Any]]:
    """All goals with their measured figures. Measures kernels and starts itself; blocks."""
    memory_gb_per_s, found = kernels(rounds, at_least_s)
    found += [*speeds(results, memory_gb_per_s), *starts(), balance()]
    return [{**asdict(goal), "holds": goal.holds, "verdict": goal.verdict} for goal in found]


def speeds(results: list[Row], memory_gb_per_s: float) -> Iterator[Goal]:
    """Goals on the figures of `settings`. `memory_gb_per_s`: memcpy of 256 MB."""
    for row in results:
        form = " in place" if row["in_place"] else ""
        name = f"{row['work']}{form} {row['size']}, {row['lane']}"
        if row["work"].startswith("loop"):
            yield from _loop(row)
        elif row["work"] == "sparse push":
            wanted = 5.0 * min(1.0, memory_gb_per_s / 10)
            work = f"sparse push, {row['lists']} lists, {row['lane']}, million rows/s (5 where memcpy has 10 GB/s)"
            yield Goal(work, row["rows_per_s"] / 1e6, wanted)
        elif row["work"] == "sparse pull":
            continue
        elif row["size"] == "4k":
            yield Goal(f"{name}: p50 / that of {row['limit']}", 1 / row["of_limit"], 1.3, at_most=True)
        elif (wanted_here := _wanted(row)) is not None:
            yield Goal(f"{name} / {row['limit']}", row["of_limit"], wanted_here)


def _wanted(row: Row) -> float | None:
    """The goal of a dense work, as its speed over its limit's; None if there is no goal."""
    if row["work"] == "sync":
        return 0.85 if row["size"] == "small" else None
    if not row["shared_memory"]:
        return 1.6 if row["work"] == "step" else 1.2
    # In place a pull moves nothing, so it takes as long as reading the values alone; a copy would take twice as long.
    in_place = {"pull": 0.85, "step": 0.85}
    copied = {"pull": 1.0, "step": 0.75}
    return (in_place if row["in_place"] else copied).get(row["work"])


LOOPS = {("step", 0.7): 0.30, ("in place", 0.7): 0.20, ("overlapped", 0.7): 0.05}
"""The share by which a loop may be slower than local training, by its form and a step's computing milliseconds."""
LONG_STEPS, TWO_WORKERS = 0.02, {0.7: 1.3, 8.0: 1.7}
"""The same for all forms at 20 ms; and the goal for two workers' speed over one local process's, by milliseconds."""


def _loop(row: Row) -> Iterator[Goal]:
    form = "in place" if row["in_place"] else row["work"].removeprefix("loop ")
    name = f"loop, {form}, {row['computing_ms']:g} ms of computing"
    if row["workers"] > 1:
        wanted = TWO_WORKERS[row["computing_ms"]]
        yield Goal(f"{name}, {row['workers']} workers / one local process", row["of_limit"], wanted)
        return
    most = LONG_STEPS if row["computing_ms"] >= 20 else LOOPS.get((form, row["computing_ms"]))
    if most is not None:
        yield Goal(f"{name}: time over local training", 1 / row["of_limit"] - 1, most, at_most=True)


def kernels(rounds: int, at_least_s: float, nbytes: int = KERNEL_NBYTES) -> tuple[float, list[Goal]]:
    """Measure update kernels in place against memcpy; returns memcpy's GB/s first."""
    found = Rounds()
    with limits.raw_tcp(PROBE_NBYTES) as probe:
        turns = {"memcpy": Turn(limits.memcpy(nbytes))}
        turns |= {name: Turn(kernel(name, nbytes)) for name in ("adagrad", "sgd")}
        for _ in range(rounds):
            found.measure(probe, turns, at_least_s)
    memcpy = found.median_s("memcpy")
    wanted = {"adagrad": 0.65, "sgd": 1.1}
    goals = [Goal(f"{name} kernel / memcpy", memcpy / found.median_s(name), wanted[name]) for name in wanted]
    return nbytes / memcpy / 1e9, goals


def starts(times: int = STARTS) -> list[Goal]:
    """Measure `import dps`, alone and against its dependencies, and a launch up to every worker's first step."""
    with tempfile.TemporaryDirectory() as folder:
        environ = with_bytecode(folder)
        for modules in (GROUND, OURS):
            _import(modules, environ)
        pairs = [(_import(GROUND, environ), _import(OURS, environ)) for _ in range(3 * times)]
        launches = [_launch(2, 2, environ) for _ in range(1 + times)][1:]
    ground, ours = (statistics.median(each) for each in zip(*pairs, strict=True))
    launch = statistics.median(launches)
    return [
        Goal("import dps with its Session, seconds", ours, 0.2, at_most=True),
        Goal("the same / import of zmq, msgpack, numpy", ours / ground, 1.3, at_most=True),
        Goal("launch of chief, 2 ps, 2 workers to the first steps, seconds", launch, 1.5, at_most=True),
    ]


def with_bytecode(folder: str) -> dict[str, str]:
    """The environment of a launched task in which Python keeps bytecode under `folder`, as for an installed package.

    If PYTHONDONTWRITEBYTECODE is set and dps runs from its source, each process compiles all of dps again, which takes
    0.1 s and more.
    """
    environ = {**config.environment(), "PYTHONPYCACHEPREFIX": folder}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return environ


def _import(modules: str, environ: dict[str, str]) -> float:
    code = f"import time; t = time.perf_counter(); import {modules}; print(time.perf_counter() - t)"
    return float(_output([sys.executable, "-c", code], environ).split()[-1])


def _launch(ps: int, workers: int, environ: dict[str, str]) -> float:
    program = str(Path(__file__).with_name("first_step.py"))
    began = runtime().now()
    flags = ["launch", "--ps", str(ps), "--workers", str(workers), program]
    output = _output([sys.executable, "-m", "dps.cli", *flags], environ)
    return (
        max(float(line.split("first step at ")[1]) for line in output.splitlines() if "first step at " in line) - began
    )


def _output(command: list[str], environ: dict[str, str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environ, check=True).stdout


def balance(ps: int = 4) -> Goal:
    """Bytes per ps, the most over the mean, of the ResNet-50-like set with the greedy policy and a partitioner."""
    plan, _ = plan_of(
        works.params("resnet"), optim.SGD(0.01), list(range(ps)), Greedy(ps), MinSize(256 << 10, max_shards=ps)
    )
    loads = plan.bytes_per_ps().values()
    most = max(loads) / (sum(loads) / ps)
    return Goal("bytes per ps, most over mean, resnet on 4 ps, greedy with partitioner", most, 1.05, at_most=True)


def table(goals: list[dict[str, Any]]) -> str:
    """One line per goal."""
    lines = ["", f"{'goal':92} {'measured':>9} {'wanted':>10}  "]
    for goal in goals:
        wanted = f"{'<=' if goal['at_most'] else '>='} {goal['wanted']:.2f}"
        lines.append(f"{goal['work']:92} {goal['figure']:>9.2f} {wanted:>10}  {goal['verdict']}")
    return "\n".join([*lines, ""])
