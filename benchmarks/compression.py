"""What compression costs and saves: the network of examples/mnist.py, trained once with each compressor.

    python benchmarks/compression.py [--steps 200] [--seeds 1] [--json FILE]

Two workers and a ps in this process, synchronous steps, so a row's accuracy is the same at every run of one machine.
Shared memory is off: bytes are those that one worker and the ps exchange in one step. With the package lz4 installed,
its figures for real gradients are shown as well.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: the workers share the cores

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import mnist  # type: ignore[import-not-found]

import dps
from dps.training.compression import Bfloat16, Float16, Int8, RandomK, TopK

WORKERS, BATCH, RATE = 2, 100, 0.2
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("Float16()", {"compression": Float16()}),
    ("Bfloat16()", {"compression": Bfloat16()}),
    ("Int8()", {"compression": Int8()}),
    ("Int8(feedback=False)", {"compression": Int8(feedback=False)}),
    ("TopK(0.1)", {"compression": TopK(0.1)}),
    ("TopK(0.01)", {"compression": TopK(0.01)}),
    ("TopK(0.001)", {"compression": TopK(0.001)}),
    ("TopK(0.01), biases left alone", {"compression": {"*/b": None, "*": TopK(0.01)}}),
    ("RandomK(0.1)", {"compression": RandomK(0.1)}),
    ("RandomK(0.01)", {"compression": RandomK(0.01)}),
    ("none; pulls Float16()", {"pull_compression": Float16()}),
    ("none; pulls Bfloat16()", {"pull_compression": Bfloat16()}),
    ("Int8(); pulls Float16()", {"compression": Int8(), "pull_compression": Float16()}),
    ("none; pull_deltas", {"pull_deltas": True}),
    ("TopK(0.01); pull_deltas", {"compression": TopK(0.01), "pull_deltas": True}),
    (
        "TopK(0.01); pulls Float16(), pull_deltas",
        {"compression": TopK(0.01), "pull_compression": Float16(), "pull_deltas": True},
    ),
]
"""Name, and arguments of the session."""


def train(server: Any, data: Any, steps: int, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train; accuracy on the test images, seconds, those of the processor in all tasks, bytes."""
    images, labels, test_images, test_labels = data
    rng = np.random.default_rng([seed, server.task])
    with dps.Session(
        server, mnist.initial_params(), optimizer=dps.optim.Adagrad(RATE), update=dps.SyncReplicas(),
        shared_memory=False, **settings,
    ) as session:  # fmt: skip
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            chosen = rng.integers(len(images), size=BATCH)
            _, grads = mnist.loss_and_gradients(session.pull(), images[chosen], labels[chosen])
            session.push(grads)
        seconds, cpu, traffic = time.perf_counter() - started, time.process_time() - cpu, session.traffic
        right = mnist.forward(session.pull(), test_images)[1].argmax(axis=1) == test_labels
    plain = sum(a.nbytes for layer in mnist.initial_params().values() for a in layer.values())
    pushed, pulled = (plain, plain) if traffic is None else (traffic.pushed / steps, traffic.pulled / steps)
    return {"accuracy": float(right.mean()), "seconds": seconds, "cpu": cpu, "pushed": pushed, "pulled": pulled}


def row(name: str, data: Any, steps: int, settings: dict[str, Any], seeds: int) -> dict[str, Any]:
    """The mean over the seeds, and the lowest accuracy of them."""
    found = []
    for seed in range(seeds):
        with dps.LocalCluster(ps=1, workers=WORKERS, processes=False) as local:
            run = local.run(train, data, steps, settings, seed)
            run.wait()
            found.append(run.results[0])
    means = {key: float(np.mean([r[key] for r in found])) for key in found[0]}
    return {"compressor": name, **means, "lowest": min(r["accuracy"] for r in found)}


def print_table(rows: list[dict[str, Any]]) -> None:
    plain = rows[0]
    print("| compressor | bytes pushed | of plain | bytes pulled | of plain | accuracy | lowest | seconds | CPU |")
    print("|" + " --- |" * 9)
    for r in rows:
        print(
            f"| {r['compressor']} | {r['pushed']:,.0f} | {r['pushed'] / plain['pushed']:.3f} | {r['pulled']:,.0f} "
            f"| {r['pulled'] / plain['pulled']:.3f} | {r['accuracy']:.3f} | {r['lowest']:.3f} | {r['seconds']:.1f} "
            f"| {r['cpu']:.1f} |"
        )


def flattened(tree: Any) -> np.ndarray:
    return np.concatenate([a.ravel() for layer in tree.values() for a in layer.values()]).astype(np.float32)


def gradients(data: Any, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Real gradients and values on the way through plain training: the first, and some later ones, flat."""
    images, labels, _, _ = data
    rng, params = np.random.default_rng(0), mnist.initial_params()
    sums: Any = {}
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for step in range(steps):
        chosen = rng.integers(len(images), size=BATCH)
        _, grads = mnist.loss_and_gradients(params, images[chosen], labels[chosen])
        for layer, name in [(layer, name) for layer, arrays in params.items() for name in arrays]:
            g = grads[layer][name].astype(np.float32)
            total = sums[layer, name] = sums.get((layer, name), np.float32(0.1)) + g * g
            params[layer][name] = params[layer][name] - np.float32(RATE) * g / np.sqrt(total)
        if step % (steps // 3) == 0:
            found.append((flattened(grads), flattened(params)))
    return found


def best_s(work: Any) -> float:
    """The shortest of some calls."""
    times = []
    for _ in range(20):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def print_codec(data: Any, steps: int) -> None:
    """What lz4 makes of gradients, beside the cast to halves."""
    try:
        import lz4.block  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        print("\nlz4 is not installed; its figures are left out (pip install lz4)")
        return
    from dps.kernels import compress as kernels

    print("\n| gradient | zeros | lz4 of plain | lz4 without the zeros | lz4 of values | lz4 GB/s | Float16 GB/s |")
    print("|" + " --- |" * 7)
    for number, (flat, values) in enumerate(gradients(data, steps)):
        raw, dense, bits = flat.tobytes(), flat[flat != 0].tobytes(), np.empty(len(flat), np.uint16)
        lz4_s = best_s(lambda raw=raw: lz4.block.compress(raw))
        cast_s = best_s(lambda flat=flat, bits=bits: kernels.to_float16(bits, flat))
        print(
            f"| {number * (steps // 3) + 1} | {1 - len(dense) / len(raw):.2f} "
            f"| {len(lz4.block.compress(raw)) / len(raw):.2f} | {len(lz4.block.compress(dense)) / len(dense):.2f} "
            f"| {len(lz4.block.compress(values.tobytes())) / values.nbytes:.2f} "
            f"| {len(raw) / lz4_s / 1e9:.2f} | {len(raw) / cast_s / 1e9:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on MNIST with each compressor.")
    parser.add_argument("--steps", type=int, default=200, help="steps of each training (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each row (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows to this file as well")
    args = parser.parse_args()
    data = mnist.images_and_labels()
    for name, settings in ROWS:
        row(name, data, 2, settings, 1)  # loads and compiles kernels
    rows = [row(name, data, args.steps, settings, args.seeds) for name, settings in ROWS]
    print_table(rows)
    print_codec(data, args.steps)
    if args.json:
        args.json.write_text(json.dumps({"steps": args.steps, "seeds": args.seeds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
