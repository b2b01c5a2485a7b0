"""What `make demo` shows: real MNIST images, a chief, 2 ps and 2 workers as processes, asynchronous and synchronous."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers, which inherit it, share the cores

import sys

from mnist import images_file, train

import dps

WANTED_ACCURACY = 0.92
STEPS, BATCH, RATE, PS = 600, 100, 0.2, 2


def trained(mode: str) -> dict[str, float]:
    """Train once with this update mode; what the two workers report, put together."""
    with dps.LocalCluster(ps=PS, workers=2, processes=True) as local:
        run = local.run(train, mode, STEPS, BATCH, RATE, "Adagrad", PS)
        run.wait()
        results = run.results
    pushes, seconds = sum(r["pushes"] for r in results), max(r["seconds"] for r in results)
    return {
        "steps": STEPS,
        "seconds": seconds,
        "examples": pushes * BATCH / seconds,
        "staleness": sum(r["staleness"] * r["pushes"] for r in results) / pushes,
        "accuracy": min(r["accuracy"] for r in results),
    }


def main() -> int:
    images_file()
    rows = []
    for mode, meaning in (
        ("async", "each gradient is applied when it arrives"),
        ("sync", "two gradients are averaged, then applied once"),
    ):
        print(f"\n-- {mode}: {meaning}; {STEPS} steps, 2 ps, 2 workers, batches of {BATCH}", flush=True)
        rows.append((mode, trained(mode)))
    print(f"\n{'mode':6} {'steps':>6} {'seconds':>8} {'examples/s':>11} {'mean staleness':>15} {'test accuracy':>14}")
    for mode, row in rows:
        print(
            f"{mode:6} {row['steps']:6.0f} {row['seconds']:8.1f} {row['examples']:11,.0f} "
            f"{row['staleness']:15.2f} {row['accuracy']:14.3f}"
        )
    low = [mode for mode, row in rows if row["accuracy"] < WANTED_ACCURACY]
    if low:
        print(f"\naccuracy is below {WANTED_ACCURACY} in mode {' and '.join(low)}: something is wrong", file=sys.stderr)
        return 1
    print("\nTry next: .venv/bin/dps launch --ps 2 --workers 4 --update bounded:2 examples/mnist.py -- --steps 800")
    return 0


if __name__ == "__main__":  # worker processes import this file again
    sys.exit(main())
