"""Lookups and pushes of a keyed table beside those of a fixed one of the same rows, by turns in one run.

Each turn looks up fresh random rows and pushes a gradient for them, in the fixed table, in the keyed table, and so on.
The keyed table has all of its rows before. Printed are medians, and how many times as fast the keyed table is.

    python benchmarks/keyed_tables.py --rows 1000000 --taken 8192 --turns 60 --json out.json

With `--grow` a table grows from none of its rows to all of them, by `--taken` new keys a push: in the store of a ps,
without a network, and in a session. Of each 1,000 pushes the 99.9th percentile is printed over the median. Other
programs take a core away now and then; so of the store the processor's time is printed, too, and the time of those
pushes in which the thread kept its core.

    python benchmarks/keyed_tables.py --grow --rows 10000000 --dim 16 --taken 1000
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dps
from dps.ps.store.gradients import RowGradient
from dps.ps.store.table import KeyedTable
from dps.ps.warm import warm_tables
from dps.variables.tables import TableSpec, codes_of, parts_of_table

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


WINDOW = 1000
"""Pushes whose times are compared."""


def new_keys(options: argparse.Namespace) -> Iterator[Any]:
    """The keys of each push, all of them new."""
    for start in range(0, options.rows - options.taken + 1, options.taken):
        yield STRIDE * np.arange(start, start + options.taken)


def timed(push: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds that a call takes, seconds of the processor, and how often the thread lost its core meanwhile."""
    lost = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    begin, begin_cpu = time.perf_counter(), time.thread_time()
    push()
    took, took_cpu = time.perf_counter() - begin, time.thread_time() - begin_cpu
    return took, took_cpu, resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - lost


def spread(seconds: Any) -> dict[str, float]:
    """Milliseconds of the median push, and the 99.9th percentile and the longest one as multiples of it."""
    median = float(np.median(seconds))
    return {
        "median": 1e3 * median, "p999": float(np.percentile(seconds, 99.9)) / median,
        "most": float(seconds.max()) / median,
    }  # fmt: skip


def push_to(table: KeyedTable, update: RowGradient, step: int) -> None:
    """What a ps does with a push to a table."""
    assert not table.full_text([update], step)
    table.apply(update, step + 1, 1.0, step)


def grown_in_store(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A table of a ps that grows, in this process."""
    init, optimizer = dps.init.Normal(0.01), dps.optim.Adagrad(0.1, rowwise=True)
    spec = TableSpec("t", options.dim, "<f4", options.rows, optimizer.to_wire(), init.to_wire(), (0,))
    parts = parts_of_table(spec, 0, 0)
    warm_tables(parts)
    table, times = KeyedTable(parts[0]), list[tuple[float, float, float]]()
    gradient = np.random.default_rng(0).normal(size=(options.taken, options.dim)).astype(np.float32)
    for number, keys in enumerate(new_keys(options)):
        update = RowGradient(np.sort(codes_of(keys)), gradient.copy())
        times.append(timed(functools.partial(push_to, table, update, number)))
    found = list[dict[str, Any]]()
    for start in range(0, len(times), WINDOW):
        took, took_cpu, lost = np.array(times[start : start + WINDOW]).T
        kept = took[lost == 0]
        found.append({
            "rows": (start + took.size) * options.taken, "all": spread(took), "cpu": spread(took_cpu),
            "kept": spread(kept if kept.size else took), "share_kept": kept.size / took.size,
        })  # fmt: skip
        all_of, cpu, of_kept = (found[-1][name] for name in ("all", "cpu", "kept"))
        print(
            f"store,   up to {found[-1]['rows']:11,} rows: median {all_of['median']:6.3f} ms, 99.9th percentile "
            f"{all_of['p999']:6.2f}; processor's time {cpu['median']:6.3f} ms, {cpu['p999']:5.2f}, most "
            f"{cpu['most']:6.2f}; core kept in {found[-1]['share_kept']:.2f}: {of_kept['p999']:5.2f}"
        )
    return found


def grown_in_session(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A table that grows by the pushes of a session, with one ps on this machine."""
    table = dps.Variable(keys="int64", dim=options.dim, capacity=options.rows, init=dps.init.Normal(0.01))
    gradient = np.random.default_rng(0).normal(size=(options.taken, options.dim)).astype(np.float32)
    times = list[float]()
    with (
        dps.LocalCluster(workers=1, ps=1) as local,
        local.session({"t": table}, optimizer=dps.optim.Adagrad(0.1, rowwise=True), timeout=300) as session,
    ):
        for keys in new_keys(options):
            begin = time.perf_counter()
            session.push({"t": dps.Rows(keys, gradient)})
            times.append(time.perf_counter() - begin)
    found = list[dict[str, Any]]()
    for start in range(0, len(times), WINDOW):
        took = np.array(times[start : start + WINDOW])
        found.append({"rows": (start + took.size) * options.taken, "all": spread(took)})
        all_of = found[-1]["all"]
        print(
            f"session, up to {found[-1]['rows']:11,} rows: median {all_of['median']:6.3f} ms, 99.9th percentile "
            f"{all_of['p999']:6.2f}, most {all_of['most']:6.2f}"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--taken", type=int, default=8192, help="rows of a lookup and a push")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--admit", type=int, default=1, help="of the keyed table")
    parser.add_argument("--expire-steps", type=int, help="of the keyed table; by default its rows never expire")
    parser.add_argument("--grow", action="store_true", help="measure pushes while a table grows instead")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.grow:
        grown = {"store": grown_in_store(options), "session": grown_in_session(options)}
        if options.json:
            options.json.write_text(json.dumps(grown, indent=1))
        return
    print("median ms of a lookup + a push; how many times as fast the keyed table is")
    found = [measured(ps, shared, options) for ps, shared in ((1, True), (1, False), (2, True))]
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
