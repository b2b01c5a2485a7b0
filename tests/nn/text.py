"""The Keras example of the tf.distribute guide, which all strategies run unchanged, and what it must give."""

from __future__ import annotations

from typing import Any

import numpy as np

import dps

GUIDE = [2.0391, 0.9013, 0.5597, 0.3984, 0.1761]
"""What the guide prints: two epochs of a dataset, an evaluation, two epochs of arrays."""
KERNEL = -0.6926265


def losses_of(strategy: Any, dtype: str = "float64") -> list[float]:
    """The guide's example, on 100 rows of ones in batches of 10."""
    with strategy.scope():
        model = dps.nn.Sequential([dps.nn.Dense(1, input_shape=(1,))], dtype=dtype)
    model.compile(loss="mse", optimizer="sgd")
    model.set_weights([np.array([[KERNEL]]), np.zeros(1)])
    dataset = dps.data.from_arrays(np.ones((100, 1)), np.ones((100, 1))).batch(10)
    losses = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    losses.append(model.evaluate(dataset, verbose=0))
    inputs, targets = np.ones((100, 1)), np.ones((100, 1))
    return losses + model.fit(inputs, targets, epochs=2, batch_size=10, verbose=0).history["loss"]


def plain_losses() -> list[float]:
    """The same with plain SGD, without dps."""
    kernel, bias, losses = KERNEL, 0.0, []
    for epoch in range(4):
        of_steps = []
        for _ in range(10):
            error = kernel + bias - 1
            of_steps.append(error**2)
            kernel, bias = kernel - 0.01 * 2 * error, bias - 0.01 * 2 * error
        losses.append(float(np.mean(of_steps)))
        if epoch == 1:
            losses.append((kernel + bias - 1) ** 2)
    return losses


def data(examples: int = 61, seed: int = 3) -> tuple[Any, Any]:
    """Three features, and a class of 0 to 2."""
    x = np.random.default_rng(seed).normal(size=(examples, 3))
    return x, x.argmax(axis=1)


def two_layers(dtype: str = "float64") -> dps.nn.Sequential:
    return dps.nn.Sequential([dps.nn.Dense(5, activation="tanh"), dps.nn.Dense(3)], dtype=dtype, seed=4)


def curve_of(strategy: Any, optimizer: Any = None, epochs: int = 3) -> tuple[dict[str, list[float]], list[Any]]:
    """History and weights of a network of two layers, in batches that do not divide."""
    x, y = data()
    with strategy.scope():
        model = two_layers()
    model.compile(optimizer or dps.optim.Momentum(0.1), "sparse_categorical_crossentropy", ["accuracy"])
    history = model.fit(x, y, epochs=epochs, batch_size=8, seed=7, verbose=0, validation_data=(x[:9], y[:9]))
    return history.history, model.get_weights()


def same_curve(found: Any, wanted: Any) -> None:
    """Two results of `curve_of`, to 1e-6."""
    assert list(found[0]) == list(wanted[0])
    for name, values in wanted[0].items():
        np.testing.assert_allclose(found[0][name], values, atol=1e-6, err_msg=name)
    for got, weight in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(got, weight, atol=1e-6)
