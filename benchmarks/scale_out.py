"""More ps, where the ps's network cards are the limit: dps beside raw TCP, and torch RPC, over the same slow links.

    sudo python benchmarks/scale_out.py                                     # all of it: about 40 minutes
    sudo python benchmarks/scale_out.py --megabytes 20 --workers 1,4 --rounds 1    # about 10 minutes
    sudo python benchmarks/scale_out.py --json > out.json
    python benchmarks/scale_out.py --plot out.json ...                      # table and picture of earlier runs

Chief, each ps and each worker are network namespaces around a switch; `tc` limits the link of each ps, both ways. The
links of workers have no limit, so what the ps's links carry is the limit, also on a host of two cores. Needs Linux,
root and iproute2.

Works: `step` (gradients up, values down), `push`, `pull`, and `rows` (a lookup of rows, then a push of their gradients)
of a table with a part on each ps; SGD, with keys. In a round all workers make as many calls of each system, by turns.
MB/s: values or gradients in one direction, of all workers, from when each has made a call until the first has made its
last. Raw TCP moves as many bytes over a connection from each worker to each ps, and does not use them: a synchronous
step's values leave when all gradients are here, others' at once. torch RPC (TensorPipe over TCP, without encryption) is
measured where build/peers/torch has it (`benchmarks/peers/run.py --environments`), or --torch names a Python that has
it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.links import MOST, Machine, NoLinks, star  # noqa: E402
from benchmarks.scale_out_sides import ROW_NBYTES  # noqa: E402
from dps.process.config import environment  # noqa: E402
from dps.transport.keys import files as key_files  # noqa: E402

PICTURE = ROOT / "docs" / "pictures" / "scale-out.svg"
SIDES, TORCH_SIDE = (str(ROOT / "benchmarks" / name) for name in ("scale_out_sides.py", "peers/torch_links.py"))
TORCH = ROOT / "build" / "peers" / "torch" / "bin" / "python"
WORKS, UPDATES = ("step", "push", "pull", "rows"), ("async", "sync")
START_S, SLACK = 120.0, 20.0
"""How long processes may take to start; and how many times as long as its link needs a work may take, beside 60 s."""
BURST_KB = 80
"""A small call gets no more than this from each ps for nothing."""
FEWEST = 2
"""The fewest calls of a worker that count in a round."""
GOAL_TIMES, GOAL_OF_RAW = 3.2, 0.85


@dataclass(frozen=True)
class Case:
    """What is measured with one cluster of each system."""

    work: str
    update: str
    workers: int
    ps: int
    megabits: int
    nbytes: int
    """Of the values of the model; of those that one call moves in a direction, with rows."""
    rows: int

    @property
    def link_s(self) -> float:
        """What one call of all workers takes at least, by the links."""
        ways = 2 if self.work == "rows" or (self.work, self.update) == ("step", "sync") else 1
        return ways * self.workers * self.nbytes / (self.ps * self.megabits * 125_000 * MOST)

    def calls(self, seconds: float) -> int:
        """How many calls each worker makes in a round: those of so many seconds, and one before they count."""
        return 1 + max(FEWEST, round(seconds / self.link_s))

    def share(self, per_s: float) -> float:
        """Which part of the rate of all links carries values or gradients in one direction, at so many calls a second
        of all workers."""
        return per_s * self.nbytes / (self.ps * self.megabits * 125_000)


class Ended(Exception):
    """A process has ended, or has not answered in time."""


class Side:
    """The processes of one system, which make calls when they are told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._others: list[subprocess.Popen[str]] = []
        self._workers: list[subprocess.Popen[str]] = []
        self._logs: list[IO[str]] = []

    def start(self, machine: Machine, command: Sequence[str], worker: bool = False) -> subprocess.Popen[str]:
        """Start a process. A worker's orders go to its standard input."""
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environ = {**environment(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*machine.enter, *command], env=environ, text=True, stderr=log, stdout=subprocess.PIPE,
            stdin=subprocess.PIPE if worker else subprocess.DEVNULL,
        )  # fmt: skip
        (self._workers if worker else self._others).append(process)
        self._logs.append(log)
        return process

    def lines(self, processes: Sequence[subprocess.Popen[str]], within_s: float) -> list[str]:
        """The next line of each. Raises Ended with what was said if one does not come in time."""
        timer = threading.Timer(within_s, self.kill)
        timer.start()
        try:
            found = [process.stdout.readline() for process in processes if process.stdout is not None]
        finally:
            timer.cancel()
        if not all(found):
            said = "".join(log.read()[-1500:] for log in self._logs if log.seek(0) == 0)
            raise Ended(f"{self.name}: a process has ended, or did not answer within {within_s:.0f} s\n{said}")
        return found

    def wait_ready(self) -> None:
        self.lines(self._workers, START_S)

    def make(self, calls: int, within_s: float) -> tuple[float, float]:
        """So many calls in each worker. Returns calls a second (see `rate`), and the bytes that have left and come at
        all workers."""
        self._order(str(calls))
        found = [json.loads(line) for line in self.lines(self._workers, within_s)]
        return rate([each["times"] for each in found]), sum(each["nbytes"] for each in found)

    def result_of_first(self, order: str, within_s: float) -> Any:
        """Give all workers an order, and return what the first one says. Raises Ended."""
        self._order(order)
        return json.loads(self.lines(self._workers[:1], within_s)[0])

    def _order(self, line: str) -> None:
        """Write a line to the standard input of each worker."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{line}\n")
            worker.stdin.flush()

    def kill(self) -> None:
        """End all of them; they lose nothing by it."""
        for process in (*self._workers, *self._others):
            process.kill()

    def close(self) -> None:
        """End all of them, and give back what they used."""
        self.kill()
        for process in (*self._workers, *self._others):
            process.wait(30)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        for log in self._logs:
            log.close()


def rate(times: Sequence[Sequence[float]]) -> float:
    """Calls a second of all workers, from when each has made one until the first of them has made its last. A call that
    is only partly in that time counts in part. So nothing of the time counts in which links fill or run empty. With few
    calls this is too high where workers get unequal shares: those that go on alone are faster than they were before.

    `times`: of each worker, when it began and when each call ended. With one call each it is from the first one's begin
    to the last one's end."""
    import numpy as np

    begin, end = max(own[1] for own in times), min(own[-1] for own in times)
    if begin >= end:
        return sum(len(own) - 1 for own in times) / (max(own[-1] for own in times) - min(own[0] for own in times))
    made = [np.interp([begin, end], own, range(len(own))) for own in times]
    return float(sum(last - first for first, last in made)) / (end - begin)


