"""One program drives the workers, which serve the functions of this file: TensorFlow's in-graph replication.

The two layers of the MNIST network are pinned to ps 0 and ps 1. This program computes nothing itself; it has workers

    python examples/in_graph.py                  pull, compute and push, each by itself (asynchronous)
    python examples/in_graph.py --mode sync      compute the gradients of parts of a batch, whose mean it pushes
    python examples/in_graph.py --mode model     compute one layer each: a model on two workers

or, by one line for the cluster and the program:

    dps launch --ps 2 --workers 2 --serve examples/in_graph.py examples/in_graph.py -- --mode sync
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from mnist import forward, images_and_labels, images_file, initial_params, loss_and_gradients  # sets numpy's threads

import dps

Batch = tuple[np.ndarray, np.ndarray]

# -- what workers run ------------------------------------------------------------------------------------------


def batches(task: int) -> Iterator[Batch]:
    """Batches without end; each worker makes its own, from its number."""
    images, labels, *_ = images_and_labels()
    rng = np.random.default_rng(task)
    while True:
        rows = rng.integers(0, len(images), 100)
        yield images[rows], labels[rows]


def step(session: dps.Session, batches: Iterator[Batch]) -> float:
    loss, gradients = loss_and_gradients(session.pull(), *next(batches))
    session.push(gradients, loss=loss)
    return loss


def tower(params: Any, images: np.ndarray, labels: np.ndarray) -> Any:
    return loss_and_gradients(params, images, labels)[1]


def first_layer(session: dps.Session, images: np.ndarray) -> np.ndarray:
    layer = session.pull(names=["hidden/w", "hidden/b"])["hidden"]
    return np.maximum(images @ layer["w"] + layer["b"], 0)


def second_layer(session: dps.Session, hidden: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Pushes the gradients of this layer; returns the gradient of its input."""
    layer = session.pull(names=["out/w", "out/b"])["out"]
    scores = np.exp(hidden @ layer["w"] + layer["b"])
    back = scores / scores.sum(axis=1, keepdims=True)
    back[np.arange(len(labels)), labels] -= 1
    back /= np.float32(len(labels))
    session.push({"out": {"w": hidden.T @ back, "b": back.sum(axis=0)}})
    return back @ layer["w"].T * (hidden > 0)


def first_backward(session: dps.Session, images: np.ndarray, back: np.ndarray) -> None:
    session.push({"hidden": {"w": images.T @ back, "b": back.sum(axis=0)}})


# -- the program -----------------------------------------------------------------------------------------------


def pinned() -> Any:
    params = initial_params()
    for ps, layer in enumerate(params):
        with dps.device(f"/job:ps/task:{ps}"):
            params[layer] = {name: dps.Variable(array) for name, array in params[layer].items()}
    return params


def asynchronous(session: dps.Session, coordinator: dps.Coordinator, steps: int) -> None:
    data = iter(coordinator.create_per_worker_dataset(batches))
    for _ in range(steps):
        coordinator.schedule(step, args=(session, data))
    coordinator.join()


def synchronous(session: dps.Session, coordinator: dps.Coordinator, steps: int) -> None:
    for (images, labels), _ in zip(batches(0), range(steps), strict=False):
        params, halves = session.pull(), zip(np.split(images, 2), np.split(labels, 2), strict=True)
        one, two = coordinator.fetch([coordinator.schedule(tower, args=(params, *half)) for half in halves])
        session.push({layer: {name: (one[layer][name] + two[layer][name]) / 2 for name in one[layer]} for layer in one})


def layers_on_two_workers(session: dps.Session, coordinator: dps.Coordinator, steps: int) -> None:
    for (images, labels), _ in zip(batches(0), range(steps), strict=False):
        with dps.device("/job:worker/task:0"):
            hidden = session.run(first_layer, session, images)
        with dps.device("/job:worker/task:1"):
            back = session.run(second_layer, session, hidden, labels)
        with dps.device("/job:worker/task:0"):
            session.run(first_backward, session, images, back)


MODES = {"async": asynchronous, "sync": synchronous, "model": layers_on_two_workers}


def train(target: dps.Server | str, mode: str, steps: int) -> float:
    *_, images, labels = images_and_labels()
    with (
        dps.Session(target, pinned(), optimizer=dps.optim.SGD(0.2)) as session,
        dps.Coordinator(target) as coordinator,
    ):
        MODES[mode](session, coordinator, steps)
        right = forward(session.pull(), images)[1].argmax(axis=1) == labels
    print(f"{mode}: test accuracy {right.mean():.3f} after {steps} steps")
    return float(right.mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default="async")
    parser.add_argument("--steps", type=int, default=300)
    flags = parser.parse_args()
    images_file()  # ends here where the images are missing
    if "DPS_CHIEF" in os.environ:  # `dps launch` has started a cluster for this program
        with dps.Server.from_env() as server:
            train(server, flags.mode, flags.steps)
    else:
        with dps.LocalCluster(ps=2, workers=2, serve=__file__) as local:
            train(local.target, flags.mode, flags.steps)
