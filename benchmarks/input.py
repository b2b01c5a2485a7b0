"""Input in four ways, by turns: read in the worker, ahead on a thread, by a dataset task, by torch's DataLoader.

    python benchmarks/input.py                        # 5 rounds of all works
    python benchmarks/input.py --works mnist --rounds 9 --json

Works: "mnist", batches of 100 images of 28 x 28 (0.3 MB as float32), and "images", batches of 64 of 3 x 64 x 64 (3 MB).
Every way shuffles the same bytes in memory and prepares each batch with the same function: scaled, noise added,
normalised. The dataset task and the DataLoader have one process beside the worker. The worker computes nothing, so that
the figures are what the input can do: batches per second, medians over the rounds, and over "worker" in each round.
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

    made: Any = torch.utils.data.DataLoader(
        Prepared(work),  # type: ignore[arg-type]
        SHAPES[work][1], shuffle=True, num_workers=1, drop_last=True, persistent_workers=True,
        collate_fn=as_tensors,  # type: ignore[arg-type]
    )  # fmt: skip
    while True:
        yield from made


def feeding(work: str) -> tuple[Iterator[Any], Callable[[], None]]:
    """Batches of a dataset task, and what ends it and the chief that it has."""
    chief = dps.Server(None, "chief", 0, ps=0, workers=0, owned=True)
    program = f"{Path(__file__).resolve()}:{work}"
    command = [sys.executable, "-m", "dps.role", "--job", "dataset", "--chief", chief.address, "--program", program]
    task = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    worker = dps.Server(None, "worker", 0, chief=chief.address)
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
    fed, stop = feeding(work)
    ways: dict[str, Iterator[Any]] = {
        "worker": iter(pipeline(work)), "thread": iter(pipeline(work).prefetch(4)), "dataset task": fed,
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
    stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    args = parser.parse_args()
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
