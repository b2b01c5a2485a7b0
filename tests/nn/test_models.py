"""Models: sequential, functional and subclassed; gradients of every layer and loss against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps import nn
from dps.errors import ConfigError
from dps.layers.place import place_for
from dps.nn.batches import ModelBatch
from dps.nn.layer import Computation
from dps.nn.losses import LOSSES
from dps.nn.training import parts_of

X = np.random.default_rng(1).normal(size=(6, 4))


class Doubled(nn.Layer):
    """A layer of a user: scale * x."""

    kind = "doubled"

    def initial(self, rng: Any, dtype: Any) -> dict[str, Any]:
        return {"scale": np.full(1, 2.0, dtype)}

    def forward(self, computation: Any, params: Any, *inputs: Any) -> tuple[Any, Any]:
        return inputs[0] * params["scale"], inputs[0]

    def backward(self, computation: Any, params: Any, kept: Any, dout: Any) -> Any:
        return [dout * params["scale"]], {"scale": np.array([(dout * kept).sum()])}


class Subclassed(nn.Model):
    """Two branches that share a layer; noise while it trains."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__(dtype="float64", seed=2)
        self.shared, self.out, self.noise = nn.Dense(4, activation="tanh"), nn.Dense(3), nn.Dropout(noise)

    def call(self, inputs: Any, training: bool = False) -> Any:
        h = self.shared(inputs)
        if training:
            h = self.noise(h)
        return self.out(self.shared(h) + h)


def functional() -> nn.Model:
    x = nn.Input(4)
    h = nn.Dense(4, activation="sigmoid", name="first")(x)
    a, b = nn.Dense(2, activation="relu")(h), nn.Activation("tanh")(h)
    joined = nn.Concatenate()([a, b, nn.Add()([h, b])])
    return nn.Model(inputs=x, outputs=nn.Dense(3)(joined), dtype="float64", seed=3)


MODELS = {
    "sequential": lambda: nn.Sequential(
        [nn.Flatten(), nn.Dense(5, activation="relu"), Doubled(), nn.Dense(3)], dtype="float64", seed=1
    ),
    "functional": functional,
    "subclassed": Subclassed,
}  # fmt: skip


def targets(loss: str, outputs: int = 3) -> Any:
    rng = np.random.default_rng(5)
    if loss == "sparse_categorical_crossentropy":
        return rng.integers(0, outputs, 6)
    if loss == "categorical_crossentropy":
        return np.eye(outputs)[rng.integers(0, outputs, 6)]
    if loss == "binary_crossentropy":
        return rng.integers(0, 2, (6, outputs))
    return rng.normal(size=(6, outputs))


def gradients_and_slopes(model: nn.Model, loss: str, x: Any = X) -> tuple[list[Any], list[Any]]:
    """What a step of SGD(1) subtracts, and the slopes of the loss."""
    y = targets(loss)
    model.compile(dps.optim.SGD(1.0), loss)
    model.evaluate(x, y, verbose=0)
    before = [np.array(w) for w in model.get_weights()]
    slopes = []
    for number, weight in enumerate(before):
        slope = np.zeros_like(weight)
        for at in np.ndindex(*weight.shape):
            ends = []
            for h in (1e-6, -1e-6):
                moved = [w.copy() for w in before]
                moved[number][at] += h
                model.set_weights(moved)
                ends.append(model.evaluate(x, y, verbose=0))
            slope[at] = (ends[0] - ends[1]) / 2e-6
        slopes.append(slope)
    model.set_weights(before)
    model.fit(x, y, batch_size=6, verbose=0)
    return [b - w for b, w in zip(before, model.get_weights(), strict=True)], slopes


@pytest.mark.parametrize(("kind", "loss"), [*((kind, "mse") for kind in MODELS), *(("functional", n) for n in LOSSES)])
def test_gradients_are_the_slopes_of_the_loss(kind: str, loss: str) -> None:
    found, wanted = gradients_and_slopes(MODELS[kind](), loss)
    for gradient, slope in zip(found, wanted, strict=True):
        np.testing.assert_allclose(gradient, slope, atol=1e-7)


def test_an_embedding_learns_the_rows_that_are_named() -> None:
    model = nn.Sequential([nn.Embedding(10, 2), nn.Dense(3)], dtype="float64")
    numbers = np.array([[1, 2], [2, 7], [1, 1], [0, 2], [7, 7], [2, 2]])
    found, wanted = gradients_and_slopes(model, "sparse_categorical_crossentropy", numbers)
    for gradient, slope in zip(found, wanted, strict=True):
        np.testing.assert_allclose(gradient, slope, atol=1e-7)
    assert not found[0][[3, 4, 5, 6, 8, 9]].any() and found[0][[1, 2, 7]].all()


def test_several_inputs_come_as_a_list_or_by_name() -> None:
    a, b = nn.Input(2), nn.Input((2,))
    model = nn.Model(inputs={"a": a, "b": b}, outputs=nn.Dense(1)(nn.Concatenate()([a, b])), dtype="float64")
    x = {"a": X[:, :2], "b": X[:, 2:]}
    w, _ = model.get_weights()
    np.testing.assert_allclose(model.predict(x), X @ w)
    np.testing.assert_allclose(model.predict([x["a"], x["b"]]), X @ w)
    model.compile("adam", "mae")
    assert model.fit(x, X[:, :1], verbose=0, epochs=2).epoch == [0, 1]
    batches = [({"a": x["a"][:3], "b": x["b"][:3]}, X[:3, :1])] * 2
    assert model.fit(batches, verbose=0).epoch == [0]


