"""The layers and the parameters of a model: how it is built, and who keeps its values."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dps.errors import CheckpointError, ConfigError
from dps.nn.batches import Batches
from dps.nn.compiled import CompileSettings
from dps.nn.layer import Layer, Symbol, shape_of
from dps.nn.network import BuiltModel, Graph
from dps.process.own_files import make_folder, opener
from dps.strategy.default import get_strategy
from dps.strategy.strategy import Variables
from dps.variables.tree import Nesting, Variable, leaves, to_array


class LayeredModel:
    """What a model is before and beside its training; see `Model`."""

    def __init__(
        self, inputs: Any = None, outputs: Any = None, name: str | None = None, dtype: str = "float32", seed: int = 0
    ) -> None:  # fmt: skip
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise ConfigError(f"{type(self).__name__}: got dtype={dtype!r}, wanted 'float32' or 'float64'")
        self.name, self.dtype, self.seed = name or type(self).__name__.lower(), np.dtype(dtype), seed
        self.strategy = get_strategy()
        """The strategy in whose scope the model was made."""
        self.stop_training = False
        """A callback sets it to end the training after this epoch."""
        self._network: BuiltModel | None = None
        self._compiled: CompileSettings | None = None
        self._variables: Variables | None = None
        self._weights: dict[str, Any] = {}
        """The parameters until a strategy keeps them."""
        if (inputs is None) != (outputs is None):
            raise ConfigError("Model: give inputs and outputs, or neither and a `call`")
        if inputs is not None:
            self._set_graphs([Graph(_symbols(inputs), _symbol(outputs))])

    def call(self, inputs: Any) -> Any:
        """What the model computes: override it in a subclass, and call layers. It may take `training`, too.

        Args:
            inputs: A symbol; a list or dict of them where the model is given several inputs.

        Returns:
            What the last layer returned.
        """
        raise ConfigError(f"{type(self).__name__}: has no `call`, and was given no inputs and outputs; give it one")

    # -- building ---------------------------------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        """Make the parameters for inputs of this shape. The first data that the model sees does it as well.

        Args:
            input_shape: The shape of one example, such as (784,); a list or dict of shapes for several inputs.

        Raises:
            ConfigError: The model is built already, or its layers do not fit together.
        """
        if self.built:
            raise ConfigError(f"{self.name}: is built already, for examples of {self._built.shapes}")
        if isinstance(input_shape, Mapping):
            given: Any = {name: Symbol(shape_of(shape, name)) for name, shape in input_shape.items()}
        elif isinstance(input_shape, list) and input_shape and isinstance(input_shape[0], tuple):
            given = [Symbol(shape_of(shape, "input_shape")) for shape in input_shape]
        else:
            given = Symbol(shape_of(input_shape, "input_shape"))
        if "training" not in inspect.signature(self.call).parameters:
            self._set_graphs([Graph(_symbols(given), _symbol(self.call(given)))])
            return
        call: Any = self.call
        self._set_graphs(
            [Graph(_symbols(given), _symbol(call(given, training=training))) for training in (True, False)]
        )

    def _set_graphs(self, graphs: list[Graph]) -> None:
        self._network = BuiltModel(graphs[0], graphs[-1], self.dtype, self.seed)
        self._weights = self._network.make_parameters()

    @property
    def built(self) -> bool:
        """Whether the parameters are made."""
        return self._network is not None

    def _known_shapes(self) -> Any:
        """The shape of the inputs, where it was given; else None."""
        return None

    @property
    def _built(self) -> BuiltModel:
        if self._network is None and (shapes := self._known_shapes()) is not None:
            self.build(shapes)
        if self._network is None:
            raise ConfigError(
                f"{self.name}: is not built yet; give it data, or `build(input_shape)`, or input_shape= of its first "
                "layer"
            )
        return self._network

    def build_for(self, batches: Batches) -> BuiltModel:
        """Build the model for the first data that it is given, if it is not built yet."""
        if not self.built and self._known_shapes() is None:
            shapes = batches.peek_batch().shapes
            names = batches.names
            self.build(dict(zip(names, shapes, strict=True)) if names else shapes if len(shapes) > 1 else shapes[0])
        return self._built

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the layers that have parameters."""
        return tuple(self._weights)

    @property
    def layers(self) -> list[Layer]:
        """The layers, in the order of their calls."""
        return list(self._built.layers)

    # -- parameters -------------------------------------------------------------------------------------------------

    def _require_compiled(self, what: str) -> CompileSettings:
        if self._compiled is None:
            raise ConfigError(f"{what}: call compile(optimizer=..., loss=...) before")
        return self._compiled

    def _kept(self) -> Variables:
        """The parameters as the strategy keeps them."""
        if self._variables is None:
            from dps.nn.training import totals_of

            if not self._weights:
                raise ConfigError(f"{self.name}: has no parameters to train")
            optimizer = self._require_compiled("fit").optimizer
            with self.strategy.scope():
                self._variables = self.strategy.variables(totals_of(self._weights, self.strategy), optimizer=optimizer)
        return self._variables

    def _values(self) -> Any:
        """All parameters now, by layer and name."""
        if self._compiled is not None and self._weights:
            return self._kept().read()
        return Nesting(self._weights).build([to_array(leaf, name) for name, leaf in leaves(self._weights)])

    def get_weights(self) -> list[Any]:
        """The parameters.

        Returns:
            Arrays, layer by layer; of a dense layer w and b.

        Raises:
            ConfigError: The model is not built yet.
        """
        found = dict(leaves(self._values())) if self._built else {}
        return [found[name] for name, _ in leaves(self._weights)]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the parameters.

        Args:
            weights: Arrays as `get_weights` returns them.

        Raises:
            ConfigError: The model is not built yet, or other numbers or shapes of arrays.
        """
        names = [name for name, _ in leaves(self._built and self._weights)]
        given = [np.asarray(array, self.dtype) for array in weights]
        shapes = [to_array(leaf, name).shape for name, leaf in leaves(self._weights)]
        if [array.shape for array in given] != shapes:
            raise ConfigError(f"set_weights: got {[array.shape for array in given]}, wanted {shapes} for {names}")
        before = [leaf for _, leaf in leaves(self._weights)]
        kept = [_like(leaf, array.copy()) for leaf, array in zip(before, given, strict=True)]
        self._weights = Nesting(self._weights).build(kept)
        if self._variables is not None:
            self._variables.assign(Nesting(self._weights).build(given))

    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters to a file in the safetensors format, whichever strategy keeps them.

        Args:
            path: The file.

        Raises:
            ConfigError: The model is not built yet.
            CheckpointError: The file cannot be written.
        """

        values = self._values() if self._built else {}
        write_weights(path, {name: values[name] for name in self._weights})

    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Set the parameters to those of a file.

        Args:
            path: A file that `save_weights` wrote, under any strategy.

        Raises:
            ConfigError: The model is not built yet.
            CheckpointError: The file cannot be read, or is of another model.
        """

        values = self._values() if self._built else {}
        found = read_weights(path, {name: values[name] for name in self._weights})
        self.set_weights([found[name] for name, _ in leaves(self._weights)])

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes files and prints: the first of several workers."""
        session = getattr(self._variables, "session", None)
        return bool(session.is_chief) if session is not None else not self.strategy.first_replica

    def summary(self, print_fn: Callable[[str], Any] = print) -> None:
        """Print a table of the layers.

        Args:
            print_fn: Gets the text.

        Raises:
            ConfigError: The model is not built yet.
        """

        print_fn(summary_of(self.name, self._built, self._weights))


