"""A loop of one's own on a dict of arrays: no hook says when to stop, the loop does.

Linear regression on seeded data. Each worker goes through the examples in an order of its own and stops by itself when
the error on examples that it does not train with no longer falls. Whatever the update mode, the text is the same:

    python examples/custom_loop.py                                             chief, ps and worker in one process
    dps launch --ps 2 --workers 3 examples/custom_loop.py -- --epochs 10       a process for each task
    dps launch --workers 2 --update bounded:2 examples/custom_loop.py          no worker more than 2 steps ahead
    python -m dps.role --job worker --program examples/custom_loop.py          one more worker for a running cluster
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: workers share the cores

import argparse

import numpy as np

import dps

KEPT = 1000
"""Examples kept aside: nobody trains with them."""


def examples(n: int = 4000, width: int = 50) -> tuple[np.ndarray, np.ndarray, float]:
    """Inputs (n, width), targets (n,): a weighted sum, a shift and noise; and the mean squared noise of those kept."""
    rng = np.random.default_rng(1)
    inputs, weights, noise = rng.normal(size=(n, width)), rng.normal(size=width), rng.normal(0, 0.5, n)
    targets = inputs @ weights + 3 + noise
    return inputs.astype(np.float32), targets.astype(np.float32), float(np.mean(noise[:KEPT] ** 2))


def loss_and_gradients(
    params: dict[str, np.ndarray], inputs: np.ndarray, targets: np.ndarray
) -> tuple[float, dict[str, np.ndarray]]:
    """Mean squared error, and its gradients under the names of the parameters."""
    off = inputs @ params["weights"] + params["shift"] - targets
    scaled = 2 * off / np.float32(len(off))
    return float(np.mean(off**2)), {"weights": inputs.T @ scaled, "shift": scaled.sum(keepdims=True)}


def train(server: dps.Server, epochs: int = 20, batch: int = 100, rate: float = 0.01) -> tuple[int, float]:
    """The epochs that this worker went through, and its best error on the examples kept aside."""
    inputs, targets, _ = examples()
    kept_inputs, kept_targets, inputs, targets = inputs[:KEPT], targets[:KEPT], inputs[KEPT:], targets[KEPT:]
    params = {"weights": np.zeros(inputs.shape[1], np.float32), "shift": np.zeros(1, np.float32)}
    best, epoch = float("inf"), 0
    with dps.Session(server, params, optimizer=dps.optim.Momentum(rate)) as session:
        rng = np.random.default_rng([session.version.epoch, server.task])
        params = session.pull()  # what the ps has: another worker may have begun before
        for epoch in range(1, epochs + 1):
            for chosen in np.array_split(rng.permutation(len(inputs)), len(inputs) // batch):
                loss, grads = loss_and_gradients(params, inputs[chosen], targets[chosen])
                params = session.step(grads, loss=loss)  # push and pull in one round trip
                if session.should_stop():  # Ctrl-C, or the run has ended
                    return epoch, best
            error, _ = loss_and_gradients(params, kept_inputs, kept_targets)
            print(f"epoch {epoch:2d}  step {session.global_step:4d}  error {error:.4f}", flush=True)
            if error > 0.999 * best:
                break  # the session closes and the others go on; in sync they average over fewer
            best = error
    return epoch, best


def main() -> None:
    parser = argparse.ArgumentParser(description="Linear regression in a loop of one's own.")
    parser.add_argument(
        "--epochs", type=int, default=20, help="times through the examples at most (default %(default)s)"
    )
    parser.add_argument("--batch", type=int, default=100, help="examples in a batch (default %(default)s)")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate (default %(default)s)")
    args = parser.parse_args()
    with dps.Server.from_env(local=True) as server:
        epochs, best = train(server, args.epochs, args.batch, args.rate)
    print(f"stopped in epoch {epochs}: error {best:.4f}, of which noise {examples()[2]:.4f}")
    print("Try next: dps launch --ps 2 --workers 3 --update sync examples/custom_loop.py")


if __name__ == "__main__":
    main()
