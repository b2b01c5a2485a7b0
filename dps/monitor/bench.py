"""`dps bench`: measures pull, push, step, sparse rows, sync steps and training loops beside the machine's limits.

The ps, the chief and all workers but the first are separate processes; on inproc they are threads of this process.
Limits are measured in the same rounds. Compare ratios (`of_limit`), not seconds of different days.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

from dps.errors import ConfigError
from dps.monitor import goals, loops, works
from dps.monitor.beside import ExtraWorker, workers
from dps.monitor.rounds import PROBE_NBYTES, Rounds, Turn
from dps.monitor.setting import TRANSPORTS, Setting, loop
from dps.monitor.works import IN_PLACE, REPEATED
from dps.process import config
from dps.transport import limits

Row = dict[str, Any]

FORM = "{:18} {:8} {:9} {:6} {:8} {:>8} {:>5} {:>9} {:>6} {:>9} {:>9} {:>8} {:40} {}"
HEAD = ("work", "form", "transport", "size", "optim", "MB", "vars", "per s", "GB/s", "p50 us", "p99 us", "of limit",
        "limit", "lane")  # fmt: skip


def table(results: list[Row]) -> str:
    """One line per figure. MB: what one call transfers in both directions."""
    rows = [
        FORM.format(
            r["work"], form(r), wire(r), r["size"], r["optimizer"], f"{r['nbytes'] / 1e6:.3f}", r["variables"],
            f"{r['per_s']:.1f}", f"{r['gb_per_s']:.2f}", f"{r['p50_us']:.0f}", f"{r['p99_us']:.0f}",
            f"{r['of_limit']:.2f}", limit(r), r.get("lane", ""),
        )
        for r in results
    ]  # fmt: skip
    dropped = sum(r["dropped"] > 0 for r in results)
    note = f"{dropped} figures are of fewer rounds: raw TCP had moved by over 30 % in the others" if dropped else ""
    return "\n".join(line.rstrip() for line in [FORM.format(*HEAD), *rows, *filter(None, [note])])


def form(row: Row) -> str:
    """The form of values and gradients (copied or in place); for rows, whether their lists repeat."""
    return row.get("lists") or ("in place" if row.get("in_place") else "copied")


def limit(row: Row) -> str:
    """The limit of a figure."""
    computing = row.get("computing_ms")
    return str(row["limit"]) + ("" if computing is None else f", {computing:g} ms a step")


def wire(row: Row) -> str:
    """The transport, in the words of `--transports`."""
    return str(row["transport"]) if row.get("shared_memory", True) else "socket"


def read_earlier(path: str) -> dict[tuple[Any, ...], Row]:
    """The figures of an earlier `--json` file by their keys. Raises ConfigError for a file that is none."""
    try:
        with open(path) as file:
            return {_key(row): row for row in json.load(file)["results"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds no figures"
        raise ConfigError(f"--compare {path}: {why}; wanted a file made by: dps bench --json > FILE") from None


def compared(results: list[Row], path: str) -> str:
    """Ratios of the rates to those in an earlier `--json` file, for figures that are in both."""
    before = read_earlier(path)
    lines = [f"against {path}: rate now / then"]
    for row in results:
        then = before.get(_key(row))
        if then is not None:
            name = " ".join([row["work"], form(row), wire(row), f"{row['nbytes'] / 1e6:g} MB", row["optimizer"]])
            lines.append(f"{name:50} {row['per_s'] / then['per_s']:6.2f}")
    return "\n".join(lines)


def _key(row: Row) -> tuple[Any, ...]:
    """A key that is equal for comparable figures. Older files lack some fields: there row lists were repeated, and
    works in place did not read the values."""
    sparse = row["work"].startswith("sparse")
    return (
        row["work"], row["transport"], row["nbytes"], row["variables"], row["ps"], row["workers"],
        row.get("in_place", False), row.get("shared_memory", True),
        row.get("optimizer", "adagrad" if sparse else "sgd"), row.get("computing_ms"),
        row.get("lists", "repeated" if sparse else None), row.get("reads_values", not row.get("in_place", False)),
    )  # fmt: skip


FORMS = ("copied", "in-place")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="dps bench", description=__doc__)
    made.add_argument("--json", action="store_true", help="one JSON object on stdout, progress on stderr")
    made.add_argument("--works", default="pull,push,step,sparse,sync", help=_some(works.WORKS))
    made.add_argument("--forms", default="copied,in-place", help=_some(FORMS))
    made.add_argument("--transports", default="inproc,ipc,tcp", help=_some(TRANSPORTS) + "; socket: no shared memory")
    made.add_argument("--sizes", default="4k,1m,resnet", help=_some(works.SIZES) + "; or COUNTxELEMENTS")
    made.add_argument("--optimizers", default="sgd", help=_some(works.OPTIMIZERS) + "; sparse is adagrad in any case")
    made.add_argument("--ps", type=int, default=1, help="number of ps (default 1)")
    made.add_argument("--workers", type=int, help="number of workers; their rates are added (default 1, sync 2)")
    made.add_argument("--table-rows", type=int, default=1_000_000, help="rows of the sparse table (default 1,000,000)")
    made.add_argument("--table-taken", type=int, default=8192, help="rows moved at a time (default 8,192)")
    made.add_argument("--computing", default="0.7,8,20", help="milliseconds that a step of a loop computes")
    made.add_argument("--rounds", type=int, default=3, help="number of rounds; a figure is the median of theirs")
    made.add_argument("--seconds", type=float, default=0.3, help="least time a figure is sampled in a round")
    made.add_argument("--compare", metavar="FILE", help="print ratios to this earlier --json output")
    made.add_argument(
        "--calibrate", metavar="FILE", help="measure what messages cost here, for dps.simulate; half a minute"
    )
    made.add_argument("--card", type=float, help="of --calibrate: Gbit/s of a machine's network card (default 10)")
    made.add_argument("--latency", type=float, help="of --calibrate: of the network, one way, us (default 50)")
    made.add_argument("--goals", action="store_true", help="measure the works with goals; say which are met")
    return made


def _some(known: Iterable[str]) -> str:
    return "comma-separated, of " + ", ".join(known)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; returns the exit code."""
    args = _checked(parser().parse_args(argv), parser().parse_args([]))
    config.keep_large_blocks()  # like a worker that the launcher or dps.role started
    if args.calibrate:
        return calibrated(args)
    settings = goals.settings() if args.goals else _settings(args)
    results = [row for setting, chosen in settings for row in measured(setting, chosen, args.rounds, args.seconds)]
    found: dict[str, Any] = {"machine": _machine(), "results": results}
    if args.goals:
        found["goals"] = goals.judged(results, args.rounds, args.seconds)
    if args.json:
        print(json.dumps(found))
    else:
        print(table(results))
        print(goals.table(found["goals"]) if args.goals else "", end="")
    if args.compare:
        print(compared(results, args.compare), file=sys.stderr if args.json else sys.stdout)
    return 0


