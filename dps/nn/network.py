"""A model that is built: its graphs, the first values of its parameters, and its passes on the caller's device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dps.errors import ConfigError, DataError
from dps.layers.place import ComputePlace, place_for
from dps.nn.layer import Computation, Layer, Symbol
from dps.strategy.default import get_replica_context
from dps.strategy.reduction import sum_gradients


class Passed(NamedTuple):
    """The results of a forward pass."""

    out: Any
    """The output, on the device."""
    kept: list[Any]
    """The values that each call keeps for its backward pass."""


class Graph:
    """The calls in an order in which each comes after those that it needs."""

    def __init__(self, inputs: Sequence[Symbol], output: Symbol) -> None:
        """Raises ConfigError for an output that needs more than these inputs."""
        self.inputs, self.output = list(inputs), output
        self.calls: list[Symbol] = []
        self._order_calls(output)
        for call in self.calls:
            assert call.layer is not None
            if call.layer.takes_numbers and call.inputs[0].layer is not None:
                raise ConfigError(
                    f"{type(call.layer).__name__}: takes numbers of rows, straight from an input of the model; got "
                    f"the result of {type(call.inputs[0].layer).__name__}"
                )

    def _order_calls(self, output: Symbol) -> None:
        done = {id(symbol) for symbol in self.inputs}
        waiting: list[Symbol] = [output]
        while waiting:
            symbol = waiting[-1]
            if symbol.layer is None and id(symbol) not in done:
                raise ConfigError(f"the outputs need {symbol!r}, which is not among the inputs of the model")
            missing = [x for x in symbol.inputs if id(x) not in done]
            if id(symbol) not in done and not missing:
                self.calls.append(symbol)
                done.add(id(symbol))
            if missing:
                waiting += reversed(missing)
            else:
                waiting.pop()

    @property
    def layers(self) -> list[Layer]:
        """The layers, each once, in the order of their first calls."""
        found = {id(call.layer): call.layer for call in self.calls if call.layer is not None}
        return list(found.values())

    def forward(self, computation: Computation, names: Mapping[int, str], values: Any, xs: Sequence[Any]) -> Passed:
        """The output of a batch. `names`: of each layer, by its id; `values`: all parameters, on the host."""
        host = {id(symbol): x for symbol, x in zip(self.inputs, xs, strict=True)}
        made: dict[int, Any] = {}
        kept = []
        for call in self.calls:
            layer = call.layer
            assert layer is not None
            for x in call.inputs:
                if id(x) not in made and not layer.takes_numbers:
                    made[id(x)] = computation.place.load_array(np.ascontiguousarray(host[id(x)], computation.dtype))
            given = [host[id(x)] if layer.takes_numbers else made[id(x)] for x in call.inputs]
            made[id(call)], keeps = layer.forward(computation, values.get(names[id(layer)], {}), *given)
            kept.append(keeps)
        if id(self.output) not in made:  # an input is the output
            made[id(self.output)] = computation.place.load_array(np.ascontiguousarray(xs[0], computation.dtype))
        return Passed(made[id(self.output)], kept)

    def backward(
        self, computation: Computation, names: Mapping[int, str], values: Any, passed: Passed, dout: Any
    ) -> list[tuple[str, dict[str, Any]]]:
        """The gradients of each call's layer, by the layer's name; a layer that is called twice comes twice."""
        douts = {id(self.output): dout}
        found = []
        for call, kept in zip(reversed(self.calls), reversed(passed.kept), strict=True):
            layer = call.layer
            assert layer is not None
            if id(call) not in douts:
                continue
            computation.by_inputs = any(x.layer is not None for x in call.inputs)
            params = values.get(names[id(layer)], {})
            dxs, grads = layer.backward(computation, params, kept, douts.pop(id(call)))
            if grads:
                found.append((names[id(layer)], grads))
            for x, dx in zip(call.inputs, dxs, strict=True):
                if x.layer is not None:
                    douts[id(x)] = dx if id(x) not in douts else _added(computation, douts[id(x)], dx)
        return found


def _added(computation: Computation, a: Any, b: Any) -> Any:
    out = computation.empty(a.shape)
    computation.kernels.add(out, a, b, computation.stream)
    return out


def names_of(layers: Sequence[Layer]) -> dict[int, str]:
    """A name for each layer, by its id: its own, or its kind and a number. ConfigError for a name twice."""
    found: dict[int, str] = {}
    given = [layer.name for layer in layers if layer.name is not None]
    counts: dict[str, int] = {}
    for layer in layers:
        name = layer.name
        while name is None or (layer.name is None and name in given):
            count = counts.get(layer.kind, 0)
            counts[layer.kind] = count + 1
            name = f"{layer.kind}_{count}" if count else layer.kind
        found[id(layer)] = name
    twice = [name for name in given if given.count(name) > 1]
    if twice:
        raise ConfigError(f"two layers have the name {twice[0]!r}; give each its own, or none")
    return found


class Pass(NamedTuple):
    """The results of a training pass: the outputs, the loss of each example, and the gradients by layer and name."""

    out: Any
    losses: Any
    grads: dict[str, dict[str, Any]]


class BuiltModel:
    """The layers of a model, in the graph for training and in the one for everything else; mostly it is the same one.

    Each replica has a place of its own to compute, and random numbers of its own.
    """

    def __init__(self, training: Graph, other: Graph, dtype: np.dtype[Any], seed: int) -> None:
        self.graphs = {True: training, False: other}
        self.dtype, self._seed = dtype, seed
        layers = {id(layer): layer for graph in (other, training) for layer in graph.layers}
        self.layers: list[Layer] = list(layers.values())
        self.names = names_of(self.layers)
        self._places: dict[int, tuple[ComputePlace, np.random.Generator]] = {}

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of one example of each input."""
        return [symbol.shape for symbol in self.graphs[False].inputs]

    def name_of(self, layer: Layer) -> str:
        """The key of a layer's parameters."""
        return self.names[id(layer)]

    def make_parameters(self) -> dict[str, Any]:
        """The first values of all parameters, by layer and name; layers without parameters are left out."""
        rng = np.random.default_rng(self._seed)
        found = {self.name_of(layer): layer.initial(rng, self.dtype) for layer in self.layers}
        return {name: params for name, params in found.items() if params}

    def check_inputs(self, xs: Sequence[Any], where: str) -> None:
        """DataError for inputs of another number, or whose examples have another shape."""
        if len(xs) != len(self.shapes):
            raise DataError(f"{where}: got {len(xs)} inputs, the model takes {len(self.shapes)}")
        for number, (x, shape) in enumerate(zip(xs, self.shapes, strict=True)):
            if x.shape[1:] != shape:
                which = f" of input {number}" if len(xs) > 1 else ""
                raise DataError(f"{where}: examples{which} have the shape {x.shape[1:]}, the model takes {shape}")

    def compute_outputs(self, values: Mapping[str, Any], xs: Sequence[Any]) -> Any:
        """The model's outputs for a batch, on the host."""
        graph, (place, _) = self.graphs[False], self._place()
        if not len(xs[0]):
            return np.empty((0, *graph.output.shape), self.dtype)
        with place.step_scope():
            return place.fetch_array(graph.forward(Computation(place, self.dtype), self.names, values, xs).out)

    def train_batch(self, values: Mapping[str, Any], xs: Sequence[Any], loss: Callable[[Any], tuple[Any, Any]]) -> Pass:
        """A pass forward and backward. `loss(out)`: the losses of the examples, and the gradient by the outputs."""
        graph, (place, random) = self.graphs[True], self._place()
        with place.step_scope():
            computation = Computation(place, self.dtype, training=True, random=random)
            passed = graph.forward(computation, self.names, values, xs)
            out = place.fetch_array(passed.out)
            losses, gradient = loss(out)
            if np.shape(losses) != (len(out),) or np.shape(gradient) != out.shape:
                raise ConfigError(
                    f"the loss returned losses of {np.shape(losses)} and gradients of {np.shape(gradient)}, wanted "
                    f"{(len(out),)} and {out.shape}"
                )
            dout = place.load_array(np.array(gradient, self.dtype, order="C"))
            found = graph.backward(computation, self.names, values, passed, dout)
            place.wait_for_results()
        return Pass(out, losses, _merge_gradients(found))

    def _place(self) -> tuple[ComputePlace, np.random.Generator]:
        context = get_replica_context()
        replica = 0 if context is None else context.replica_id
        if replica not in self._places:
            first = 0 if context is None else context.strategy.first_replica
            self._places[replica] = place_for(None), np.random.default_rng([self._seed, first + replica])
        return self._places[replica]


def _merge_gradients(found: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The gradients by layer; those of a layer that was called several times are summed."""
    merged: dict[str, dict[str, Any]] = {}
    for name, grads in found:
        if name not in merged:
            merged[name] = grads
            continue
        for key, gradient in grads.items():
            before = merged[name][key]
            merged[name][key] = sum_gradients([before, gradient], np.shape(before))
    return merged
