"""Models of dps.nn on a GPU, or in numba's simulator, give what they give on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps import nn


class AllLayers(nn.Model):
    """A layer of each kind; one is called twice."""

    def __init__(self) -> None:
        super().__init__(dtype="float64", seed=3)
        self.table, self.shared = nn.Embedding(6, 2), nn.Dense(4, activation="sigmoid")
        self.noise, self.out = nn.Dropout(0.5), nn.Dense(2)

    def call(self, inputs: Any) -> Any:
        numbers, x = inputs
        h = self.shared(nn.Flatten()(x))
        h = nn.Activation("tanh")(self.shared(h)) + h
        return self.out(self.noise(nn.Concatenate()([self.table(numbers), h])))


def result(strategy: Any) -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(1)
    xs, y = [rng.integers(0, 6, (5, 2)), rng.normal(size=(5, 2, 2))], rng.integers(0, 2, 5)
    with strategy.scope():
        model = AllLayers()
    model.compile(dps.optim.Momentum(0.5), "sparse_categorical_crossentropy", ["accuracy"])
    history = model.fit(xs, y, batch_size=5, verbose=0, shuffle=False)
    return [history.history["loss"], model.evaluate(xs, y, verbose=0), model.predict(xs)], model.get_weights()


@pytest.mark.parametrize("strategy", ["OneDevice", "Mirrored"])
def test_a_model_on_a_gpu_is_that_on_the_cpu(strategy: str) -> None:
    make = getattr(dps.strategy, strategy)
    found, wanted = (result(make(where if strategy == "OneDevice" else [where])) for where in ("/gpu:0", "/cpu:0"))
    for got, value in zip([*found[0], *found[1]], [*wanted[0], *wanted[1]], strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-9, atol=1e-12)
