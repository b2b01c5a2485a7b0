"""Two commits at the same time, in short bursts by turns: for differences of a few percent on a noisy machine.

    python benchmarks/by_turns.py main~5 HEAD                  # 150 rounds of everything
    python benchmarks/by_turns.py v1 HEAD --rounds 400 --works push --elements 100000

`benchmarks/two_commits.py` runs one commit after the other, so a machine that changes its speed within seconds shows
as a difference of the commits. Here both clusters live at once, each with its ps and the workers that the work needs,
and only one of them works at a time: a round is a burst of calls with one commit and a burst with the other; who goes
first alternates. A ratio is the time of BASE over the time of HEAD in one round: above 1, HEAD is faster. The table
shows the median ratio, the middle half of all rounds, and the median time of a call; and the same of the processor
time that all processes of a cluster take for a call, which other load changes less.

Works: push, step, step in place (of `gradients`, and the values are viewed; where a commit has no `step_in_place`, a
push and a view), and pull with push, asynchronous, SGD; sync, a synchronous step of two workers. Each ps, on this
machine, has one variable of float32 of --elements.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORKS = ("push", "step", "step in place", "pull and push", "sync")
UNCOUNTED = 5
"""The first rounds, in which kernels are compiled and caches filled."""
START_S = 120.0


# -- in a process of one commit -----------------------------------------------------------------------------------


def serve(folder: str, kind: str, ps: int, elements: int, bursts: int, calls: int) -> None:
    """A cluster of the dps that is imported. Blocks until all bursts are made."""
    import dps

    with dps.LocalCluster(ps=ps, workers=2 if kind == "sync" else 1, processes=True) as local:
        local.run(train, folder, kind, ps, elements, bursts, calls).wait()


def train(server: Any, folder: str, kind: str, ps: int, elements: int, bursts: int, calls: int) -> None:
    """One worker. The first one makes a burst for each line that it is sent, and answers with the seconds of a call;
    a second one makes as many steps."""
    import numpy as np

    import dps

    params = {f"w{at}": np.zeros(elements, np.float32) for at in range(ps)}
    grads = {name: np.full(elements, 1e-6, np.float32) for name in params}
    update = "sync" if kind == "sync" else "async"
    with dps.Session(server, params, optimizer=dps.optim.SGD(0.1), update=update) as session:
        if server.task != 0:
            for _ in range(bursts * calls):
                session.step(grads)
            return

        def both() -> None:
            session.pull()
            session.push(grads)

        shared = session.gradients()
        for array in shared.values():
            array[...] = 1e-6

        def in_place() -> None:
            if hasattr(session, "step_in_place"):
                with session.step_in_place(shared):
                    return
            session.push(shared)
            with session.view():
                return

        works: dict[str, Callable[[], object]] = {
            "push": lambda: session.push(grads), "step": lambda: session.step(grads), "step in place": in_place,
            "pull and push": both, "sync": lambda: session.step(grads),
        }  # fmt: skip
        with open(f"{folder}/asked") as asked, open(f"{folder}/told", "w", buffering=1) as told:
            for line in asked:
                call = works[line.strip()]
                began = time.perf_counter()
                for _ in range(calls):
                    call()
                print((time.perf_counter() - began) / calls, file=told)


# -- over both commits --------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """Seconds of a call."""

    time: float
    processor: float


class Served:
    """The cluster of one commit, in processes of its own."""

    def __init__(self, tree: Path, folder: Path, kind: str, *numbers: int) -> None:
        """`numbers`: as of `serve`, from `ps` on."""
        folder.mkdir()
        for name in ("asked", "told"):
            os.mkfifo(folder / name)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DPS_")}
        given = [str(folder), kind, *map(str, numbers)]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve", *given],
            cwd=tree, env={**environ, "PYTHONPATH": str(tree)}, stdout=sys.stderr,
        )  # fmt: skip
        self._asked, self._told = self._open(folder / "asked", "w"), self._open(folder / "told", "r")

    def _open(self, path: Path, mode: str) -> IO[str]:
        """Open a pipe once the worker has it open; SystemExit where it ends before, or does not come."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                made = os.open(path, (os.O_WRONLY if mode == "w" else os.O_RDONLY) | os.O_NONBLOCK)
            except OSError:  # nobody reads it yet
                time.sleep(0.05)
                continue
            os.set_blocking(made, True)
            return os.fdopen(made, mode, buffering=1)
        raise SystemExit(f"{path.parent}: the worker did not come within {START_S:.0f} s; its output is above")

    def burst(self, work: str, calls: int) -> Cost:
        """What one of its calls costs. Blocks."""
        began_s = self._processor_s()
        print(work, file=self._asked)
        line = self._told.readline()
        while not line and self._process.poll() is None:  # the worker has not opened its end yet
            time.sleep(0.01)
            line = self._told.readline()
        if not line:
            raise SystemExit("a worker ended in the middle of its work; its output is above")
        return Cost(float(line), (self._processor_s() - began_s) / calls)

    def _processor_s(self) -> float:
        """The processor time that the processes of this cluster have taken; nan where the system does not tell it."""
        found, nanoseconds = [self._process.pid], 0
        for pid in found:  # it grows by their children
            with contextlib.suppress(FileNotFoundError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (thread / "children").read_text().split())
                    nanoseconds += int((thread / "schedstat").read_text().split()[0])
        return nanoseconds / 1e9 or float("nan")

    def close(self) -> None:
        self._asked.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self._process.kill()
        self._told.close()


