"""How cost grows: with workers, ps, variables and rows; and two extremes, 100,000 tiny variables and one of 1 GB.

    python benchmarks/scale.py                          # all sweeps; about 10 minutes on 2 cores
    python benchmarks/scale.py --sweeps workers,ps --seconds 0.2
    python benchmarks/scale.py --plot FILE.json         # draw again

Each figure is measured as `dps bench` does it, over tcp with shared memory, limits in the same rounds. JSON goes to
benchmarks/results/scale-DATE.json, the plot to docs/pictures/scaling.svg (needs matplotlib, of dps[notebook]).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.scaling_plot import draw  # noqa: E402
from dps.errors import DpsError  # noqa: E402
from dps.monitor.bench import measured  # noqa: E402
from dps.monitor.setting import Setting  # noqa: E402

PICTURE = ROOT / "docs" / "pictures" / "scaling.svg"
TABLE_DIM = 8
COPIES = 4
"""How many times the values of a variable are in memory at once: values, slots, first values, gradients."""


@dataclass(frozen=True)
class Point:
    """One cluster to measure: `x` is its place on the sweep's axis."""

    sweep: str
    x: int
    setting: Setting
    works: list[str]
    nbytes: int = 0
    """What the whole of the values takes."""


def points(sweeps: Sequence[str], most: int) -> Iterator[Point]:
    """All points of the sweeps; `most` bounds every axis, for tries."""
    dense = Setting("dense", "tcp", "small")
    if "workers" in sweeps:
        for workers in _upto([1, 2, 4, 8, 16, 32], most):
            for size in ("4k", "small", "1m"):
                yield Point("workers", workers, replace(dense, size=size, workers=workers), ["push"])
    if "ps" in sweeps:
        for ps in _upto([1, 2, 4], most):
            for size in ("small", "resnet" if most > 100 else "1m"):
                yield Point("ps", ps, replace(dense, size=size, ps=ps, workers=min(4, most)), ["push"])
    if "variables" in sweeps:
        elements = 100_000 * 64  # of all together, so that only their number differs
        for count in _upto([1, 10, 100, 1000, 10_000, 100_000], most):
            size = f"{count}x{elements // count if most > 1000 else 64}"
            yield Point("variables", count, replace(dense, size=size), ["pull", "push", "step", "step in place"])
    if "rows" in sweeps:
        for rows in _upto([10**4, 10**5, 10**6, 10**7, 10**8], max(most, 10**4)):
            taken = min(8192, rows // 2)
            setting = Setting("sparse", "tcp", "table", "adagrad", table_rows=rows, table_taken=taken,
                              table_dim=TABLE_DIM)  # fmt: skip
            yield Point("rows", rows, setting, ["sparse pull", "sparse push"], 4 * rows * TABLE_DIM)
    if "extremes" in sweeps:
        for size in ("100000x16", "1x268435456") if most > 10**6 else ("1000x16", "1x16000"):
            one = f"1x{16 * int(size.partition('x')[0])}" if size.endswith("x16") else ""
            for which in filter(None, (one, size)):
                count, elements = map(int, which.split("x"))
                setting = replace(dense, size=which)
                yield Point("extremes", count, setting, ["step", "step in place"], 4 * count * elements)


def _upto(values: Sequence[int], most: int) -> list[int]:
    return [value for value in values if value <= most]


SWEEPS = ("workers", "ps", "variables", "rows", "extremes")


def main(argv: Sequence[str]) -> int:
    """Measure and draw; 1 when a point failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", default=",".join(SWEEPS), help="comma-separated, of " + ", ".join(SWEEPS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="least time a figure is sampled in a round")
    parser.add_argument("--most", type=int, default=10**9, help="leave out points beyond this, on every axis")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/scale-DATE.json")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an earlier run's file, measure nothing")
    args = parser.parse_args(argv)
    if args.plot:
        draw(json.loads(args.plot.read_text()), args.picture)
        return 0
    if unknown := set(args.sweeps.split(",")) - set(SWEEPS):
        parser.error(f"--sweeps {', '.join(sorted(unknown))}: wanted some of {', '.join(SWEEPS)}")
    rows, failures = run(list(points(args.sweeps.split(","), args.most)), args.rounds, args.seconds)
    about = {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    found = {"machine": about, "results": rows, "failures": failures}
    out = args.out or ROOT / "benchmarks" / "results" / time.strftime("scale-%Y-%m-%d.json")
    out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(_lines(rows) + failures))
    draw(found, args.picture)
    return 1 if failures else 0


def run(chosen: Sequence[Point], rounds: int, at_least_s: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows as `dps bench` has them, with sweep and x; what failed, a line each."""
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    for point in chosen:
        if point.nbytes * COPIES > available():
            failures.append(f"{point.sweep} {point.x:,}: left out, it takes about {point.nbytes * COPIES / 1e9:.1f} GB")
            continue
        try:
            found = list(measured(point.setting, point.works, rounds, at_least_s))
        except (DpsError, OSError) as error:
            failures.append(f"{point.sweep} {point.x:,}: {type(error).__name__}: {error}")
            continue
        rows += [{"sweep": point.sweep, "x": point.x, **row} for row in found]
    return rows, failures


def available() -> int:
    """Bytes of memory that are free for use."""
    with open("/proc/meminfo") as file:
        found = next(line for line in file if line.startswith("MemAvailable:"))
    return int(found.split()[1]) * 1024


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    form = "{:10} {:>12} {:12} {:8} {:>12} {:>10} {:>8} {:>9}"
    head = form.format("sweep", "x", "work", "form", "size", "per s", "GB/s", "of limit")
    return [head] + [
        form.format(
            row["sweep"], f"{row['x']:,}", row["work"], "in place" if row["in_place"] else "copied", row["size"],
            f"{row['per_s']:.1f}", f"{row['gb_per_s']:.2f}", f"{row['of_limit']:.2f}",
        )
        for row in rows
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