def dps_side(side: Side, machines: Mapping[str, Machine], case: Case, keys: str) -> None:
    """Start a run of dps."""
    role = [sys.executable, "-m", "dps.role", "--keys", keys, "--job"]
    bind = f"{machines['chief'].address}:2220"
    sizes = ["--ps", str(case.ps), "--workers", str(case.workers)]
    chief = side.start(machines["chief"], [*role, "chief", "--bind", bind, "--owned", *sizes])
    side.lines([chief], START_S)
    for task in range(case.ps):
        side.start(machines[f"ps:{task}"], [*role, "ps", "--task", str(task), "--chief", bind])
    for task in range(case.workers):
        about = {**asdict(case), "task": task, "chief": bind, "keys": keys}
        side.start(machines[f"worker:{task}"], [sys.executable, SIDES, "dps", json.dumps(about)], worker=True)


def raw_side(side: Side, machines: Mapping[str, Machine], case: Case) -> None:
    """Start both ends of raw TCP."""
    about = json.dumps({**asdict(case), "ps": [machines[f"ps:{task}"].address for task in range(case.ps)]})
    for task in range(case.ps):
        side.start(machines[f"ps:{task}"], [sys.executable, SIDES, "raw-ps", about])
    for task in range(case.workers):
        side.start(machines[f"worker:{task}"], [sys.executable, SIDES, "raw", about], worker=True)


