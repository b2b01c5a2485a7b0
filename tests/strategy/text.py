"""The training text of the tf.distribute guide, which all strategies run unchanged, and what it must give."""

from __future__ import annotations

from typing import Any

import numpy as np

import dps

GUIDE = [
    0.80679005, 0.8006732, 0.7946168, 0.78862023, 0.782683, 0.77680445, 0.77098423, 0.7652217, 0.7595164, 0.75386775,
    0.7482752, 0.74273825, 0.7372565, 0.7318293, 0.7264561, 0.7211364, 0.71586984, 0.7106557, 0.7054935, 0.7003829,
    0.69532317, 0.690314, 0.68535477, 0.680445, 0.67558426, 0.67077184, 0.66600746, 0.66129065, 0.6566208, 0.6519975,
]  # fmt: skip
"""The losses that the guide prints: x = 1, label 1, kernel -0.2156789, bias 0, SGD(0.01)."""


def data(examples: int = 300, seed: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, 3)).astype(np.float64)
    return x, (x.sum(1, keepdims=True) + rng.normal(size=(examples, 1)) > 0).astype(np.float64)


def batches(size: int, count: int) -> list[Any]:
    x, y = data(size * count)
    return [(x[i * size : (i + 1) * size], y[i * size : (i + 1) * size]) for i in range(count)]


def guide_batches(size: int, count: int = 30) -> list[Any]:
    return [(np.ones((size, 1)), np.ones((size, 1)))] * count


def guide_params() -> dict[str, Any]:
    return {"kernel": np.full((1, 1), -0.2156789), "bias": np.zeros(1)}


def params() -> dict[str, Any]:
    return {"kernel": np.full((3, 1), 0.1), "bias": np.zeros(1)}


def loss_and_gradients(values: Any, x: Any, y: Any, size: int) -> tuple[Any, dict[str, Any]]:
    """Binary cross-entropy from logits, averaged over the global batch."""
    logits = x @ values["kernel"] + values["bias"]
    losses = np.maximum(logits, 0) - logits * y + np.log1p(np.exp(-np.abs(logits)))
    d = (1 / (1 + np.exp(-logits)) - y) / size
    return dps.strategy.average_loss(losses, size), {"kernel": x.T @ d, "bias": d.sum(0)}


def train(strategy: Any, first: Any, dataset: list[Any], optimizer: Any = None) -> tuple[list[float], Any]:
    """The losses of the steps, and the values at the end."""
    size = len(dataset[0][0])
    with strategy.scope():
        variables = strategy.variables(first, optimizer=optimizer or dps.optim.SGD(0.01))

    def step(batch: Any) -> Any:
        x, y = batch
        loss, grads = loss_and_gradients(variables.read(), x, y, size)
        variables.apply_gradients(grads)
        return loss

    losses = []
    for batch in strategy.distribute_dataset(dataset):
        per_replica = strategy.run(step, args=(batch,))
        losses.append(float(strategy.reduce("SUM", per_replica, axis=None)))
    return losses, variables.read()


def plain(first: Any, dataset: list[Any], rate: float = 0.01) -> tuple[list[float], Any]:
    """The same with plain SGD, without dps."""
    values = {name: value.copy() for name, value in first.items()}
    losses = []
    for x, y in dataset:
        loss, grads = loss_and_gradients(values, x, y, len(x))
        losses.append(float(loss))
        for name, gradient in grads.items():
            values[name] -= rate * gradient
    return losses, values
