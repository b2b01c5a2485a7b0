"""`Layer`: the base class of layers, with forward and backward; and `Computation`, what they compute with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dps.errors import ConfigError
from dps.layers.place import Place
from dps.nn.symbol import Symbol, shape_of


class Computation:
    """One forward pass and its backward pass, on one device: what layers compute with.

    Args:
        place: The device: its kernels and its memory.
        dtype: Of all values and parameters.
        training: Whether a backward pass follows, and layers such as `Dropout` do their work.
        random: Where random numbers come from while training.

    Example:
        ```pycon
        >>> from dps.layers.place import place_for
        >>> computation = dps.nn.Computation(place_for("/cpu:0"), np.dtype("float32"))
        >>> computation.empty((2, 3)).shape, computation.training
        ((2, 3), False)
        ```
    """

    def __init__(
        self, place: Place, dtype: np.dtype[Any], training: bool = False, random: np.random.Generator | None = None
    ) -> None:
        self.place, self.dtype, self.training, self.random = place, dtype, training, random
        self.kernels, self.stream = place.kernels, place.stream
        self.by_inputs = True
        """Whether the backward pass of the layer whose turn it is needs gradients by its inputs."""

    def empty(self, shape: tuple[int, ...]) -> Any:
        """An array on the device to compute into, for this pass.

        Args:
            shape: Its shape, with the batch.

        Returns:
            The array; its contents are not defined.
        """
        return self.place.empty(shape, self.dtype)

    def copy(self, array: Any) -> Any:
        """A copy on the device, for this pass.

        Args:
            array: An array on the device.

        Returns:
            The copy.
        """
        out = self.empty(array.shape)
        self.kernels.activate(out, array, "identity", self.stream)
        return out


class Layer:
    """Base class of layers. A layer has no values: the parameters are the model's, so that a strategy can keep them.

    A layer of your own overrides `output_shape`, `forward` and `backward`, and `initial` if it has parameters. Arrays
    are those of the device of the computation: numpy arrays on the CPU, device arrays on a GPU.

    Args:
        name: The key of its parameters in the model's. None: its kind, and a number where there are several.
        input_shape: The shape of one example of its input. Only the first layer of a model needs one, and only to be
            built before it sees data.

    Example:
        ```pycon
        >>> class Double(dps.nn.Layer):
        ...     def forward(self, computation, params, x):
        ...         out = computation.empty(x.shape)
        ...         computation.kernels.add(out, x, x, computation.stream)
        ...         return out, None
        ...     def backward(self, computation, params, kept, dout):
        ...         dx = computation.empty(dout.shape)
        ...         computation.kernels.add(dx, dout, dout, computation.stream)
        ...         return [dx], {}
        >>> dps.nn.Sequential([Double()]).predict(np.ones((1, 2))).tolist()
        [[2.0, 2.0]]
        ```
    """

    kind: ClassVar[str] = "layer"
    takes_numbers: ClassVar[bool] = False
    """Whether its input are row numbers on the host, straight from an input of the model."""

    def __init__(self, name: str | None = None, input_shape: int | Sequence[int] | None = None) -> None:
        if name is not None and (not isinstance(name, str) or not name or "/" in name):
            raise ConfigError(f"{type(self).__name__}: got name={name!r}, wanted text without '/'")
        self.name = name
        self.input_shape = None if input_shape is None else shape_of(input_shape, f"{type(self).__name__}: input_shape")

    def __call__(self, inputs: Any, training: Any = None) -> Symbol:
        """Use the layer in a functional model, or in the `call` of a subclassed one.

        Args:
            inputs: A symbol, or a list of them.
            training: Ignored: a model knows whether it trains.

        Returns:
            The symbol of its result.

        Raises:
            ConfigError: No symbols, or shapes that do not fit.
        """
        given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        for symbol in given:
            if not isinstance(symbol, Symbol):
                raise ConfigError(
                    f"{type(self).__name__}: called with {type(symbol).__name__}, wanted what dps.nn.Input or a layer "
                    "returned; a model computes numbers with predict"
                )
        return Symbol(self.output_shape(*(symbol.shape for symbol in given)), self, given)

    def output_shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one example of the result. It is called before anything else.

        Args:
            shapes: Those of one example of each input.

        Returns:
            The shape; that of the first input, if it is not overridden.

        Raises:
            ConfigError: Shapes that the layer does not take.
        """
        return shapes[0]

    def initial(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> dict[str, Any]:
        """The first values of its parameters.

        Args:
            rng: Where random numbers come from.
            dtype: Of the parameters.

        Returns:
            Arrays or `dps.Variable`s by name; none, if it is not overridden.
        """
        return {}

    def forward(self, computation: Computation, params: Mapping[str, Any], *inputs: Any) -> tuple[Any, Any]:
        """Compute the result.

        Args:
            computation: The pass that this is part of.
            params: The layer's parameters, on the host.
            inputs: Its inputs, on the device. They must stay as they are.

        Returns:
            The result, and whatever `backward` needs.
        """
        raise NotImplementedError

    def backward(
        self, computation: Computation, params: Mapping[str, Any], kept: Any, dout: Any
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """Compute the gradients.

        Args:
            computation: The pass that this is part of.
            params: The layer's parameters, on the host.
            kept: What `forward` returned for it.
            dout: The gradient by the result, on the device. It may be overwritten.

        Returns:
            The gradients by the inputs, on the device, None where `computation.by_inputs` is false; and those by the
            parameters, on the host, by name. Host arrays from `computation.place.result` are filled when the pass ends.
        """
        raise NotImplementedError


def one_row(layer: Layer, shapes: Sequence[tuple[int, ...]]) -> int:
    """The length of the rows of a layer's only input. ConfigError for other inputs."""
    if len(shapes) != 1 or len(shapes[0]) != 1:
        said = " and ".join(f"(batch, {', '.join(map(str, shape))})" for shape in shapes)
        what = f"{type(layer).__name__}{f' {layer.name}' if layer.name else ''}"
        raise ConfigError(f"{what}: got {said}, wanted one input (batch, n); put dps.nn.Flatten() before it")
    return shapes[0][0]
