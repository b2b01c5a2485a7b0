"""The works of scale_out.py in the simulator: how far predictions lie from what was measured over slow links.

    python benchmarks/predict_links.py                                  # the newest results of scale_out.py; 5 minutes
    python benchmarks/predict_links.py benchmarks/results/2026-11-27-1-scale-out.json --json out.json

Each row of a result of scale_out.py is one simulation of the same chief, ps, workers and calls: all tasks on one
machine with the cores and costs of a calibration, each ps with a card whose rate is that of its link. TCP and IP take
their part of it (`links.MOST`). Keys, other programs and the bursts that `tc` lets pass are not modelled. MB/s are
compared as they are, not as ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dps  # noqa: E402
from benchmarks.links import MOST  # noqa: E402
from benchmarks.predict import WITHIN  # noqa: E402
from benchmarks.scale_out import Case, rate  # noqa: E402
from benchmarks.scale_out_sides import DIM, TABLE_ROWS, VARIABLES, row_lists  # noqa: E402
from dps.launch.commands.simulate import SimulatedCluster  # noqa: E402
from dps.transport.sim import Calibration, Machines  # noqa: E402
from dps.transport.sim.calibration import chosen  # noqa: E402
from dps.transport.tuning import ORDINARY  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
LONGEST_S = 36_000.0
TUNING = ORDINARY.where(block_nbytes=1 << 20, store__pool_threads=1, store__made_pause_s=1e-3)
"""As on real machines, but passes let other tasks run, and no threads run outside of the virtual time."""
Row = dict[str, Any]


@dataclass
class Calls:
    """What the workers of one simulated cluster do: as many calls as there were really, and one before."""

    case: Case
    calls: int
    times: dict[int, list[float]] = field(default_factory=dict)
    """When each worker began to make its calls, and when each call ended."""
    ready: int = 0

    def train(self, server: dps.Server) -> None:
        """One worker."""
        case, clock = self.case, server.runtime
        with self._session(server) as session:
            call = self._call(session, server.task)
            call()
            self.ready += 1
            while self.ready < case.workers:
                clock.sleep(0.01)
            self.times[server.task] = [clock.now()]
            for _ in range(self.calls):
                call()
                self.times[server.task].append(clock.now())

    def _session(self, server: dps.Server) -> Any:
        case = self.case
        params: dict[str, Any]
        if case.work == "rows":
            params = {"table": dps.Variable(shape=(TABLE_ROWS, DIM), init=dps.init.Zeros(), sparse=True)}
        else:
            shape = (case.nbytes // 4 // VARIABLES,)
            params = {f"v{i}": dps.Variable(shape=shape, init=dps.init.Zeros()) for i in range(VARIABLES)}
        partitioner = dps.partition.Fixed(case.ps) if case.work == "rows" else None
        return dps.Session(
            server,
            params,
            optimizer=dps.optim.SGD(0.01),
            update=case.update,
            partitioner=partitioner,
            timeout=LONGEST_S,
        )

    def _call(self, session: Any, task: int) -> Any:
        case = self.case
        if case.work == "rows":
            values, lists = np.ones((case.rows, DIM), np.float32), row_lists(task, case.rows)

            def rows() -> None:
                wanted = next(lists)
                session.lookup("table", wanted)
                session.push({"table": dps.Rows(wanted, values)})

            return rows
        gradients = {f"v{i}": np.full(case.nbytes // 4 // VARIABLES, 0.1, np.float32) for i in range(VARIABLES)}
        calls = {"push": lambda: session.push(gradients), "pull": session.pull, "step": lambda: session.step(gradients)}
        return calls[case.work]


def machines_of(case: Case, calibration: Calibration) -> Machines:
    """One machine for all tasks, with a card for each ps; what the links of others carry has no limit."""
    link = case.megabits * 125_000 * MOST
    return replace(calibration.machines(), shared=True, bytes_per_s=inf, cards={"ps": link})


def predicted(case: Case, calls: int, calibration: Calibration) -> float:
    """MB/s of values or gradients in one direction, of all workers. RuntimeError where a task ended with an error."""
    made = Calls(case, calls)
    network = dps.sim.Network(max(1e-6, calibration.sockets.trip_s), 0.0, 1e12)
    with SimulatedCluster(
        made.train, ps=case.ps, workers=case.workers, restarts=0, network=network, tuning=TUNING, preempt=0.0,
        machines=machines_of(case, calibration), clock_offsets=False, trace=False,
    ) as cluster:  # fmt: skip
        run = cluster.run(LONGEST_S)
    if run.errors or any(len(times) <= calls for times in made.times.values()):
        raise RuntimeError(f"the simulation of {case} failed: {next(iter(run.errors.items()), 'not all ended')}")
    return rate(list(made.times.values())) * case.nbytes / 1e6


def compared(row: Row, calibration: Calibration) -> Row:
    """A row of scale_out.py beside its prediction."""
    case = Case(**{name: row[name] for name in ("work", "update", "workers", "ps", "megabits", "nbytes", "rows")})
    began, real = time.monotonic(), row["systems"]["dps"]["MB_per_s"]
    found = predicted(case, row["calls"], calibration)
    about = {name: row[name] for name in ("work", "update", "workers", "ps", "megabits", "nbytes", "load")}
    return {
        **about, "measured_MB_per_s": real, "predicted_MB_per_s": round(found, 2),
        "off_by": round(found / real - 1, 3), "took_s": round(time.monotonic() - began, 1),
    }  # fmt: skip


def line(row: Row) -> str:
    """A row for people, as a row of a table of Markdown."""
    rates = [f"{row[name]:.1f}" for name in ("measured_MB_per_s", "predicted_MB_per_s")]
    work = f"{row['work']}, {row['nbytes'] / 1e6:.0f} MB"
    cells = [work, row["update"], row["workers"], row["ps"], *rates, f"{row['off_by']:+.0%}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def main(argv: Sequence[str]) -> int:
    """Predict and compare; 0 also where a prediction is off: the figures say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "results", type=Path, nargs="*", help="of scale_out.py --json; default: the newest of those here"
    )
    parser.add_argument("--calibration", default="shipped", help="a file of dps bench --calibrate")
    parser.add_argument("--most-mb", type=float, default=inf, help="leave out models with more")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    args = parser.parse_args(argv)
    calibration = chosen(args.calibration)
    assert calibration is not None
    files = args.results or [sorted(RESULTS.glob("*-scale-out.json"))[-1]]
    rows = []
    print(f"calibration: {calibration}")
    print("| work | update | workers | ps | measured, MB/s | predicted | off by |\n| --- " * 1 + "| --- " * 6 + "|")
    for file in files:
        for row in json.loads(file.read_text())["results"]:
            if row["nbytes"] <= args.most_mb * 1e6:
                rows.append(compared(row, calibration))
                print(line(rows[-1]), flush=True)
    good = sum(abs(row["off_by"]) <= WITHIN for row in rows)
    print(f"{good} of {len(rows)} predictions are within {WITHIN:.0%}")
    if args.json:
        args.json.write_text(json.dumps({"calibration": str(calibration), "results": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
