"""A JAX model whose parameters live on the ps: `session.step` takes the gradients and gives the next parameters.

The loss and its gradients are one compiled function; the optimizer runs on the ps. Needs JAX
(`pip install "dps[jax]"`) and the images of examples/mnist.py.

    python examples/jax_mnist.py                                             chief, ps and worker in one process
    dps launch --ps 2 --workers 2 examples/jax_mnist.py -- --steps 300       a process for each task
    python -m dps.role --job worker --program examples/jax_mnist.py          one more worker for a running cluster
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from mnist import images_and_labels, images_file, initial_params  # first: it sets numpy's threads

import dps

images_file()  # says what to install, before the library takes its time to load
try:
    import jax
    import jax.numpy as jnp
except ImportError:
    sys.exit('jax_mnist.py: JAX is not installed; get it by: pip install "dps[jax]"')


def scores(params: Any, images: Any) -> Any:
    hidden = jax.nn.relu(images @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["out"]["w"] + params["out"]["b"]


def cross_entropy(params: Any, images: Any, labels: Any) -> Any:
    log_probabilities = jax.nn.log_softmax(scores(params, images))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()


loss_and_gradients = jax.jit(jax.value_and_grad(cross_entropy))


def train(server: dps.Server, steps: int, batch: int) -> tuple[int, float]:
    """Train until the shared global step is `steps`; that step, and the accuracy on images kept aside."""
    images, labels, test_images, test_labels = images_and_labels()
    key = jax.random.key(100 + server.task)  # each worker draws its own batches
    hooks = [dps.StopAtStep(last_step=steps)]
    with dps.Session(server, initial_params(), optimizer=dps.optim.Adam(0.002), hooks=hooks) as session:
        params = session.pull()
        while not session.should_stop():
            key, drawn = jax.random.split(key)
            chosen = jax.random.randint(drawn, (batch,), 0, len(images))
            loss, gradients = loss_and_gradients(params, images[chosen], labels[chosen])
            params = session.step(gradients, loss=loss)
            if session.global_step % 50 == 0:
                print(f"step {session.global_step:4d}  loss {loss:.3f}", flush=True)
    accuracy = float((scores(params, test_images).argmax(axis=1) == test_labels).mean())
    return session.global_step, accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a JAX model on 5,000 MNIST images.")
    parser.add_argument("--steps", type=int, default=300, help="global steps to train for (default %(default)s)")
    parser.add_argument("--batch", type=int, default=100, help="images in a worker's batch (default %(default)s)")
    args = parser.parse_args()
    with dps.Server.from_env(local=True) as server:
        step, accuracy = train(server, args.steps, args.batch)
    print(f"done at step {step}, test accuracy {accuracy:.3f}")
    print("Try next: dps launch --ps 2 --workers 2 --update sync examples/jax_mnist.py")


if __name__ == "__main__":
    main()