def test_dropout_drops_while_it_trains_and_only_then() -> None:
    model = Subclassed(noise=0.5)
    model.compile(dps.optim.SGD(0.0), "mse")
    y = targets("mse")
    losses = model.fit(X, y, epochs=4, batch_size=6, verbose=0).history["loss"]
    assert len(set(losses)) == 4
    assert model.evaluate(X, y, verbose=0) == model.evaluate(X, y, verbose=0) not in losses
    again = Subclassed(noise=0.5)
    again.compile(dps.optim.SGD(0.0), "mse")
    assert again.fit(X, y, epochs=4, batch_size=6, verbose=0).history["loss"] == losses  # the same seed
    kept = nn.Sequential([nn.Dropout(0.25), Doubled()])
    assert kept.predict(np.ones((1, 3))).tolist() == [[2, 2, 2]]


def test_the_mean_of_what_dropout_keeps_is_what_it_was() -> None:
    computation = Computation(place_for("/cpu:0"), np.dtype("float32"), True, np.random.default_rng(0))
    out, factors = nn.Dropout(0.25).forward(computation, {}, np.ones((100, 100), np.float32))
    assert set(np.unique(out)) == {np.float32(0), np.float32(1 / 0.75)} and abs(out.mean() - 1) < 0.02
    (dx,), _ = nn.Dropout(0.25).backward(computation, {}, factors, np.ones_like(out))
    np.testing.assert_array_equal(dx, out)


def test_a_sequential_model_of_a_shape_is_that_of_dps_layers() -> None:
    model = nn.Sequential([nn.Dense(5, activation="relu", input_shape=(4,)), nn.Dense(3)], seed=1)
    network = dps.layers.Sequential(
        [dps.layers.Dense(4, 5, name="dense"), dps.layers.Dense(5, 3, "identity", name="dense_1")]
    )
    params, labels = network.initial_params(seed=1), targets("sparse_categorical_crossentropy")
    for array, weight in zip(
        [*params["dense"].values(), *params["dense_1"].values()], model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(array, weight)
    np.testing.assert_array_equal(model.predict(X), network.scores(params, X))
    model.compile(dps.optim.SGD(1.0), "sparse_categorical_crossentropy")
    before = model.get_weights()
    model.fit(X, labels, batch_size=6, verbose=0, shuffle=False)
    _, grads = network.loss_and_gradients(params, X, labels)
    moved = [b - w for b, w in zip(before, model.get_weights(), strict=True)]
    for gradient, step in zip([*grads["dense"].values(), *grads["dense_1"].values()], moved, strict=True):
        np.testing.assert_allclose(step, gradient, atol=1e-6)


def test_names_of_layers_and_their_table() -> None:
    texts: list[str] = []
    model = functional()
    model.summary(print_fn=texts.append)
    assert "first (Dense)" in texts[0] and "dense_1 (Dense)" in texts[0] and "Total params: 63" in texts[0]
    assert [type(layer).__name__ for layer in model.layers[:2]] == ["Dense", "Dense"]
    assert functional().name == "model" and Subclassed().name == "subclassed"


def test_parts_of_a_batch_are_as_even_as_they_can_be() -> None:
    batch = ModelBatch([np.arange(5)], np.arange(5))
    assert [part.size for part in parts_of(batch, 3)] == [2, 2, 1]
    assert [part.size for part in parts_of(batch, 7)] == [1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Dense(0), r"Dense: got units=0, wanted a whole number from 1"),
        (lambda: nn.Dense(3, activation="softmax"), "losses take scores, so leave a softmax out"),
        (lambda: nn.Activation("elu"), "got activation='elu', wanted 'relu', 'tanh', 'sigmoid' or 'linear'"),
        (lambda: nn.Dropout(1.0), r"Dropout: got rate=1.0, wanted a number from 0 to below 1"),
        (lambda: nn.Embedding(0, 3), r"Embedding: got rows=0"),
        (lambda: nn.Dense(3, name="a/b"), "got name='a/b', wanted text without '/'"),
        (lambda: nn.Input((0,)), "Input: shape: got \\(0,\\), wanted whole numbers from 1"),
        (lambda: nn.Dense(3)(np.ones((2, 2))), "Dense: called with ndarray, wanted what dps.nn.Input"),
        (lambda: nn.Dense(3)(nn.Input((2, 2))), r"Dense: got \(batch, 2, 2\), wanted one input.*Flatten"),
        (lambda: nn.Concatenate()([nn.Input(2)]), r"Concatenate: got \(batch, 2\), wanted two inputs"),
        (lambda: nn.Input(2) + nn.Input(3), r"Add: got \(batch, 2\), \(batch, 3\), wanted"),
        (lambda: np.tanh(nn.Input(2)), "a model is put together of layers"),
        (lambda: nn.Sequential([3]), "Sequential: got 3, wanted layers of dps.nn"),
        (lambda: nn.Model(inputs=nn.Input(2)), "give inputs and outputs"),
        (lambda: nn.Model(inputs=nn.Input(2), outputs=nn.Dense(1)(nn.Input(2))), "not among the inputs"),
        (lambda: nn.Model(inputs=nn.Input(2), outputs=3), "Model: got int, wanted what dps.nn.Input or a layer"),
        (lambda: nn.Model().predict(X), "Model: has no `call`"),
        (lambda: nn.Sequential([nn.Dense(1)], dtype="int32"), "got dtype='int32', wanted 'float32' or 'float64'"),
        (lambda: nn.Sequential([nn.Dense(1, "relu", "a"), nn.Dense(1, name="a")]).predict(X), "two layers have"),
        (lambda: nn.Sequential([nn.Dense(2), nn.Embedding(3, 2)]).predict(X), "straight from an input of the model"),
        (lambda: nn.Sequential([nn.Dense(2)]).get_weights(), "sequential: is not built yet"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_are_one_line(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