def calibrated(args: argparse.Namespace) -> int:
    """Measure a calibration, print it and write it."""
    from dps.monitor import calibrating  # needs dps[sim]

    found = calibrating.calibrate(Path(args.calibrate).stem, args.card, args.latency * 1e-6, args.rounds, args.seconds)
    try:
        found.write(args.calibrate)
    except OSError as error:
        raise ConfigError(
            f"--calibrate {args.calibrate}: {error.strerror}; name a file in a folder that is there"
        ) from None
    print(calibrating.table(found))
    print(f"dps.simulate(..., calibration={args.calibrate!r}) uses it")
    return 0


_USED = {"calibrate": {"card", "latency", "rounds", "seconds"}, "goals": {"rounds", "seconds", "json", "compare"}}
"""What two arguments use of the others; they choose for themselves what is measured."""


def _check_used(args: argparse.Namespace, usual: argparse.Namespace) -> None:
    """ConfigError for arguments beside `--calibrate` or `--goals` which that would ignore. `usual`: without any."""
    for name, used in _USED.items():
        if getattr(args, name):
            found = [other for other in vars(args) if getattr(args, other) != getattr(usual, other)]
            known = {name, "card", "latency", *used}  # where these two are wrong, `_checked` says so
            if unused := [f"--{other.replace('_', '-')}" for other in found if other not in known]:
                also = ", ".join(f"--{other}" for other in sorted(used))
                raise ConfigError(f"--{name}: got {', '.join(unused)} beside it, wanted none but {also}; leave one out")


