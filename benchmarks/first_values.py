"""The time to open a table that the ps makes, as a ratio to the time of writing as much memory.

Each round writes an array of numpy that is new (`np.full`), and opens runs of one ps, each in processes of its own,
with tables of the same bytes from several initializers, in turn. The worker's peak of resident memory is reset before
and read after.

    python benchmarks/first_values.py --rows 10000000 --rounds 5 --json out.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import dps

DIM = 32
INITIALIZERS: dict[str, Any] = {
    "Zeros": dps.init.Zeros(), "Constant": dps.init.Constant(0.5), "Uniform": dps.init.Uniform(-0.05, 0.05),
    "Normal": dps.init.Normal(0.01, seed=1), "TruncatedNormal": dps.init.TruncatedNormal(0.01),
}  # fmt: skip


def opened(server: dps.Server, name: str, rows: int) -> tuple[float, float]:
    """Seconds from the call to the open session, and how many MB its process held more at its peak than before."""
    table = dps.Variable(shape=(rows, DIM), init=INITIALIZERS[name], sparse=True)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now: proc(5)
    before, begin = resident_mb("VmRSS"), time.perf_counter()
    with dps.Session(server, {"table": table}, optimizer=dps.optim.SGD(0.1), timeout=300) as session:
        took_s = time.perf_counter() - begin
        session.lookup("table", np.arange(0, rows, max(1, rows // 100)))
    return took_s, resident_mb("VmHWM") - before


def resident_mb(which: str) -> float:
    """A figure of this process's memory, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def written(rows: int) -> float:
    begin = time.perf_counter()
    array = np.full((rows, DIM), 0.5, np.float32)
    took_s = time.perf_counter() - begin
    del array
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--names", default="Zeros,Constant,Normal")
    parser.add_argument("--json")
    args = parser.parse_args()
    names = args.names.split(",")
    rounds = []
    for number in range(args.rounds):
        row: dict[str, Any] = {"write_s": written(args.rows)}
        for name in names:
            with dps.LocalCluster(ps=1, workers=1, processes=True) as local:
                run = local.run(opened, name, args.rows)
                run.wait()
                row[name], row[f"{name} worker MB"] = run.results[0]
        row["write_s"] = (row["write_s"] + written(args.rows)) / 2
        rounds.append(row)
        print(number, {key: round(value, 3) for key, value in row.items()}, flush=True)
    for name in names:
        ratios = [row[name] / row["write_s"] for row in rounds]
        print(f"{name}: {statistics.median(ratios):.2f} of writing ({min(ratios):.2f} to {max(ratios):.2f})")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"rows": args.rows, "rounds": rounds}, file, indent=1)


if __name__ == "__main__":
    main()
