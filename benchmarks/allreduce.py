"""All-reduce of dps beside gloo's, interleaved in the same processes, over sockets and on one host; and through a ps.

    python benchmarks/allreduce.py [--workers 2 4] [--works 100k resnet] [--seconds 4] [--sizes] [--plot FILE]

Each round times some operations of each way, in turn, in all workers at once. Printed are medians over rounds in
milliseconds, and the median of the rounds' ratios to gloo. gloo sums one flat buffer that is there already;
`gloo, copied` also copies the variables into it and out of it, as DDP does. `--sizes` compares
all-reduce with the sum taken at a ps (`cross_device_ops="ps"`, over sockets) and with a synchronous step of a ps
(`Session.step`, in shared memory), over many sizes. Needs torch, but for `--sizes`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dps
from dps.process.config import environment

SETS: dict[str, list[tuple[int, ...]]] = {"100k": [(25_600,)], "1m": [(262_144,)]}
SIZES = [1 << power for power in range(10, 28, 2)]


def resnet() -> list[tuple[int, ...]]:
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "peers"))
    common: Any = importlib.import_module("common")
    return list(common.resnet50_shapes())


def shapes_of(work: str) -> list[tuple[int, ...]]:
    return resnet() if work == "resnet" else SETS.get(work) or [(int(work) // 4,)]


# -- a worker ---------------------------------------------------------------------------------------------------


class Ways:
    """All ways of a sum in one process, by name."""

    def __init__(self, server: dps.Server, store: str, workers: int, through_ps: bool) -> None:
        from dps.collectives.group import Group

        self._server, self._workers = server, workers
        self.lane = Group(server.home(), server.binding, "lane")
        self.sockets = Group(server.home(), server.binding, "sockets", lane=False)
        self.groups = [self.lane, self.sockets]
        if through_ps:
            self.groups.append(Group(server.home(), server.binding, "ps", algorithm="ps"))
        self._through_ps, self._dist = through_ps, None
        if not through_ps:
            torch: Any = importlib.import_module("torch")

            torch.set_num_threads(1)
            dist: Any = importlib.import_module("torch.distributed")
            dist.init_process_group("gloo", f"file://{store}", rank=server.task, world_size=workers)
            self._dist = dist

    def of(self, shapes: list[tuple[int, ...]]) -> dict[str, Callable[[], object]]:
        arrays = [np.full(shape, 1.0, np.float32) for shape in shapes]
        made: dict[str, Callable[[], object]] = {
            "dps, one host": lambda: self.lane.all_reduce(arrays),
            "dps, sockets": lambda: self.sockets.all_reduce(arrays),
        }
        if self._dist is not None:
            made |= self._gloo(arrays)
        return made

    def _gloo(self, arrays: list[Any]) -> dict[str, Callable[[], object]]:
        torch: Any = importlib.import_module("torch")

        dist: Any = self._dist
        flat = torch.zeros(sum(array.size for array in arrays))
        tensors = [torch.from_numpy(array) for array in arrays]
        sums = [torch.empty_like(tensor) for tensor in tensors]

        def copied() -> None:
            at = 0
            for tensor in tensors:
                flat[at : at + tensor.numel()].copy_(tensor.view(-1))
                at += tensor.numel()
            dist.all_reduce(flat)
            at = 0
            for found in sums:
                found.view(-1).copy_(flat[at : at + found.numel()])
                at += found.numel()

        def plain() -> None:
            flat.zero_()
            dist.all_reduce(flat)

        return {"gloo": plain, "gloo, copied": copied}


def rounds(ways: Ways, work: str, seconds: float) -> dict[str, list[float]]:
    """Seconds of one operation, for each round; the same number of operations in all workers."""
    made = ways.of(shapes_of(work))
    for way in made.values():
        way()
        way()
    began = time.perf_counter()
    for way in made.values():
        way()
    took_s = np.array([time.perf_counter() - began])
    slowest = float(ways.lane.all_reduce([took_s], "max")[0][0])
    each = max(1, int(0.02 / (slowest / len(made))))
    count = max(5, min(400, int(seconds / (slowest * each))))
    found: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(count):
        for name, way in made.items():
            began = time.perf_counter()
            for _ in range(each):
                way()
            found[name].append((time.perf_counter() - began) / each)
    return found


def through_ps(ways: Ways, session: dps.Session, size: int) -> dict[str, float]:
    """Seconds of a sum at a ps, of a synchronous step of one, and of an all-reduce, of as many bytes."""
    arrays = [np.ones(size // 4, np.float32)]
    made: dict[str, Callable[[], object]] = {
        "summed at a ps": lambda: ways.groups[-1].all_reduce(arrays),
        "step of a ps": lambda: session.step({"w": arrays[0]}),
        "dps, one host": lambda: ways.lane.all_reduce(arrays),
        "dps, sockets": lambda: ways.sockets.all_reduce(arrays),
    }
    found: dict[str, list[float]] = {name: [] for name in made}
    count = 5 + max(1, min(60, (32 << 20) // size))
    for number in range(count):
        for name, way in made.items():
            began = time.perf_counter()
            way()
            if number > 2:
                found[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in found.items()}


def work(args: argparse.Namespace) -> None:
    server = dps.Server(None, "worker", args.task, chief=args.chief, trusted_network=True)
    server.wait_joined(time.monotonic() + 60)
    ways = Ways(server, args.store, args.count, args.sizes)
    found: dict[str, Any] = {}
    if args.sizes:
        size = int(args.works[0])
        params, mode = {"w": np.zeros(size // 4, np.float32)}, dps.SyncReplicas(args.count, args.count)
        with dps.Session(server, params, optimizer=dps.optim.SGD(1e-9), update=mode) as session:
            found = through_ps(ways, session, size)
    else:
        found = {name: rounds(ways, name, args.seconds) for name in args.works}
    if args.task == 0:
        with open(args.out, "w") as file:
            json.dump(found, file)
    for group in ways.groups:
        group.close()
    server.stop()


# -- the program that starts them -------------------------------------------------------------------------------


def measured(workers: int, works: list[str], seconds: float, sizes: bool = False) -> Any:
    """What worker 0 has measured."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        out, ps = os.path.join(folder, "out.json"), int(sizes)
        trusted = True  # gloo encrypts nothing either
        chief = dps.Server(
            None, "chief", 0, bind="127.0.0.1:0", ps=ps, workers=workers, owned=True, trusted_network=trusted
        )
        own = [dps.Server(None, "ps", task, chief=chief.address, trusted_network=trusted) for task in range(ps)]
        command = [
            sys.executable, __file__, "--chief", chief.address, "--store", os.path.join(folder, "store"), "--out", out,
            "--count", str(workers), "--seconds", str(seconds), "--works", *works, *(["--sizes"] if sizes else []),
        ]  # fmt: skip
        env = {**environment(), "OMP_NUM_THREADS": "1"}  # as dps starts its tasks
        started = [subprocess.Popen([*command, "--task", str(task)], env=env) for task in range(workers)]
        codes = [process.wait() for process in started]
        for server in (*own, chief):
            server.stop()
        if any(codes):
            raise SystemExit(f"workers ended with {codes}")
        with open(out) as file:
            return json.load(file)


