"""How cost grows past this machine: predicted by the simulator, and how far its predictions lie from the real thing.

    python benchmarks/predict.py                        # about 15 minutes on 2 cores, most of it for 1,000 x 100
    python benchmarks/predict.py --most 100             # nothing beyond 100 workers; 3 minutes
    python benchmarks/predict.py --plot FILE.json       # draw again

1. Measures with one worker what a push costs: CPU of ps and worker, the rest of a round trip; and what it costs more
   when they have rested.
2. Lets the real chief, ps and sessions run in the simulator on a machine with as many cores, where messages cost that.
3. Holds pushes per second of 1, 2, 4 and 8 workers, over those of one, against the real thing in the same rounds. Cores
   that programs of others took meanwhile are taken from the simulated machine, too.
4. Predicts growth up to 1,000 workers x 100 ps, each on a machine of its own, from costs over sockets.

JSON goes to benchmarks/results/prediction-DATE.json, the plot to docs/pictures/prediction.svg (needs matplotlib).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import service_times  # noqa: E402
from benchmarks.scaling_plot import draw  # noqa: E402
from benchmarks.service_times import RESTS  # noqa: E402
from benchmarks.simulating import Model, messages_of_a_push, simulated  # noqa: E402
from dps.monitor.setting import Setting  # noqa: E402
from dps.monitor.works import nbytes  # noqa: E402
from dps.transport.sim import Handling, Machines  # noqa: E402

Row = dict[str, Any]
Costed = Mapping[str, float]
"""Medians as `service_times.medians` gives them."""
Rested = tuple[tuple[float, float], ...]

PICTURE = ROOT / "docs" / "pictures" / "prediction.svg"
SIZES = ("4k", "small", "1m")
COUNTS = (1, 2, 4, 8)
WITHIN = 0.3
"""How far a prediction may lie from what was measured."""
SHORTEST_S = 1e-6
COMPUTE_S, NETWORK_BYTES_PER_S, NETWORK_S = 0.1, 25e9 / 8, 50e-6
"""Of the machines whose growth is predicted: a worker's computing between pushes; the network, 25 Gbit/s and 50 us."""
PUSHES = 3
"""Of each worker; all but the first count, and the simulated machines have no noise to average away."""
GROWTH_SIZE = "100x256"
"""100 KB; on 100 ps one variable of 1 KB each."""


