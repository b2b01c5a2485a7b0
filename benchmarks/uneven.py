"""Uneven machines over slow links: the time until a network tests well, of dps and of what a user would take instead.

    sudo python benchmarks/uneven.py                        # about 15 minutes
    sudo python benchmarks/uneven.py --rounds 1 --systems "dps async;DDP (gloo)"
    sudo python benchmarks/uneven.py --json > out.json
    python benchmarks/uneven.py --plot out.json             # table and picture of an earlier run

Four workers train the 784-128-10 network of examples/mnist.py (407 KB, batches of 100, SGD) on 4,000 real images until
worker 0 finds that 0.93 of 1,000 others are right. Each batch takes a worker 50 ms, the last worker 200 ms: they sleep,
for the network alone would take 1 ms, so two cores are enough. Each machine is a network namespace whose link `tc`
limits, both ways. DDP (gloo) has four machines, systems with a ps have one more. Each system has its own rate: of 0.1,
0.2, 0.4 and 0.8 the one that was the fastest in a run before. In each round all systems train once, by turns, from the
same first values with the batches of the round. Needs Linux, root and iproute2; PyTorch for its two rows: in
build/peers/torch (`benchmarks/peers/run.py --environments`), or in the Python that --torch names.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.links import Machine, NoLinks, star  # noqa: E402
from benchmarks.scale_out import START_S, TORCH, Ended, Side  # noqa: E402
from dps.transport.keys import files as key_files  # noqa: E402

PICTURE = ROOT / "docs" / "pictures" / "uneven.svg"
SIDES, TORCH_SIDE = (str(ROOT / "benchmarks" / name) for name in ("uneven_sides.py", "peers/torch_uneven.py"))
SYSTEMS = {
    "dps async": ("async", 0.4),
    "dps bounded by 2": ("bounded:2", 0.2),
    "dps sync, 1 backup worker": ("sync:3 of 4", 0.8),
    "dps sync": ("sync", 0.8),
    "dps local, 4 steps": ("local:4", 0.4),
    "DDP (gloo)": ("ddp", 0.8),
    "torch RPC ps, async": ("rpc", 0.4),
}
"""What each system is called: its kind, of dps its update mode, and its rate."""
PEERS = "ddp", "rpc"
WORKERS, PATIENCE_S = 4, 300.0


def start_dps(side: Side, machines: Mapping[str, Machine], about: dict[str, Any], keys: str) -> None:
    """Start a run of dps with one ps."""
    role = [sys.executable, "-m", "dps.role", "--keys", keys, "--job"]
    bind, workers = f"{machines['ps'].address}:2220", about["workers"]
    chief = side.start(
        machines["ps"], [*role, "chief", "--bind", bind, "--owned", "--ps", "1", "--workers", str(workers)]
    )
    side.lines([chief], START_S)
    side.start(machines["ps"], [*role, "ps", "--task", "0", "--chief", bind])
    for task in range(workers):
        own = {**about, "task": task, "chief": bind, "keys": keys, "computes_s": computes_s(about, task)}
        side.start(machines[f"worker:{task}"], [sys.executable, SIDES, json.dumps(own)], worker=True)


def start_torch(side: Side, machines: Mapping[str, Machine], about: dict[str, Any], python: str) -> None:
    """Start workers of PyTorch, and the ps of torch RPC."""
    tasks = [f"worker:{task}" for task in range(about["workers"])]
    ranks = tasks if about["system"] == "ddp" else ["ps", *tasks]
    for rank, name in enumerate(ranks):
        task = 0 if name == "ps" else int(name.partition(":")[2])
        own = {**about, "rank": rank, "size": len(ranks), "first": machines[ranks[0]].address}
        own |= {"task": task, "computes_s": computes_s(about, task)}
        side.start(machines[name], [python, TORCH_SIDE, json.dumps(own)], worker=name != "ps")


def computes_s(about: Mapping[str, Any], task: int) -> float:
    """How long a batch takes a worker."""
    return float(about["batch_s"] * (about["slower"] if task == about["workers"] - 1 else 1))


def trained(name: str, machines: Mapping[str, Machine], about: dict[str, Any], python: str) -> dict[str, Any]:
    """One training of one system: what its worker 0 says, and of how many steps of worker 0. Raises Ended."""
    side, (kind, rate) = Side(name), SYSTEMS[name]
    about = {"rate": rate, **about}
    with tempfile.TemporaryDirectory() as folder:
        keys = str(Path(folder) / "keys")
        key_files.new(keys)
        try:
            if kind in PEERS:
                start_torch(side, machines, {**about, "system": kind}, python)
            else:
                start_dps(side, machines, {**about, "update": kind}, keys)
            side.wait_ready()
            found: dict[str, Any] = side.result_of_first("go", PATIENCE_S)
            return found
        finally:
            side.close()


def row_of(name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a system."""
    seconds = [run["seconds"] for run in runs]
    return {
        "system": name, "seconds": seconds, "median_s": statistics.median(seconds),
        "ms_per_step": round(1e3 * statistics.median(run["seconds"] / run["steps"] for run in runs), 1),
        "curves": [run["curve"] for run in runs],
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The result as a table of Markdown, the fastest first."""
    lines = ["| system | seconds, median | from, to | a step of a fast worker, ms |", "| --- | --- | --- | --- |"]
    for row in sorted(rows, key=lambda row: float(row["median_s"])):
        low, high = min(row["seconds"]), max(row["seconds"])
        lines.append(f"| {row['system']} | {row['median_s']:.1f} | {low:.1f}, {high:.1f} | {row['ms_per_step']:.0f} |")
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """Write the picture: accuracy over time, for each system the round whose time is the median."""
    from benchmarks.scaling_plot import pyplot_for_files, save_picture

    pyplot = pyplot_for_files()
    figure, axis = pyplot.subplots(figsize=(7.2, 3.8))
    for row in sorted(found["results"], key=lambda row: float(row["median_s"])):
        middle = sorted(range(len(row["seconds"])), key=row["seconds"].__getitem__)[len(row["seconds"]) // 2]
        times, accuracy = zip(*row["curves"][middle], strict=True)
        style = "-" if row["system"].startswith("dps") else "--"
        axis.plot(times, accuracy, style, linewidth=1.4, label=f"{row['system']}: {row['median_s']:.1f} s")
    about = found["about"]
    axis.axhline(about["goal"], color="grey", linewidth=0.8)
    axis.set(xlabel="seconds", ylabel="test accuracy", ylim=(0.5, 1.0), title=title_of(about))
    axis.title.set_fontsize(9)
    axis.grid(visible=True, alpha=0.3)
    axis.legend(fontsize=7, loc="lower right")
    save_picture(figure, path, f"Test accuracy over time. {title_of(about)}")


def title_of(about: Mapping[str, Any]) -> str:
    return (
        f"{about['workers']} workers, one {about['slower']:g} times slower, links of {about['megabits']} Mbit/s: "
        f"seconds to {about['goal']:g}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a system failed, 2 where there can be no links."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default=";".join(SYSTEMS), help="some of them, with semicolons")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--slower", type=float, default=4.0, help="how many times as long a batch takes the last worker"
    )
    parser.add_argument("--batch-ms", type=float, default=50.0, help="what a batch takes the others")
    parser.add_argument("--megabits", type=int, default=200, help="of each machine's link, each way")
    parser.add_argument("--rate", type=float, help="of SGD, of all systems in place of their own")
    parser.add_argument("--goal", type=float, default=0.93)
    parser.add_argument("--congestion", default="cubic", help="of TCP; empty: this machine's")
    parser.add_argument(
        "--torch", default=str(TORCH) if TORCH.exists() else "", help="a Python with PyTorch; empty: none"
    )
    parser.add_argument("--json", action="store_true", help="all that was found, in place of the table")
    parser.add_argument("--picture", type=Path, help="where to draw it; with --plot docs/pictures/uneven.svg")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="an earlier run's file; nothing is measured")
    args = parser.parse_args(argv)
    if args.plot:
        show(json.loads(args.plot.read_text()), args.picture or PICTURE, args.json)
        return 0
    names = args.systems.split(";")
    if unknown := [name for name in names if name not in SYSTEMS]:
        parser.error(f"--systems: {unknown[0]!r} is none of {', '.join(map(repr, SYSTEMS))}")
    names = [name for name in names if args.torch or SYSTEMS[name][0] not in PEERS]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended, and namespaces are deleted
    about = {
        "workers": WORKERS, "slower": args.slower, "batch_s": args.batch_ms / 1e3, "megabits": args.megabits,
        "goal": args.goal, **({} if args.rate is None else {"rate": args.rate}),
    }  # fmt: skip
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    failures: list[str] = []
    try:
        machines_of = {"ps": args.megabits, **{f"worker:{task}": args.megabits for task in range(WORKERS)}}
        with star(machines_of, args.congestion) as machines:
            for number in range(args.rounds):
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    try:
                        runs[name].append(trained(name, machines, {**about, "seed": number}, args.torch))
                        said = f"{runs[name][-1]['seconds']:.1f} s"
                    except Ended as error:
                        failures.append(f"{name}: {error}")
                        said = failures[-1]
                    print(f"round {number + 1} of {args.rounds}, {name}: {said}"[:2000], file=sys.stderr, flush=True)
    except NoLinks as error:
        print(f"uneven.py: {error}", file=sys.stderr)
        return 2
    machine: dict[str, Any] = {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    machine["load"] = round(os.getloadavg()[0], 1)
    results = [row_of(name, made) for name, made in runs.items() if made]
    show({"machine": machine, "about": about, "results": results, "failures": failures}, args.picture, args.json)
    return 1 if failures else 0


def show(found: dict[str, Any], picture: Path | None, as_json: bool) -> None:
    """Print the result, and draw it."""
    if picture is not None:
        draw(found, picture)
    print(json.dumps(found, indent=1) if as_json else "\n".join([table(found["results"]), *found["failures"]]))


if __name__ == "__main__":
    sys.exit(main())
