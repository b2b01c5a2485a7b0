"""What a run of many tiny variables costs: seconds to open it, to step, to save and to restore it.

    python benchmarks/many.py                              # 1,000, 10,000 and 100,000 variables of 16, 1 and 2 ps
    python benchmarks/many.py --counts 100000 --ps 1 --profile
    python benchmarks/many.py --counts 100000,1 --total 1000000 --ps 2 --checkpoint        # the same bytes in one
    python benchmarks/many.py --counts 1 --total 250000000 --ps 2 --calls 5 --checkpoint   # 1 GB

After each figure, in brackets: the processor seconds of all tasks in it. The chief and the ps are processes. With
--profile all tasks are threads of this process, and a table for each thread says which functions its time goes to; what
is profiled takes two to three times as long.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import psutil  # type: ignore[import-untyped]  # noqa: E402

from benchmarks.profiling import NODE, functions, table  # noqa: E402
from dps import (  # noqa: E402
    Server,
    Session,
    optim,
)
from dps.monitor.setting import Setting  # noqa: E402
from dps.transport.current import runtime  # noqa: E402

ELEMENTS = 16
Found = dict[str, tuple[float, float]]
"""By phase: seconds by the clock, and of all processors in all tasks."""
TIMEOUT_S = 300.0


def main(argv: Sequence[str]) -> int:
    """Measure; prints a line for each number of variables and of ps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="1000,10000,100000", help="numbers of variables, comma-separated")
    parser.add_argument("--total", type=int, help=f"elements of all variables; else {ELEMENTS} of each")
    parser.add_argument("--ps", default="1,2", help="numbers of ps, comma-separated")
    parser.add_argument("--calls", type=int, default=20, help="of each work; the median is shown")
    parser.add_argument("--checkpoint", action="store_true", help="save, and restore in another cluster, too")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--top", type=int, default=25, help="lines of each profile")
    args = parser.parse_args(argv)
    for ps in map(int, args.ps.split(",")):
        for count in map(int, args.counts.split(",")):
            with profiles(args.top, count) if args.profile else contextlib.nullcontext():
                elements = ELEMENTS if args.total is None else args.total // count
                transport = "inproc" if args.profile else "tcp"
                found = measured(count, elements, ps, args.calls, transport, args.checkpoint)
            told = ", ".join(f"{phase} {s:.4f} ({cpu:.4f}) s" for phase, (s, cpu) in found.items())
            print(f"{count:7,} variables of {elements:,}, {ps} ps: {told}", flush=True)
    return 0


def measured(count: int, elements: int, ps: int, calls: int, transport: str, checkpoint: bool) -> Found:
    """What each phase costs; of those that are called often, the median."""
    params = {f"layer_{i}": np.full(elements, 0.5, np.float32) for i in range(count)}
    grads = {name: np.full(elements, 0.25, np.float32) for name in params}
    setting = Setting("dense", transport, "small", ps=ps)
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="dps-many-") as folder:
        options: dict[str, Any] = {"checkpoint_dir": folder} if checkpoint else {}
        with setting.cluster() as server:
            _trained(server, params, grads, calls, options, found)
        if checkpoint:
            with setting.cluster() as server:
                clock = _Clock()
                with _session(server, params, options) as session:
                    found["restore"] = clock.read()
                    assert next(iter(session.pull().values()))[0] != 0.5
                    session.request_stop()
    return found


def _session(server: Server, params: dict[str, Any], options: dict[str, Any]) -> Session:
    return Session(server, params, optimizer=optim.SGD(0.1), timeout=TIMEOUT_S, **options)


def _trained(
    server: Server, params: dict[str, Any], grads: dict[str, Any], calls: int, options: dict[str, Any],
    found: Found,
) -> None:  # fmt: skip
    clock = _Clock()
    with _session(server, params, options) as session:
        found["open"] = clock.read()
        found["first step"] = _seconds(lambda: session.step(grads), 1)
        found["step"] = _seconds(lambda: session.step(grads), calls)
        found["pull"] = _seconds(session.pull, calls)
        found["push"] = _seconds(lambda: session.push(grads), calls)
        found["gradients"] = _seconds(session.gradients, calls)
        in_place = session.gradients()
        for array in in_place.values():
            array[...] = 0.25
        found["step in place"] = _seconds(lambda: session.step(in_place), calls)
        if options:
            found["save"] = _seconds(session.save, 1)
        session.request_stop()


def _seconds(work: Callable[[], object], calls: int) -> tuple[float, float]:
    """The median of some calls, and the mean of their processor time."""
    found, total = [], _Clock()
    for _ in range(calls):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found), total.read()[1] / calls


class _Clock:
    """Seconds since it was made: by the clock, and of all processors in this process and those it started."""

    def __init__(self) -> None:
        self._tasks = [psutil.Process(), *psutil.Process().children(recursive=True)]
        self._began, self._cpu = time.perf_counter(), self._used()

    def _used(self) -> float:
        return sum(sum(task.cpu_times()[:2]) for task in self._tasks)

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._began, self._used() - self._cpu


@contextlib.contextmanager
def profiles(top: int, calls: int) -> Iterator[None]:
    """Profiles this thread and those of all nodes that start meanwhile; prints microseconds per variable."""
    clock, found = runtime(), {"this thread": cProfile.Profile()}
    spawn = clock.spawn

    def spawn_profiled(name: str, run: Callable[[], None]) -> Any:
        if not name.startswith(NODE):
            return spawn(name, run)
        profile = found[name] = cProfile.Profile()
        return spawn(name, lambda: profile.runcall(run))

    clock.spawn = spawn_profiled  # type: ignore[assignment,method-assign]
    try:
        found["this thread"].runcall(lambda: None)
        found["this thread"].enable()
        yield
    finally:
        found["this thread"].disable()
        del clock.spawn
        for name, profile in found.items():
            print(f"\n{name}, microseconds a variable\n{table(functions(profile), 'own', top, calls)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