def torch_side(side: Side, machines: Mapping[str, Machine], case: Case, python: str) -> None:
    """Start a parameter server of torch RPC."""
    tasks = [("ps", task) for task in range(case.ps)] + [("worker", task) for task in range(case.workers)]
    for rank, (job, task) in enumerate(tasks):
        about = {**asdict(case), "job": job, "task": task, "rank": rank, "first": machines["ps:0"].address}
        command = [python, TORCH_SIDE, json.dumps(about)]
        side.start(machines[f"{job}:{task}"], command, worker=job == "worker")


def measured(case: Case, machines: Mapping[str, Machine], rounds: int, seconds: float, torch: str) -> dict[str, Any]:
    """One row of the result. Raises Ended."""
    calls = case.calls(seconds)
    within_s = 60 + SLACK * calls * case.link_s
    with contextlib.ExitStack() as stack:
        keys = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "keys")
        key_files.new(keys)
        sides = {name: Side(name) for name in ("raw", "dps", *(["torch"] if torch else []))}
        for side in sides.values():
            stack.callback(side.close)
        raw_side(sides["raw"], machines, case)
        dps_side(sides["dps"], machines, case, keys)
        if torch:
            torch_side(sides["torch"], machines, case, torch)
        for side in sides.values():
            side.wait_ready()
            side.make(1, within_s)
        found: dict[str, list[float]] = {name: [] for name in sides}
        moved: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            names = list(sides)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                per_s, nbytes = sides[name].make(calls, within_s)
                found[name].append(per_s)
                moved[name].append(nbytes)
    return row_of(case, calls, found, moved)


