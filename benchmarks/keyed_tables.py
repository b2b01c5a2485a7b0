"""Lookups and pushes of a keyed table beside those of a fixed one of the same rows, by turns in one run.

Each turn looks up fresh random rows and pushes a gradient for them, in the fixed table, in the keyed table, and so on.
The keyed table has all of its rows before. Printed are medians, and how many times as fast the keyed table is.

    python benchmarks/keyed_tables.py --rows 1000000 --taken 8192 --turns 60 --json out.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import dps

FILL, WARM = 100_000, 5
STRIDE = 7919
"""Key `STRIDE` * n takes the place of row n."""


def measured(ps: int, shared: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a lookup and a push of each table."""
    rows, dim, init = options.rows, options.dim, dps.init.Zeros()
    params = {
        "fixed": dps.Variable(shape=(rows, dim), init=init, sparse=True),
        "keyed": dps.Variable(
            keys="int64", dim=dim, capacity=rows, init=init, admit=options.admit, expire_steps=options.expire_steps
        ),
    }
    draw, seconds = np.random.default_rng(0), {name: list[tuple[float, float]]() for name in params}
    gradient = draw.normal(size=(options.taken, dim)).astype(np.float32)
    with (
        dps.LocalCluster(workers=1, ps=ps) as local,
        local.session(
            params, optimizer=dps.optim.Adagrad(0.1, rowwise=True), partitioner=dps.partition.Fixed(ps),
            shared_memory=shared, timeout=300,
        ) as session,
    ):  # fmt: skip
        for start in range(0, rows, FILL):
            keys = STRIDE * np.arange(start, min(rows, start + FILL))
            for _ in range(options.admit):
                session.push({"keyed": dps.Rows(keys, np.zeros((len(keys), dim), np.float32))})
        for turn in range(WARM + options.turns):
            for name, stride in (("fixed", 1), ("keyed", STRIDE)):
                ids = stride * draw.integers(0, rows, options.taken)
                begin = time.perf_counter()
                session.lookup(name, ids)
                between = time.perf_counter()
                session.push({name: dps.Rows(ids, gradient)})
                if turn >= WARM:
                    seconds[name].append((between - begin, time.perf_counter() - between))
    found = {name: [float(x) for x in 1e3 * np.median(pairs, axis=0)] for name, pairs in seconds.items()}
    ratio = sum(found["fixed"]) / sum(found["keyed"])
    print(
        f"{ps} ps, {'shared memory' if shared else 'sockets':13}: fixed {found['fixed'][0]:6.2f} + "
        f"{found['fixed'][1]:6.2f} ms, keyed {found['keyed'][0]:6.2f} + {found['keyed'][1]:6.2f} ms: {ratio:.2f}"
    )
    return {"ps": ps, "shared": shared, "ratio": ratio, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--taken", type=int, default=8192, help="rows of a lookup and a push")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--admit", type=int, default=1, help="of the keyed table")
    parser.add_argument("--expire-steps", type=int, help="of the keyed table; by default its rows never expire")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("median ms of a lookup + a push; how many times as fast the keyed table is")
    found = [measured(ps, shared, options) for ps, shared in ((1, True), (1, False), (2, True))]
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
