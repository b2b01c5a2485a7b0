"""A network: a sequence of layers with softmax cross-entropy at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from dps.cluster.device import Device
from dps.layers import arrays
from dps.layers.dense import Dense
from dps.layers.embedding import Embedding
from dps.layers.place import place_for

Layer: TypeAlias = Dense | Embedding


class Sequential:
    """A sequence of layers on one device, with softmax cross-entropy at the end. Belongs to one thread.

    Inputs and outputs are numpy arrays. Intermediate results stay on the device, in memory that is reused from step to
    step. On a GPU the kernels are compiled when they are first used, some seconds in all.

    Args:
        layers: `Dense` and, in the first place, `Embedding`.
        device: A string such as "/gpu:0" or "/cpu:0", or a `dps.Device`. None: the device of the enclosing `dps.device`
            scope, or the CPU.
        dtype: "float32" or "float64", for parameters, inputs and gradients alike.

    Raises:
        ValueError: The sizes of the layers do not match.
        ConfigError: There is no such device.

    Example:
        ```python
        network = dps.layers.Sequential([
            dps.layers.Dense(4, 8),
            dps.layers.Dense(8, 3, activation="identity"),
        ])
        x, labels = np.ones((5, 4), np.float32), np.array([0, 1, 2, 0, 1])
        params = network.initial_params(seed=1)
        with dps.Session(server, params, optimizer=dps.optim.SGD(0.1)) as session:
            loss, grads = network.loss_and_gradients(session.pull(), x, labels)
            session.push(grads, loss=loss)
        ```
    """

    def __init__(
        self, layers: Sequence[Layer], device: str | Device | None = None, dtype: str = "float32"
    ) -> None:  # fmt: skip
        self.layers = tuple(layers)
        self.names = tuple(layer.name or f"{layer.kind}_{i}" for i, layer in enumerate(self.layers))
        self.dtype = np.dtype(dtype)
        _check(self.layers, self.names, self.dtype)
        self._place = place_for(device)

    def initial_params(self, seed: int = 0) -> dict[str, Any]:
        """The first values of all parameters, for `dps.Session`.

        Args:
            seed: The same seed gives the same values on every device.

        Returns:
            New arrays by layer and parameter.
        """
        rng = np.random.default_rng(seed)
        return {name: layer.initial(rng, self.dtype) for name, layer in zip(self.names, self.layers, strict=True)}

    def loss_and_gradients(self, params: Any, x: Any, labels: Any, out: Any = None) -> tuple[float, dict[str, Any]]:
        """The mean softmax cross-entropy over a batch, and its gradients, for `session.push`. Blocks.

        Args:
            params: The parameters, in the nesting of `initial_params`.
            x: The inputs (batch, n_in), or row numbers where an embedding comes first.
            labels: Integers (batch,) from 0.
            out: Arrays to write the gradients to, by layer and parameter: those of `session.gradients()`, or of a
                finished push. None: new arrays.

        Returns:
            The loss, and the gradients in the nesting of `params`.

        Raises:
            ValueError: Something that does not fit; the message names it.
        """
        x = self.layers[0].checked(x, self.dtype)
        labels = arrays.whole_numbers(labels, "labels", ((len(x),),), self.layers[-1].n_out)
        place, loss = self._place, np.empty(1, self.dtype)
        grads: dict[str, Any] = {}
        with place.step_scope():
            passes = self._forward(params, x, None)
            scores = passes[-1].out
            dout, losses = place.empty(scores.shape, self.dtype), place.empty((len(x),), self.dtype)
            place.kernels.softmax_cross_entropy(losses, dout, scores, place.load_array(labels), place.stream)
            place.kernels.mean(place.result(loss), losses, place.stream)
            for i in reversed(range(len(self.layers))):
                layer, name = self.layers[i], self.names[i]
                given = None if out is None else out.get(name)
                grads[name], dout = layer.backward(place, name, passes[i], dout, given, i == 0)
            place.wait_for_results()
        return float(loss[0]), {name: grads[name] for name in self.names}

    def scores(self, params: Any, x: Any) -> Any:
        """The output of the last layer. Blocks.

        Args:
            params: As of `loss_and_gradients`.
            x: As of `loss_and_gradients`.

        Returns:
            A new array (batch, n_out).

        Raises:
            ValueError: Something that does not fit; the message names it.
        """
        x = self.layers[0].checked(x, self.dtype)
        scores = np.empty((len(x), self.layers[-1].n_out), self.dtype)
        with self._place.step_scope():
            self._forward(params, x, scores)
            self._place.wait_for_results()
        return scores

    def accuracy(self, params: Any, x: Any, labels: Any) -> float:
        """The share of examples whose label has the largest score. Blocks.

        Args:
            params: As of `loss_and_gradients`.
            x: As of `loss_and_gradients`.
            labels: Integers (batch,) from 0.

        Returns:
            From 0 to 1.

        Raises:
            ValueError: Something that does not fit; the message names it.
        """
        return float((self.scores(params, x).argmax(axis=1) == np.asarray(labels)).mean())

    def _forward(self, params: Any, x: Any, scores: Any) -> list[Any]:
        """The result of each layer's forward pass. `scores` is a host array for the last result, or None."""
        passes: list[Any] = []
        value = self._place.load_array(x) if isinstance(self.layers[0], Dense) else x
        for i, (layer, name) in enumerate(zip(self.layers, self.names, strict=True)):
            wants = scores if i == len(self.layers) - 1 else None
            made = layer.forward(self._place, name, _of(params, name, layer), value, self.dtype, wants)
            passes.append(made)
            value = made.out
        return passes


def _of(params: Any, name: str, layer: Layer) -> Any:
    """The parameters of one layer. ValueError names a missing one."""
    mine = params.get(name) if isinstance(params, Mapping) else None
    wanted = ("w", "b") if isinstance(layer, Dense) else ("table",)
    missing = [key for key in wanted if not isinstance(mine, Mapping) or key not in mine]
    if missing:
        raise ValueError(f"params: there is no {name}/{missing[0]}; wanted the nesting that initial_params() gives")
    return mine


def _check(layers: tuple[Layer, ...], names: tuple[str, ...], dtype: np.dtype[Any]) -> None:
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"Sequential: got dtype {dtype.name}, wanted float32 or float64")
    if not layers:
        raise ValueError("Sequential: got no layers, wanted 1 or more")
    if len(set(names)) < len(names):
        raise ValueError(f"Sequential: got the names {', '.join(names)}, wanted a different one for each layer")
    for i in range(1, len(layers)):
        before, layer = layers[i - 1], layers[i]
        if isinstance(layer, Embedding):
            raise ValueError(f"Sequential: got the embedding {names[i]} in place {i}, wanted it first")
        if layer.n_in != before.n_out:
            raise ValueError(f"Sequential: {names[i - 1]} gives {before.n_out} values, {names[i]} takes {layer.n_in}")
    last = layers[-1]
    if isinstance(last, Dense) and last.activation == "relu":
        raise ValueError(f"Sequential: {names[-1]} is last and ends in relu; scores want activation='identity'")