def _checked(args: argparse.Namespace, usual: argparse.Namespace) -> argparse.Namespace:
    _check_used(args, usual)
    args.computing = _milliseconds(args.computing)
    known = {"works": works.WORKS, "forms": FORMS, "transports": TRANSPORTS,
             "optimizers": works.OPTIMIZERS}  # fmt: skip
    for name, names in known.items():
        chosen = getattr(args, name).split(",")
        if unknown := [c for c in chosen if c not in names]:
            raise ConfigError(f"--{name}: got {','.join(unknown)}, wanted some of {', '.join(names)}")
        setattr(args, name, chosen)
    args.sizes = args.sizes.split(",")
    for size in args.sizes:
        works.shapes(size)
    if not args.calibrate and (args.card, args.latency) != (None, None):
        raise ConfigError("--card, --latency: a part of what --calibrate FILE writes; give it, or leave them out")
    args.card = 10.0 if args.card is None else args.card
    args.latency = 50.0 if args.latency is None else args.latency
    if not (0 < args.card < inf and 0 <= args.latency < inf):
        raise ConfigError(
            f"--card, --latency: got {args.card:g} Gbit/s and {args.latency:g} us, wanted more than 0, and 0 or more"
        )
    if not 0 < args.seconds < inf:
        raise ConfigError(f"--seconds: got {args.seconds:g}, wanted seconds above 0")
    if args.compare:
        read_earlier(args.compare)  # before it is measured for minutes
    if args.calibrate and not os.access(os.path.dirname(os.path.abspath(args.calibrate)), os.W_OK):
        raise ConfigError(f"--calibrate {args.calibrate}: name a file in a folder that is there and can be written")
    for name in ("ps", "workers", "rounds", "table_rows", "table_taken"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: got {value}, wanted at least 1")
    if args.table_taken > args.table_rows:
        raise ConfigError(f"--table-taken: got {args.table_taken}, wanted at most --table-rows {args.table_rows}")
    return args


def _milliseconds(text: str) -> list[float]:
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < each < inf for each in found):
        raise ConfigError(f"--computing: got {text}, wanted milliseconds above 0, comma-separated, as 0.7,8,20")
    return found


def _settings(args: argparse.Namespace) -> Iterator[tuple[Setting, list[str]]]:
    """The requested settings: each cluster once, with all works that can be measured on it."""
    dense = [w for w in args.works if w in ("pull", "push", "step")]
    kinds = [("dense", dense)] if dense else []
    kinds += [(kind, [kind]) for kind in ("sparse", "sync") if kind in args.works]
    yield from _loops(args)
    for kind, chosen in kinds:
        for transport in args.transports:
            for size in ["table"] if kind == "sparse" else args.sizes:
                for optimizer in ["adagrad"] if kind == "sparse" else args.optimizers:
                    count = args.workers or (2 if kind == "sync" else 1)
                    rows = (args.table_rows, args.table_taken)
                    yield Setting(kind, transport, size, optimizer, args.ps, count, *rows), _forms(kind, chosen, args)


def _loops(args: argparse.Namespace) -> Iterator[tuple[Setting, list[str]]]:
    """Settings of training loops, one cluster for each computing time of a step."""
    if "loop" in args.works:
        for transport in args.transports:
            for computing_ms in args.computing:
                made = loop(computing_ms, transport, args.ps, args.workers or 1)
                yield made, [f"loop {form}" for form in loops.FORMS]