@dataclass(frozen=True)
class Costs:
    """CPU seconds of a push over sockets: fitted by lines over its size, for a machine of its own for each task."""

    ps_s: float
    ps_byte_s: float
    session_s: float
    """Of a worker, once a push."""
    worker_s: float
    """Of a worker, for each ps."""
    worker_byte_s: float

    def handling(self) -> dict[str, Handling]:
        """By job. What a worker does for one ps lies half before the message and half after the answer."""
        return {
            "ps": Handling(self.ps_s, self.ps_byte_s), "chief": Handling(self.ps_s),
            "worker": Handling(self.worker_s / 2, 0.0, self.worker_s / 2, self.worker_byte_s),
        }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Measure, predict, compare and draw; 0 also where a prediction is off: the figures say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transports", default="tcp,socket", help="tcp: with shared memory; socket: without")
    parser.add_argument("--sizes", default=",".join(SIZES), help="as of dps bench; the growth needs two and socket")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="least time of one sample")
    parser.add_argument("--pushes", type=int, default=60, help="of each simulated worker, in the comparison")
    parser.add_argument("--most-here", type=int, default=COUNTS[-1], help="workers that are really started")
    parser.add_argument("--most", type=int, default=1000, help="workers in the predicted growth; 0 leaves it out")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/prediction-DATE.json")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an earlier run's file, measure nothing")
    args = parser.parse_args(argv)
    if args.plot:
        draw(pictured(json.loads(args.plot.read_text())), args.picture)
        return 0
    counts = [count for count in COUNTS if count <= args.most_here]
    rows: list[Row] = []
    for transport in args.transports.split(","):
        for size in args.sizes.split(","):
            rows += checked(Setting("dense", transport, size, workers=counts[-1]), counts, args)
            print("\n".join([HEAD, *map(check_line, rows[-len(counts) :])]), flush=True)
    about = {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    found: Row = {"machine": about, "results": rows}
    if args.most:
        spread = service_times.measured(Setting("dense", "socket", "small", ps=4), [1], args.rounds, args.seconds)[1]
        ones = [row for row in rows if row["transport"] == "socket" and row["x"] == 1]
        costs = fitted(ones, spread)
        rested = next(row["rested"] for row in ones if row["size"] == "small")
        found |= {"costs": asdict(costs), "rested": rested}
        print(costs, rested, flush=True)
        for row in growth(costs, args.most, rested):
            rows.append(row)
            print(growth_line(row), flush=True)
    out = args.out or ROOT / "benchmarks" / "results" / time.strftime("prediction-%Y-%m-%d.json")
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(verdict(rows))
    draw(pictured(found), args.picture)
    return 0


# -- the real thing beside the simulated one ----------------------------------------------------------------------


def checked(setting: Setting, counts: Sequence[int], args: argparse.Namespace) -> list[Row]:
    """For each number of workers: measured, predicted from one worker's costs, and by how much they differ.

    `with_own_costs` is no prediction: it has the CPU time that a push took with so many workers, so that what is off
    there is the simulator's, and the rest is that a push costs more, or less, when there are more workers.
    """
    print(f"{setting} ...", file=sys.stderr, flush=True)
    real = service_times.measured(setting, [*RESTS, *counts], args.rounds, args.seconds)
    one, rows = real[1], list[Row]()
    rested = rested_of(real)
    for count in counts:
        here = real[count]
        measured = here["per_s"] / one["per_s"]
        outcome, _ = simulated(like_here(setting, one, one, here, rested, count, args.pushes))
        known, _ = simulated(like_here(setting, one, here, here, (), count, args.pushes))
        row = {
            "sweep": "check", "x": count, "transport": setting.transport, "size": setting.size,
            "nbytes": setting.nbytes, "measured": measured, "simulated_per_s": outcome.per_s,
            "with_own_costs_per_s": known.per_s, **here, "rested": rested,
        }  # fmt: skip
        rows.append(row)
        for name, per_s in (("predicted", outcome.per_s), ("with_own_costs", known.per_s)):
            row[name] = per_s / rows[0]["simulated_per_s"]
            row[f"{name}_off_by"] = row[name] / measured - 1
    return rows


def like_here(
    setting: Setting, one: Costed, costs: Costed, now: Costed, rested: Rested, workers: int, pushes: int
) -> Model:
    """This machine. What a worker does lies half before and half after the trip, whose rest takes what `one` says.

    `costs`: CPU seconds of a push. `now`: how many cores others took while it was measured. `rested`: as Machines
    have it.
    """
    cores = os.cpu_count() or 1
    model = Model(workers, setting.ps, setting.size, pushes, Machines(cores, True), 0.0, shared_memory=setting.shared)
    messages = messages_of_a_push(model)
    handling = {
        "ps": Handling(received_s=costs["ps_s"] / messages),
        "worker": Handling(received_s=costs["worker_s"] / 2, sent_s=costs["worker_s"] / 2 / messages),
    }
    return replace(
        model, machines=Machines(cores, True, handling, rested=rested),
        latency_s=max(SHORTEST_S, (one["p50_s"] - one["worker_s"] - one["ps_s"]) / 2),
        others_cores=min(now["others_cores"], cores - 0.5),
    )  # fmt: skip


def rested_of(real: Mapping[int, Costed]) -> Rested:
    """What a process's work takes more after a rest, of worker and ps the mean. One worker rests between pushes, too,
    while its ps works; that costs nothing more here: it is in what a push costs."""
    one = real[1]
    least = max(0.0, one["p50_s"] - _cpu_s(one) / 2)
    more = {rest_s: max(0.0, _cpu_s(real[number]) - _cpu_s(one)) / 2 for number, rest_s in RESTS.items()}
    return ((least, 0.0), *((least + rest_s, more[rest_s]) for rest_s in sorted(more)))


def _cpu_s(costs: Costed) -> float:
    return costs["worker_s"] + costs["ps_s"]


# -- growth -------------------------------------------------------------------------------------------------------


def fitted(ones: Sequence[Row], spread: Mapping[str, float]) -> Costs:
    """Lines through one worker's costs by size; `spread`: the costs of "small" on 4 ps, `ones` has it on one."""
    sizes = np.array([row["nbytes"] for row in ones], float)
    line = np.stack([np.ones_like(sizes), sizes], 1)

    def fit(name: str) -> tuple[float, float]:
        """Least squares of the relative error."""
        costs = np.array([row[name] for row in ones])
        (start, slope), *_ = np.linalg.lstsq(line / costs[:, None], np.ones_like(costs), rcond=None)
        return max(0.0, float(start)), max(0.0, float(slope))

    ps, worker = fit("ps_s"), fit("worker_s")
    small = next(row for row in ones if row["size"] == "small")
    each = min(max(0.0, (spread["worker_s"] - small["worker_s"]) / 3), worker[0])
    return Costs(*ps, worker[0] - each, each, worker[1])


def growth(costs: Costs, most: int, rested: Rested = ()) -> Iterator[Row]:
    """Predicted: 1 to 1,000 workers that compute 0.1 s between pushes, on 1, 10 and 100 ps, a core and a card each."""
    machines = Machines(1, False, costs.handling(), NETWORK_BYTES_PER_S, rested)
    points = [(ps, workers, GROWTH_SIZE) for ps in (1, 10, 100) for workers in (1, 10, 30, 100, 300, 1000)]
    points += [(ps, workers, "100x2621") for ps in (1, 10) for workers in (1, 10, 30, 100)]
    for ps, workers, size in points:
        if workers > most or ps > most:
            continue
        began = time.monotonic()
        model = Model(workers, ps, size, PUSHES, machines, NETWORK_S, COMPUTE_S, costs.session_s)
        outcome, _ = simulated(model)
        yield {
            "sweep": "growth", "x": workers, "ps": ps, "nbytes": nbytes(size), **asdict(outcome),
            "bound": bound(outcome.ps_busy, outcome.worker_busy), "took_s": time.monotonic() - began,
        }  # fmt: skip


def bound(ps_busy: float, worker_busy: float) -> str:
    """Who is at work all the time. Where it is the workers, more of them give as much more."""
    if ps_busy > 0.9:
        return "ps"
    return "workers" if worker_busy > 0.9 else "neither"


# -- what is printed ----------------------------------------------------------------------------------------------

HEAD = (
    "transport size    workers   measured  predicted   off by  own costs   off by   pushes/s  ps us  worker us  "
    "others' cores"
)


def check_line(row: Row) -> str:
    """A row of the comparison."""
    return (
        f"{row['transport']:9} {row['size']:7} {row['x']:7} {row['measured']:10.2f} {row['predicted']:10.2f} "
        f"{row['predicted_off_by']:+8.0%} {row['with_own_costs']:10.2f} {row['with_own_costs_off_by']:+8.0%} "
        f"{row['per_s']:10.0f} {row['ps_s'] * 1e6:6.0f} {row['worker_s'] * 1e6:10.0f} {row['others_cores']:14.2f}"
    )


def growth_line(row: Row) -> str:
    """A row of the prediction."""
    return (
        f"{row['nbytes'] / 1e3:6.0f} KB {row['x']:5} workers x {row['ps']:3} ps: {row['per_s']:8.0f} pushes/s, "
        f"{row['push_s'] * 1e3:8.2f} ms a push, busy: ps {row['ps_busy']:.2f}, worker {row['worker_busy']:.2f} "
        f"(bound by {row['bound']}); "
        f"simulated in {row['took_s']:.0f} s"
    )


def pictured(found: Row) -> Row:
    """The same as `draw` takes it: a row for each line of a panel. Only tcp is compared in the picture."""
    rows = [row for row in found["results"] if row["sweep"] == "growth"]
    for row in found["results"]:
        if row["sweep"] == "check" and row["transport"] == "tcp":
            rows += [{**row, "rate": row[way], "line": f"{row['size']} {way}"} for way in ("measured", "predicted")]
    return {**found, "results": rows, "title": "tcp with shared memory; growth: a machine for each task, 25 Gbit/s"}


def verdict(rows: Sequence[Row]) -> str:
    """How good the comparison was, in a few lines."""
    more = [row for row in rows if row["sweep"] == "check" and row["x"] > 1]
    disturbed = [row for row in more if row["quiet"] < service_times.LEAST_QUIET]
    lines = [f"{_within(more, 'predicted_off_by')} of {len(more)} predictions are within {WITHIN:.0%}"]
    lines += [
        f"{_within(more, 'with_own_costs_off_by')} would be, were it known what a push costs beside so many workers"
    ]
    if disturbed:
        lines += [f"in {len(disturbed)} of them other programs took cores meanwhile"]
    return "; ".join(lines)


def _within(rows: Sequence[Row], name: str) -> int:
    return sum(abs(row[name]) <= WITHIN for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
