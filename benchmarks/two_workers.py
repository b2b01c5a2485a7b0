"""What two workers make of two cores, of which one local process uses one: steps a second, over those of the process.

    python benchmarks/two_workers.py [--rounds 5] [--elements 1350000 --milliseconds 7]

Without --elements the model is the MNIST network of `dps bench` (407 KB); with it, one array of float32 and a step that
multiplies small matrices for so many milliseconds. In each round, by turns: one process trains alone while the other
waits; both train alone at the same time, which no ps can make faster; both train through one ps on the same machine,
asynchronous and synchronous, each in the forms `step`, in place and (asynchronous only) overlapped with and without
copies. A figure is the median over the rounds of the steps a second of both, over those of the one alone in the same
round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.overhead import RATE, Model, products_for
from dps.monitor.loops import Computing, MeasuredLoop, loops_through
from dps.monitor.rounds import rotated

ALONE, APART = "one local process", "two local processes"
FORMS = {"async": ("step", "in place", "overlapped", "overlapped in place"), "sync": ("step", "in place")}
BURST_S = 0.25
UNCOUNTED = 1
START_S, LATE_S = 60.0, 120.0

Steps = Callable[[int], None]


class Meeting:
    """Where the two workers meet before each burst: numbers of each in a file of 32 bytes that both map."""

    def __init__(self, path: str, task: int) -> None:
        mapped = np.memmap(path, np.int64, "r+", shape=(4,))
        self._met, self.counts, self._task = mapped[:2], mapped[2:], task

    def meet(self) -> None:
        """Wait for the other one. Blocks; TimeoutError if it does not come within 120 s."""
        self._met[self._task] += 1
        end = time.monotonic() + LATE_S
        while self._met[1 - self._task] < self._met[self._task]:
            if time.monotonic() > end:
                raise TimeoutError(f"worker:{1 - self._task} has not come within {LATE_S:.0f} s")
            time.sleep(0.0002)


def local_loop(params: Mapping[str, Any], computing: Any) -> Steps:
    """Plain training in this process, with SGD."""

    def steps(count: int) -> None:
        for _ in range(count):
            grads = computing.gradients(params)
            for name, values in params.items():
                values -= RATE * grads[name]

    return steps


def train(
    server: Any, path: str, update: str, rounds: int, elements: int, milliseconds: float
) -> list[dict[str, float]]:
    """One of two workers. Seconds of each burst, by its name, and the steps that it made; rounds that count."""
    import dps

    computing: Any = Model(elements, products_for(milliseconds)) if elements else Computing(1)
    params = {"w": computing.values} if elements else MeasuredLoop().params()
    meeting, found = Meeting(path, server.task), list[dict[str, float]]()
    local = local_loop({key: value.copy() for key, value in params.items()}, computing)
    with dps.Session(server, params, optimizer=dps.optim.SGD(float(RATE)), update=update) as session:
        through = loops_through(session, computing)
        loops: dict[str, Steps] = {ALONE: local, APART: local, **{form: through[form] for form in FORMS[update]}}
        began = time.perf_counter()
        local(20)
        count = meeting_count(meeting, server.task, max(4, round(BURST_S * 20 / (time.perf_counter() - began))))
        for number in range(rounds + UNCOUNTED):
            took = {"steps": float(count)}
            for loop in rotated(list(loops), number):
                meeting.meet()
                if loop != ALONE or server.task == 0:
                    began = time.perf_counter()
                    loops[loop](count)
                    took[loop] = time.perf_counter() - began
            if number >= UNCOUNTED:
                found.append(took)
        meeting.meet()
    return found


def meeting_count(meeting: Meeting, task: int, own: int) -> int:
    """As many steps for both workers: in sync neither makes one alone."""
    meeting.meet()
    meeting.counts[task] = own
    meeting.meet()
    return int(meeting.counts.min())


def ratios(first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Steps a second of both workers over those of the first alone, by loop; medians over the rounds."""
    found: dict[str, list[float]] = {}
    for one, other in zip(first, second, strict=True):
        for loop in one.keys() - {"steps", ALONE}:
            found.setdefault(loop, []).append(one[ALONE] / one[loop] + one[ALONE] / other[loop])
    return {loop: statistics.median(values) for loop, values in found.items()}


def measured(update: str, rounds: int, elements: int, milliseconds: float) -> tuple[float, dict[str, float]]:
    """Seconds of a step alone, and the ratios."""
    import dps

    with tempfile.NamedTemporaryFile() as file, dps.LocalCluster(ps=1, workers=2, processes=True) as local:
        file.write(bytes(32))
        file.flush()
        run = local.run(train, file.name, update, rounds, elements, milliseconds)
        first, second = run.wait(timeout=START_S + 60 * rounds, progress=False).results
    return statistics.median(took[ALONE] / took["steps"] for took in first), ratios(first, second)


def main(argv: Sequence[str]) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--elements", type=int, default=0, help="of the model; 0: the MNIST network")
    parser.add_argument("--milliseconds", type=float, default=7.0, help="that a step computes, with --elements")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("--rounds: wanted at least 1")
    for update, forms in FORMS.items():
        alone_s, found = measured(update, args.rounds, args.elements, args.milliseconds)
        print(f"{update}: one local process takes {1e3 * alone_s:.2f} ms for a step; steps a second over its")
        for loop in (APART, *forms):
            name = loop if loop == APART else f"two workers, {loop}"
            print(
                f"  {name:<26}{found[loop]:6.2f}   of two local processes {found[loop] / found[APART]:5.2f}", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