def rounds_of(
    trees: Sequence[Path], works: Sequence[str], elements: int, rounds: int, calls: int, ps: int = 1
) -> dict[str, list[tuple[Cost, Cost]]]:  # fmt: skip
    """By work: a list of pairs (of a call with BASE, with HEAD), one for each counted round."""
    found: dict[str, list[tuple[Cost, Cost]]] = {work: [] for work in works}
    for kind in ("async", "sync"):
        mine = [work for work in works if (work == "sync") == (kind == "sync")]
        if not mine:
            continue
        bursts = (rounds + UNCOUNTED) * len(mine)
        with tempfile.TemporaryDirectory(prefix="dps-turns-") as folder, contextlib.ExitStack() as stack:
            served = []
            for number, tree in enumerate(trees):
                served.append(Served(tree, Path(folder) / f"{number}", kind, ps, elements, bursts, calls))
                stack.callback(served[-1].close)
            for number in range(rounds + UNCOUNTED):
                first = number % 2
                for work in mine:
                    costs = {at: served[at].burst(work, calls) for at in (first, 1 - first)}
                    if number >= UNCOUNTED:
                        found[work].append((costs[0], costs[1]))
    return found


def lines_of(found: dict[str, list[tuple[Cost, Cost]]]) -> Iterator[str]:
    """The tables."""
    yield f"{'HEAD is so many times as fast':30} {'median':>7} {'middle half':>13} {'BASE':>9} {'HEAD':>9}"
    yield from _rows_of({work: [(base.time, head.time) for base, head in costs] for work, costs in found.items()})
    yield "by the processor time of all processes"
    by_processor = {work: [(base.processor, head.processor) for base, head in costs] for work, costs in found.items()}
    yield from _rows_of(by_processor)


def _rows_of(found: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[str]:
    for work, pairs in found.items():
        ratios = sorted(base / head for base, head in pairs)
        low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
        base, head = (1e6 * statistics.median(times) for times in zip(*pairs, strict=True))
        yield f"{work:30} {statistics.median(ratios):7.3f} {low:6.2f}-{high:.2f} {base:6.1f} us {head:6.1f} us"


def main(argv: Sequence[str]) -> int:
    """Compare two commits; returns the exit code."""
    if list(argv[:1]) == ["--serve"]:
        folder, kind, *numbers = argv[1:]
        serve(folder, kind, *map(int, numbers))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE")
    parser.add_argument("head", metavar="HEAD")
    parser.add_argument("--works", default=",".join(WORKS), help=f"some of {', '.join(WORKS)}")
    parser.add_argument("--ps", type=int, default=1)
    parser.add_argument("--elements", type=int, default=1000, help="of the variable that each ps has")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--calls", type=int, default=200, help="of a burst")
    args = parser.parse_args(argv)
    works = args.works.split(",")
    if unknown := [work for work in works if work not in WORKS]:
        parser.error(f"--works {','.join(unknown)} is not known; wanted some of {', '.join(WORKS)}")
    if min(args.ps, args.elements, args.rounds, args.calls) < 1:
        parser.error("--ps, --elements, --rounds and --calls: wanted at least 1")
    sys.path.insert(0, str(ROOT))
    from benchmarks.two_commits import worktrees

    with worktrees([args.base, args.head]) as trees:
        found = rounds_of(trees, works, args.elements, args.rounds, args.calls, args.ps)
    print("\n".join(lines_of(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