def report(workers: int, found: dict[str, dict[str, list[float]]]) -> None:
    for name, of in found.items():
        base = of["gloo"]
        print(f"\n{name}, {workers} workers, {len(base)} rounds")
        for way, times in of.items():
            ratios = [gloo / own for gloo, own in zip(base, times, strict=True)]
            copied = [gloo / own for gloo, own in zip(of["gloo, copied"], times, strict=True)]
            print(
                f"  {way:16} {statistics.median(times) * 1e3:9.3f} ms   gloo / this {statistics.median(ratios):5.2f}   "
                f"gloo, copied / this {statistics.median(copied):5.2f}"
            )


def crossover(workers: int, found: dict[int, dict[str, float]]) -> None:
    """Print the times over the sizes."""
    ways = list(next(iter(found.values())))
    print(f"\n{workers} workers, milliseconds\n{'bytes':>12}  " + "  ".join(f"{way:>14}" for way in ways))
    for size, times in found.items():
        print(f"{size:12,}  " + "  ".join(f"{times[way] * 1e3:14.3f}" for way in ways))


def draw(tables: dict[int, dict[int, dict[str, float]]], plot: str) -> None:
    """Draw the times over the sizes, for each number of workers."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, panels = pyplot.subplots(1, len(tables), figsize=(6 * len(tables), 4), sharey=True, squeeze=False)
    for axes, (workers, found) in zip(panels[0], tables.items(), strict=True):
        for way in next(iter(found.values())):
            axes.loglog(list(found), [times[way] * 1e3 for times in found.values()], marker="o", label=way)
        axes.set(xlabel="bytes", title=f"A sum of {workers} workers on one machine")
        axes.grid(True, which="both", alpha=0.3)
    panels[0][0].set(ylabel="ms")
    panels[0][0].legend()
    figure.savefig(plot, dpi=110, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--works", nargs="+", default=["100k", "resnet"])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--plot", default="", help="where the picture of --sizes is written")
    for name in ("--chief", "--store", "--out"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--task", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task >= 0:
        work(args)
        return
    tables: dict[int, dict[int, dict[str, float]]] = {}
    for workers in args.workers:
        if args.sizes:
            tables[workers] = {size: measured(workers, [str(size)], args.seconds, True) for size in SIZES}
            crossover(workers, tables[workers])
        else:
            report(workers, measured(workers, args.works, args.seconds))
    if args.plot:
        draw(tables, args.plot)


if __name__ == "__main__":
    main()
