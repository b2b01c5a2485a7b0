"""Input in four ways, by turns: read in the worker, ahead on a thread, by a dataset task, by torch's DataLoader.

    python benchmarks/input.py                        # 5 rounds of all works
    python benchmarks/input.py --works mnist --rounds 9 --json
    python benchmarks/input.py --busy                 # how busy one dataset task keeps four workers

Works: "mnist", batches of 100 images of 28 x 28 (0.3 MB as float32), and "images", batches of 64 of 3 x 64 x 64 (3 MB).
Every way shuffles the same bytes in memory and prepares each batch with the same function: scaled, noise added,
normalised. The dataset task and the DataLoader have one process beside the worker. "nothing sent" is a dataset task
that sends a number in the place of each batch: what shared memory could bring at most. The worker computes nothing, so
that the figures are what the input can do: batches per second, medians over the rounds, and over "worker" in each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dps

SHAPES = {"mnist": (5000, 100, (28, 28)), "images": (2000, 64, (3, 64, 64))}
"""Examples, examples in a batch, shape of one."""
COUNTS = {"mnist": 400, "images": 60}
"""Batches in a round."""

BUSY_S, STEP_S = 5.0, 0.02
"""How long workers are fed with --busy, and what a step takes."""

Batch = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def arrays(work: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    count, _, shape = SHAPES[work]
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8), np.arange(count) % 10


def prepare(x: npt.NDArray[np.uint8], y: npt.NDArray[np.int64]) -> Batch:
    """Scaled, noise added, normalised: some milliseconds of numpy for a batch."""
    values = x.astype(np.float32) / 255
    values += np.random.default_rng(int(y[0])).standard_normal(values.shape, np.float32) * 0.05
    values -= values.mean()
    values /= values.std()
    return values, y


def pipeline(work: str) -> dps.data.Dataset:
    x, y = arrays(work)
    return dps.data.from_arrays(x, y).shuffle(len(x), seed=1).batch(SHAPES[work][1], True).map(prepare).repeat()


def mnist() -> dps.data.Dataset:
    """For the dataset task."""
    return pipeline("mnist")


def images() -> dps.data.Dataset:
    """For the dataset task."""
    return pipeline("images")


def mnist_unsent() -> dps.data.Dataset:
    """As `mnist`, but workers get a number for each batch: what is left when its bytes cost nothing on their way."""
    return pipeline("mnist").map(lambda x, y: y[0])


def images_unsent() -> dps.data.Dataset:
    """As `images`, in the same way."""
    return pipeline("images").map(lambda x, y: y[0])


class Prepared:
    """The same for torch, which asks for the rows of a batch at once."""

    def __init__(self, work: str) -> None:
        self.x, self.y = arrays(work)

    def __len__(self) -> int:
        return len(self.x)

    def __getitems__(self, rows: list[int]) -> Batch:
        return prepare(self.x[rows], self.y[rows])


def as_tensors(batch: Batch) -> Any:
    import torch

    return torch.from_numpy(batch[0]), torch.from_numpy(batch[1])


def loader(work: str) -> Iterator[Any]:
    """Batches of a DataLoader with one process, without end."""
    import torch.utils.data

    of_torch: Any = torch.utils.data.DataLoader
    batches = of_torch(
        Prepared(work), SHAPES[work][1], shuffle=True, num_workers=1, drop_last=True, persistent_workers=True,
        collate_fn=as_tensors,
    )  # fmt: skip
    while True:
        yield from batches


def dataset_task(function: str) -> tuple[dps.Server, subprocess.Popen[bytes]]:
    """A chief, and the process of a dataset task that serves a function of this file."""
    chief = dps.Server(None, "chief", 0, ps=0, workers=0, owned=True, trusted_network=True)
    program = f"{Path(__file__).resolve()}:{function}"
    flags = ["--job", "dataset", "--trusted-network", "--chief", chief.address, "--program", program]
    return chief, subprocess.Popen([sys.executable, "-m", "dps.role", *flags], stdout=subprocess.DEVNULL)


def feeding(function: str) -> tuple[Iterator[Any], Callable[[], None]]:
    """Batches of a dataset task that serves a function of this file, and what ends it and the chief that it has."""
    chief, task = dataset_task(function)
    worker = dps.Server(None, "worker", 0, chief=chief.address, trusted_network=True)
    batches = iter(dps.data.remote(worker))

    def stop() -> None:
        batches.close()
        worker.stop()
        chief.stop()
        task.wait(10)

    return batches, stop


def per_second(batches: Iterator[Any], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count / (time.perf_counter() - began)


def measured(work: str, rounds: int) -> dict[str, list[float]]:
    """Batches per second of each way, by round."""
    fed, unsent = feeding(work), feeding(f"{work}_unsent")
    ways: dict[str, Iterator[Any]] = {
        "worker": iter(pipeline(work)), "thread": iter(pipeline(work).prefetch(4)), "dataset task": fed[0],
        "nothing sent": unsent[0],
    }  # fmt: skip
    try:
        import torch  # noqa: F401

        ways["DataLoader"] = loader(work)
    except ImportError:
        print("torch is not installed: no DataLoader", file=sys.stderr)
    found: dict[str, list[float]] = {way: [] for way in ways}
    for batches in ways.values():
        per_second(batches, 10)  # started, and what is ahead is used up in part
    for turn in range(rounds):
        order = list(ways)
        for way in order[turn % len(order) :] + order[: turn % len(order)]:
            found[way].append(per_second(ways[way], COUNTS[work]))
    for _, stop in (fed, unsent):
        stop()
    return found


def busy(chief: str, step_s: float) -> None:
    """A worker whose steps take a time, asleep, so that several fit on the cores that there are: prints a line of JSON
    with the share of the time in which it does not wait for its next batch."""
    with dps.Server(None, "worker", None, chief=chief, trusted_network=True) as server:
        server.wait_joined(server.runtime.now() + 30)
        batches = iter(dps.data.remote(server))
        next(batches)
        began, steps, waited_s = time.perf_counter(), 0, 0.0
        while time.perf_counter() < began + BUSY_S:
            time.sleep(step_s)
            asked = time.perf_counter()
            next(batches)
            waited_s += time.perf_counter() - asked
            steps += 1
        took_s = time.perf_counter() - began
        batches.close()
    print(json.dumps({"step_ms": 1000 * step_s, "steps": steps, "busy": 1 - waited_s / took_s}), flush=True)


def kept_busy(steps_s: list[float]) -> list[dict[str, float]]:
    """What workers with these steps say that one dataset task feeds, and the most memory that the task had, in MB."""
    chief, task = dataset_task("mnist")
    own = [sys.executable, __file__, "--busy-worker", chief.address]
    workers = [subprocess.Popen([*own, str(step_s)], stdout=subprocess.PIPE, text=True) for step_s in steps_s]
    found: list[dict[str, float]] = [json.loads(worker.communicate()[0]) for worker in workers]
    most_mb = int(Path(f"/proc/{task.pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1e3
    chief.stop()
    task.wait(10)
    return [*found, {"most_mb": most_mb}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    parser.add_argument(
        "--busy", action="store_true", help="four workers fed by one task instead, then one of them slow"
    )
    parser.add_argument("--busy-worker", nargs=2, metavar=("CHIEF", "SECONDS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.busy_worker:
        busy(args.busy_worker[0], float(args.busy_worker[1]))
        return
    if args.busy:
        print(json.dumps({"even": kept_busy([STEP_S] * 4), "one slow": kept_busy([STEP_S] * 3 + [20 * STEP_S])}))
        return
    results = {work: measured(work, args.rounds) for work in args.works}
    if args.json:
        print(json.dumps(results))
        return
    print(f"{'work':8} {'way':14} {'batches/s':>10} {'over worker':>12}")
    for work, found in results.items():
        for way, rates in found.items():
            ratio = statistics.median(a / b for a, b in zip(rates, found["worker"], strict=True))
            print(f"{work:8} {way:14} {statistics.median(rates):10.0f} {ratio:12.2f}")


if __name__ == "__main__":
    main()