def row_of(case: Case, calls: int, found: dict[str, list[float]], moved: dict[str, list[float]]) -> dict[str, Any]:
    """The figures of a case."""
    useful = calls * case.workers * case.nbytes
    ratios = [own / raw for raw, own in zip(found["raw"], found["dps"], strict=True)]
    ways = 2 if case.work in ("step", "rows") else 1
    systems = {
        name: {
            "calls_per_s": [round(each, 4) for each in rates],
            "MB_per_s": round(statistics.median(rates) * case.nbytes / 1e6, 2),
            "share": round(case.share(statistics.median(rates)), 3),
            "bytes_for_one": round(statistics.median(moved[name]) / useful / ways, 3),
        }
        for name, rates in found.items()
    }
    return {
        **asdict(case), "calls": calls, "systems": systems,
        "of_raw": round(statistics.median(ratios), 3), "of_raw_from": round(min(ratios), 3),
        "of_raw_to": round(max(ratios), 3), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """All that are asked for: those that are compared follow each other."""
    whole = [numbers(text) for text in (args.workers, args.ps)]
    for work, update, workers, ps in itertools.product(args.works.split(","), args.updates.split(","), *whole):
        nbytes = args.rows * ROW_NBYTES if work == "rows" else args.megabytes * 1_000_000
        if not (work == "pull" and update == "sync"):
            yield Case(work, update, workers, ps, args.megabits, nbytes, args.rows)


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def times_of_one(rows: Sequence[dict[str, Any]]) -> dict[int, float]:
    """By number in `rows`: how many times as much dps carries as with the fewest ps of the same work and workers."""
    base: dict[tuple[Any, ...], float] = {}
    found: dict[int, float] = {}
    for number, row in enumerate(rows):
        own = row["systems"]["dps"]["MB_per_s"]
        found[number] = own / base.setdefault((row["work"], row["update"], row["workers"]), own)
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The result as a table of Markdown."""
    torch = any("torch" in row["systems"] for row in rows)
    head = ["work", "update", "workers", "ps", "dps, MB/s", "times one ps", "of the links", "raw TCP, of the links",
            "of raw TCP", *(["torch RPC, MB/s"] if torch else [])]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for row, times in zip(rows, times_of_one(rows).values(), strict=True):
        own, raw, other = (row["systems"].get(name) for name in ("dps", "raw", "torch"))
        cells = [
            row["work"], row["update"], row["workers"], row["ps"], f"{own['MB_per_s']:.1f}", f"{times:.2f}",
            f"{own['share']:.2f}", f"{raw['share']:.2f}",
            f"{row['of_raw']:.2f} ({row['of_raw_from']:.2f} to {row['of_raw_to']:.2f})",
            *([f"{other['MB_per_s']:.1f}" if other else ""] if torch else []),
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def meaning(rows: Sequence[dict[str, Any]]) -> str:
    """One line that says what the table means."""
    told: list[str] = []
    grown = times_of_one(rows)
    for work in dict.fromkeys(row["work"] for row in rows):
        own = {number: row for number, row in enumerate(rows) if row["work"] == work}
        fewest, most = (choose(row["ps"] for row in own.values()) for choose in (min, max))
        times = span([grown[number] for number, row in own.items() if row["ps"] == most])
        growth = f"{times} times as fast with {most} ps as with {fewest}, and " if most > fewest else ""
        told.append(f"{work} {growth}{span([row['of_raw'] for row in own.values()])} of raw TCP")
    held = sum(row["of_raw"] >= GOAL_OF_RAW for row in rows)
    goals = f"(goals: {GOAL_TIMES} times with 4 ps, {GOAL_OF_RAW} of raw TCP, which {held} of {len(rows)} reach)"
    return f"{'; '.join(told)} {goals}"


def span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a case failed, 2 where there can be no links."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default="step,rows", help="some of " + ", ".join(WORKS))
    parser.add_argument("--updates", default="async,sync")
    parser.add_argument("--workers", default="1,2,4,8", help="numbers of workers")
    parser.add_argument("--ps", default="1,2,4", help="numbers of ps, the fewest first")
    parser.add_argument("--megabits", type=int, default=100, help="of the link of each ps, each way")
    parser.add_argument("--megabytes", type=int, default=100, help="of the dense model")
    parser.add_argument("--rows", type=int, default=8192, help="of 256 bytes, in one call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a system in a round, if one call takes less")
    parser.add_argument("--congestion", default="cubic", help="of TCP; empty: this machine's")
    parser.add_argument("--queue-ms", type=int, default=20, help="of a link: how long bytes wait at most, ms")
    parser.add_argument("--torch", default=str(TORCH) if TORCH.exists() else "", help="a Python that has torch")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", type=Path, help="where to draw")
    parser.add_argument(
        "--plot", type=Path, nargs="+", metavar="FILE", help="show JSON of earlier runs, measure nothing"
    )
    args = parser.parse_args(argv)
    if unknown := set(args.works.split(",")) - set(WORKS) or set(args.updates.split(",")) - set(UPDATES):
        parser.error(f"{', '.join(sorted(unknown))}: wanted some of {', '.join((*WORKS, *UPDATES))}")
    if args.plot:
        runs = [json.loads(path.read_text()) for path in args.plot]
        shown = {**runs[0], **{name: [each for run in runs for each in run[name]] for name in ("results", "failures")}}
        show(shown, args.picture or PICTURE, as_json=args.json)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended, and namespaces are deleted
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    tasks = {f"{job}:{task}": rate for job, count, rate in (
        ("ps", max(numbers(args.ps)), args.megabits), ("worker", max(numbers(args.workers)), 0)
    ) for task in range(count)}  # fmt: skip
    try:
        with star({"chief": 0, **tasks}, args.congestion, args.queue_ms, BURST_KB) as machines:
            for case in cases(args):
                try:
                    rows.append(measured(case, machines, args.rounds, args.seconds, args.torch))
                except Ended as error:
                    failures.append(f"{case}: {error}")
                print((json.dumps(rows[-1]) if not failures else failures[-1])[:2000], file=sys.stderr, flush=True)
    except NoLinks as error:
        print(f"scale_out.py: {error}", file=sys.stderr)
        return 2
    about = {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    show({"machine": about, "results": rows, "failures": failures}, args.picture, args.json)
    return 1 if failures else 0


def show(found: dict[str, Any], picture: Path | None, as_json: bool) -> None:
    """Print the result, and draw it."""
    if picture is not None:
        from benchmarks.scale_out_plot import draw

        draw(found, picture)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    print("\n".join([table(found["results"]), "", meaning(found["results"]), *found["failures"]]))


if __name__ == "__main__":
    sys.exit(main())