def _forms(kind: str, chosen: list[str], args: argparse.Namespace) -> list[str]:
    if kind == "sparse":
        return [f"sparse {way}{ending}" for ending in ("", REPEATED) for way in ("pull", "push")]
    ends = {"copied": "", "in-place": IN_PLACE}
    return [work + ends[form] for work in chosen for form in args.forms]


def measured(setting: Setting, chosen: list[str], rounds: int, at_least_s: float) -> Iterator[dict[str, Any]]:
    """A row for each work of a setting, in interleaved rounds with its limits. In place needs shared memory."""
    if not setting.shared:
        chosen = [name for name in chosen if not name.endswith(IN_PLACE)]
    if not chosen:
        return
    print(f"{setting}: {', '.join(chosen)} ...", file=sys.stderr, flush=True)
    with contextlib.ExitStack() as stack:
        probe = stack.enter_context(limits.raw_tcp(PROBE_NBYTES))
        names = dict.fromkeys(name for work in chosen for name in setting.limits_of(work))
        turns = {name: Turn(stack.enter_context(setting.limit(name))) for name in names}
        server = stack.enter_context(setting.cluster())
        others = stack.enter_context(workers(server.target, setting))
        with setting.session(server) as session:
            calls, lane = setting.calls(session), setting.lane(session)
            for beside in others:
                beside.answers.get(timeout=60)
            turns |= {name: _turn(name, calls[name], others, setting.kind == "sync") for name in chosen}
            found = Rounds()
            for _ in range(rounds):
                found.measure(probe, turns, at_least_s)
            for beside in others:
                beside.orders.put("end")
            session.request_stop()
    if found.dropped:
        print(f"{found.dropped} of {rounds} rounds dropped: raw TCP had moved by over 30 %", file=sys.stderr)
    yield from (_row(setting, name, lane, found) for name in chosen)


def _turn(name: str, call: Any, others: list[ExtraWorker], sync: bool) -> Turn:
    """One work, which the other workers do at the same time. In sync mode they wait for this worker."""

    def begin() -> None:
        for beside in others:
            beside.begin_work(name)

    def end() -> float:
        return 0.0 if sync else sum(beside.end_work() for beside in others)

    return Turn(call, begin, end)


def _row(setting: Setting, name: str, lane: str, found: Rounds) -> dict[str, Any]:
    limit, steps = min(setting.limits_of(name), key=found.median_s), setting.steps
    moved, median, limit_s = setting.moved(name), found.median_s(name) / steps, found.median_s(limit) / steps
    per_s = 1 / median + found.beside_per_s(name) * steps
    best = moved / limit_s / 1e9
    speed = moved * per_s / 1e9
    return {
        "work": name.removesuffix(IN_PLACE).removesuffix(REPEATED),
        "transport": "tcp" if setting.transport == "socket" else setting.transport, "lane": lane, "malloc": _malloc(),
        "nbytes": moved, "variables": setting.variables, "ps": setting.ps, "workers": setting.workers, "per_s": per_s,
        "gb_per_s": speed, "p50_us": median * 1e6, "p99_us": found.p99_s(name) / steps * 1e6,
        "limit_gb_per_s": best,
        "of_limit": speed / best, "limit": limit, "size": setting.size, "optimizer": setting.optimizer,
        "reads_values": True, "in_place": name.endswith(IN_PLACE), "shared_memory": setting.shared,
        "rows_per_s": setting.table_taken * per_s if setting.kind == "sparse" else None,
        "lists": ("repeated" if name.endswith(REPEATED) else "fresh") if setting.kind == "sparse" else None,
        "computing_ms": setting.computing_ms if setting.kind == "loop" else None, "limit_p50_us": limit_s * 1e6,
        "rounds": len(found.steady), "dropped": found.dropped,
    }  # fmt: skip


def _malloc() -> str:
    """How this process's malloc treats large blocks."""
    return "keeps large blocks" if config.large_blocks_are_kept() else "as it comes"


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(), "processor": platform.processor() or platform.machine(),
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
        "malloc": _malloc(), "threads": os.environ.get("OMP_NUM_THREADS", "as they come"),
    }  # fmt: skip