def _symbols(inputs: Any) -> list[Symbol]:
    given = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    found = list(given) if isinstance(given, list | tuple) else [given]
    return [_symbol(symbol) for symbol in found]


def _symbol(found: Any) -> Symbol:
    if not isinstance(found, Symbol):
        raise ConfigError(f"Model: got {type(found).__name__}, wanted what dps.nn.Input or a layer returned")
    return found


def _like(leaf: Any, array: Any) -> Any:
    """A parameter's new value, with the settings that it had."""
    if not isinstance(leaf, Variable):
        return array
    return Variable(array, sparse=leaf.sparse)


def summary_of(name: str, network: BuiltModel, weights: Any) -> str:
    """The table: layers, the shapes of their results, and how many parameters they have."""
    shapes = {id(call.layer): call.shape for call in network.graphs[False].calls}
    rows = [("Layer (type)", "Output Shape", "Param #")]
    for layer in network.layers:
        count = sum(math.prod(array.shape) for _, array in leaves(weights.get(network.name_of(layer), {})))
        shape = ", ".join(map(str, shapes.get(id(layer), ())))
        rows.append((f"{network.name_of(layer)} ({type(layer).__name__})", f"(batch, {shape})", f"{count:,}"))
    total = sum(math.prod(array.shape) for _, array in leaves(weights))
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(3)]
    lines = ["".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    rule = "=" * sum(widths)
    return "\n".join([f"Model: {name!r}", lines[0], rule, *lines[1:], rule, f"Total params: {total:,}"])


def write_weights(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Write a file, or leave the one that is there as it is. Raises CheckpointError."""
    from safetensors.numpy import save_file

    path = os.fspath(path)
    folder, unfinished = os.path.dirname(path), f"{path}.unfinished"
    try:
        if folder:
            make_folder(folder)
        with open(unfinished, "wb", opener=opener):  # with its mode
            pass
        save_file({name: array.copy() for name, array in leaves(values)}, unfinished)
        os.replace(unfinished, path)
    except OSError as error:
        raise CheckpointError(f"save_weights: {path} cannot be written: {error}") from None


def read_weights(path: str | os.PathLike[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a file by name, which are as many and of the same shapes as `values`. Raises CheckpointError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = os.fspath(path)
    try:
        found: dict[str, Any] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"load_weights: {path} cannot be read: {error}") from None
    wanted = dict(leaves(values))
    for name in [*wanted, *found]:
        has = found[name].shape if name in found else "no such array"
        needs = wanted[name].shape if name in wanted else "no such parameter"
        if has != needs:
            raise CheckpointError(f"load_weights: {path} has {has} for {name}, the model has {needs}")
    return found
