"""How cost grows past this machine: predicted by the simulator, and how far its predictions lie from the real thing.

    python benchmarks/predict.py                        # about an hour on 2 cores, most of it for 1,000 workers
    python benchmarks/predict.py --most 100             # nothing beyond 100 workers; 6 minutes
    python benchmarks/predict.py --plot FILE.json       # draw again

1. Measures one worker, as `dps bench --calibrate` does, and makes a calibration of all sizes. In the same rounds 2, 4
   and 8 workers push.
2. Lets the real chief, ps and sessions run in the simulator on a machine with as many cores, with that calibration.
3. Holds pushes per second of 2, 4 and 8 workers, over those of one, against the real thing. Cores that programs of
   others took meanwhile are taken from the simulated machine, too.
4. Predicts growth up to 1,000 workers x 100 ps, each on a machine of its own, with the calibration that dps ships.

`benchmarks/predict_links.py` does the same for the works of scale_out.py.

JSON goes to benchmarks/results/prediction-DATE.json, the plot to docs/pictures/prediction.svg (needs matplotlib).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.scaling_plot import draw  # noqa: E402
from benchmarks.simulating import Model, simulated  # noqa: E402
from dps.monitor import calibrating, costs  # noqa: E402
from dps.monitor.calibrating import ALONE, PUSH, Sized  # noqa: E402
from dps.monitor.costs import Costed, CostLoad  # noqa: E402
from dps.monitor.setting import Setting  # noqa: E402
from dps.monitor.works import nbytes  # noqa: E402
from dps.transport.sim import Calibration  # noqa: E402
from dps.transport.sim.calibration import SHORTEST_TRIP_S  # noqa: E402

Row = dict[str, Any]

PICTURE = ROOT / "docs" / "pictures" / "prediction.svg"
SIZES = ("4k", "small", "1m")
COUNTS = (1, 2, 4, 8)
WITHIN = 0.3
"""How far a prediction may lie from what was measured."""
COMPUTE_S, JITTER = 0.1, 0.3
"""Of the workers whose growth is predicted, between pushes."""
PUSHES = 3
"""Of each worker; all but the first count, and the simulated machines have no noise to average away."""
GROWTH = (("100x256", 10.0), ("100x2621", 1.0))
"""Models of 100 KB and 1 MB, of 100 variables, so that 100 ps have one each; and the Gbit/s of each network card."""
FULL = 0.9
"""From this share on, somebody counts as busy all the time."""


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
    settings = [
        Setting("dense", transport, size, workers=counts[-1])
        for transport in args.transports.split(",") for size in args.sizes.split(",")
    ]  # fmt: skip
    calibration, real = measured(settings, counts, args.rounds, args.seconds)
    print(calibrating.table(calibration), flush=True)
    rows: list[Row] = []
    for setting in settings:
        rows += checked(setting, calibration, real[setting], counts, args.pushes)
        print("\n".join([HEAD, *map(check_line, rows[-len(counts) :])]), flush=True)
    about = {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    found: Row = {"machine": about, "calibration": asdict(calibration), "results": rows}
    for row in growth(Calibration.shipped(), args.most):
        rows.append(row)
        print(growth_line(row), flush=True)
    out = args.out or ROOT / "benchmarks" / "results" / time.strftime("prediction-%Y-%m-%d.json")
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(verdict(rows))
    draw(pictured(found), args.picture)
    return 0


# -- the real thing beside the simulated one ----------------------------------------------------------------------


def measured(
    settings: Sequence[Setting], counts: Sequence[int], rounds: int, seconds: float
) -> tuple[Calibration, dict[Setting, dict[CostLoad, Costed]]]:
    """What one worker costs with all settings, as a calibration; and all loads of each setting."""
    real: dict[Setting, dict[CostLoad, Costed]] = {}
    for setting in settings:
        print(f"{setting} ...", file=sys.stderr, flush=True)
        loads = [*ALONE, *(CostLoad(count) for count in counts if count > 1)]
        real[setting] = {**costs.measured(setting, loads, rounds, seconds)}
    sizes = {
        lane: [Sized(setting.nbytes, real[setting]) for setting in settings if setting.transport == transport]
        for lane, transport in calibrating.LANES.items()
    }
    spread = None
    if any((setting.transport, setting.size) == ("socket", "small") for setting in settings):
        four = Setting("dense", "socket", "small", ps=calibrating.SPREAD_PS)
        spread = costs.measured(four, [PUSH], rounds, seconds)[PUSH]
    lanes = {lane: found for lane, found in sizes.items() if found}
    return calibrating.fitted("this run", lanes, spread, calibrating.updates(seconds)), real


def checked(
    setting: Setting, calibration: Calibration, real: Mapping[CostLoad, Costed], counts: Sequence[int], pushes: int
) -> list[Row]:
    """For each number of workers: measured, predicted, and by how much they differ. `per_s_off_by` compares pushes per
    second; `predicted_off_by` what they are over those of one worker."""
    rows = list[Row]()
    for count in counts:
        here = real[CostLoad(count)]
        outcome = simulated(like_here(setting, calibration, here["others_cores"], count, pushes))
        first = rows[0] if rows else {"simulated_per_s": outcome.per_s, "per_s": here["per_s"]}
        ratio, predicted = here["per_s"] / first["per_s"], outcome.per_s / first["simulated_per_s"]
        rows.append({
            **here, "sweep": "check", "x": count, "transport": setting.transport, "size": setting.size,
            "nbytes": setting.nbytes, "measured": ratio, "simulated_per_s": outcome.per_s,
            "predicted": predicted, "predicted_off_by": predicted / ratio - 1,
            "per_s_off_by": outcome.per_s / here["per_s"] - 1,
        })  # fmt: skip
    return rows


def like_here(setting: Setting, calibration: Calibration, others_cores: float, workers: int, pushes: int) -> Model:
    """One machine of the calibration with all tasks on it, and `others_cores` cores that programs of others take."""
    lane = calibration.shared_memory if setting.shared else calibration.sockets
    machines = replace(calibration.machines(shared_memory=True), handling=lane.handling, rested=lane.rested)
    return Model(
        workers, setting.ps, setting.size, pushes, machines, max(SHORTEST_TRIP_S, lane.trip_s),
        shared_memory=setting.shared, others_cores=min(others_cores, calibration.cores - 0.5),
    )  # fmt: skip


# -- growth -------------------------------------------------------------------------------------------------------


def growth(calibration: Calibration, most: int) -> Iterator[Row]:
    """Predicted: 1 to 1,000 workers that compute 0.1 s between pushes, on 1, 10 and 100 ps, a machine for each."""
    for size, gigabits in GROWTH:
        here = calibration.with_card(gigabits)
        machines, latency_s = here.machines(), here.network().latency_s
        for ps, workers in itertools.product((1, 10, 100), (1, 10, 30, 100, 300, 1000)):
            if workers > most or ps > most:
                continue
            began = time.monotonic()
            outcome = simulated(Model(workers, ps, size, PUSHES, machines, latency_s, COMPUTE_S, JITTER))
            card = outcome.per_s * nbytes(size) / ps / here.card_bytes_per_s
            yield {
                "sweep": "growth", "x": workers, "ps": ps, "nbytes": nbytes(size), "gigabits": gigabits,
                **asdict(outcome), "card_busy": card, "bound": bound(outcome.ps_busy, outcome.worker_busy, card),
                "took_s": time.monotonic() - began,
            }  # fmt: skip


def bound(ps_busy: float, worker_busy: float, card_busy: float = 0.0) -> str:
    """Who is at work all the time. Where it is the workers, more of them give as much more."""
    for name, busy in (("the ps's cards", card_busy), ("ps", ps_busy), ("workers", worker_busy)):
        if busy > FULL:
            return name
    return "neither"


# -- what is printed ----------------------------------------------------------------------------------------------

HEAD = (
    "transport size    workers   measured  predicted   off by   pushes/s  predicted   off by  ps us  worker us  "
    "others' cores"
)


def check_line(row: Row) -> str:
    """A row of the comparison."""
    return (
        f"{row['transport']:9} {row['size']:7} {row['x']:7} {row['measured']:10.2f} {row['predicted']:10.2f} "
        f"{row['predicted_off_by']:+8.0%} {row['per_s']:10.0f} {row['simulated_per_s']:10.0f} "
        f"{row['per_s_off_by']:+8.0%} {row['ps_s'] * 1e6:6.0f} {row['worker_s'] * 1e6:10.0f} "
        f"{row['others_cores']:14.2f}"
    )


def growth_line(row: Row) -> str:
    """A row of the prediction."""
    return (
        f"{row['nbytes'] / 1e3:6.0f} KB {row['x']:5} workers x {row['ps']:3} ps, {row['gigabits']:g} Gbit/s: "
        f"{row['per_s']:8.0f} pushes/s, {row['push_s'] * 1e3:8.2f} ms a push, busy: ps {row['ps_busy']:.2f}, its card "
        f"{row['card_busy']:.2f}, worker {row['worker_busy']:.2f} (bound by {row['bound']}); "
        f"simulated in {row['took_s']:.0f} s"
    )


def pictured(found: Row) -> Row:
    """The same as `draw` takes it: a row for each line of a panel. Only tcp is compared in the picture."""
    rows = [row for row in found["results"] if row["sweep"] == "growth"]
    for row in found["results"]:
        if row["sweep"] == "check" and row["transport"] == "tcp":
            rows += [{**row, "rate": row[way], "line": f"{row['size']} {way}"} for way in ("measured", "predicted")]
    return {**found, "results": rows, "title": "tcp with shared memory; growth: a machine for each task"}


def verdict(rows: Sequence[Row]) -> str:
    """How good the comparison was, in a few lines."""
    more = [row for row in rows if row["sweep"] == "check" and row["x"] > 1]
    disturbed = [row for row in more if row["quiet"] < costs.LEAST_QUIET]
    lines = [f"{_within(more, 'predicted_off_by')} of {len(more)} predictions are within {WITHIN:.0%}"]
    lines += [f"{_within(more, 'per_s_off_by')} also in pushes per second"]
    if disturbed:
        lines += [f"in {len(disturbed)} of them other programs took cores meanwhile"]
    return "; ".join(lines)


def _within(rows: Sequence[Row], name: str) -> int:
    return sum(abs(row[name]) <= WITHIN for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
