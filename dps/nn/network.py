"""A model that is built: its graphs, the first values of its parameters, and its passes on the caller's device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dps.errors import ConfigError, DataError
from dps.layers.place import Place, place_for
from dps.nn.graph import Graph, names_of
from dps.nn.layer import Computation, Layer
from dps.strategy.default import get_replica_context
from dps.strategy.summing import summed


class Pass(NamedTuple):
    """The results of a training pass: the outputs, the loss of each example, and the gradients by layer and name."""

    out: Any
    losses: Any
    grads: dict[str, dict[str, Any]]


class Network:
    """The layers of a model, in the graph for training and in the one for everything else; mostly it is the same one.

    Each replica has a place of its own to compute, and random numbers of its own.
    """

    def __init__(self, training: Graph, other: Graph, dtype: np.dtype[Any], seed: int) -> None:
        self.graphs = {True: training, False: other}
        self.dtype, self._seed = dtype, seed
        layers = {id(layer): layer for graph in (other, training) for layer in graph.layers}
        self.layers: list[Layer] = list(layers.values())
        self.names = names_of(self.layers)
        self._places: dict[int, tuple[Place, np.random.Generator]] = {}

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of one example of each input."""
        return [symbol.shape for symbol in self.graphs[False].inputs]

    def name(self, layer: Layer) -> str:
        """The key of a layer's parameters."""
        return self.names[id(layer)]

    def initial(self) -> dict[str, Any]:
        """The first values of all parameters, by layer and name; layers without parameters are left out."""
        rng = np.random.default_rng(self._seed)
        found = {self.name(layer): layer.initial(rng, self.dtype) for layer in self.layers}
        return {name: params for name, params in found.items() if params}

    def check(self, xs: Sequence[Any], where: str) -> None:
        """DataError for inputs of another number, or whose examples have another shape."""
        if len(xs) != len(self.shapes):
            raise DataError(f"{where}: got {len(xs)} inputs, the model takes {len(self.shapes)}")
        for number, (x, shape) in enumerate(zip(xs, self.shapes, strict=True)):
            if x.shape[1:] != shape:
                which = f" of input {number}" if len(xs) > 1 else ""
                raise DataError(f"{where}: examples{which} have the shape {x.shape[1:]}, the model takes {shape}")

    def outputs(self, values: Mapping[str, Any], xs: Sequence[Any]) -> Any:
        """The model's outputs for a batch, on the host."""
        graph, (place, _) = self.graphs[False], self._place()
        if not len(xs[0]):
            return np.empty((0, *graph.output.shape), self.dtype)
        with place.step():
            return place.fetch(graph.forward(Computation(place, self.dtype), self.names, values, xs).out)

    def train(self, values: Mapping[str, Any], xs: Sequence[Any], loss: Callable[[Any], tuple[Any, Any]]) -> Pass:
        """A pass forward and backward. `loss(out)`: the losses of the examples, and the gradient by the outputs."""
        graph, (place, random) = self.graphs[True], self._place()
        with place.step():
            computation = Computation(place, self.dtype, training=True, random=random)
            passed = graph.forward(computation, self.names, values, xs)
            out = place.fetch(passed.out)
            losses, gradient = loss(out)
            if np.shape(losses) != (len(out),) or np.shape(gradient) != out.shape:
                raise ConfigError(
                    f"the loss returned losses of {np.shape(losses)} and gradients of {np.shape(gradient)}, wanted "
                    f"{(len(out),)} and {out.shape}"
                )
            dout = place.bring(np.array(gradient, self.dtype, order="C"))
            found = graph.backward(computation, self.names, values, passed, dout)
            place.finish()
        return Pass(out, losses, _merged(found))

    def _place(self) -> tuple[Place, np.random.Generator]:
        context = get_replica_context()
        replica = 0 if context is None else context.replica_id
        if replica not in self._places:
            first = 0 if context is None else context.strategy.first_replica
            self._places[replica] = place_for(None), np.random.default_rng([self._seed, first + replica])
        return self._places[replica]


def _merged(found: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The gradients by layer; those of a layer that was called several times are summed."""
    merged: dict[str, dict[str, Any]] = {}
    for name, grads in found:
        if name not in merged:
            merged[name] = grads
            continue
        for key, gradient in grads.items():
            before = merged[name][key]
            merged[name][key] = summed([before, gradient], np.shape(before))
    return merged
