"""The calls of layers that lead from a model's inputs to its output, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dps.errors import ConfigError
from dps.nn.layer import Computation, Layer
from dps.nn.symbol import Symbol


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
        self._visit(output)
        for call in self.calls:
            assert call.layer is not None
            if call.layer.takes_numbers and call.inputs[0].layer is not None:
                raise ConfigError(
                    f"{type(call.layer).__name__}: takes numbers of rows, straight from an input of the model; got "
                    f"the result of {type(call.inputs[0].layer).__name__}"
                )

    def _visit(self, output: Symbol) -> None:
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
                    made[id(x)] = computation.place.bring(np.ascontiguousarray(host[id(x)], computation.dtype))
            given = [host[id(x)] if layer.takes_numbers else made[id(x)] for x in call.inputs]
            made[id(call)], keeps = layer.forward(computation, values.get(names[id(layer)], {}), *given)
            kept.append(keeps)
        if id(self.output) not in made:  # an input is the output
            made[id(self.output)] = computation.place.bring(np.ascontiguousarray(xs[0], computation.dtype))
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
