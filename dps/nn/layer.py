"""`Layer`: the base class of layers, with forward and backward; and `Computation`, what they compute with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, NoReturn

import numpy as np

from dps.errors import ConfigError
from dps.layers.place import ComputePlace


class Symbol:
    """A batch that is not there yet. `Input` makes one, and a layer that is called with some returns another one.

    Args:
        shape: The shape of one example.
        layer: The layer that makes it. None: it is an input of the model.
        inputs: What that layer was called with.

    Example:
        ```pycon
        >>> x = dps.nn.Input((4,))
        >>> dps.nn.Dense(3)(x).shape
        (3,)
        ```
    """

    def __init__(self, shape: tuple[int, ...], layer: Layer | None = None, inputs: Sequence[Symbol] = ()) -> None:
        self.shape, self.layer, self.inputs = shape, layer, tuple(inputs)

    def __add__(self, other: Any) -> Symbol:

        return Add()([self, other])

    def __array__(self, *of: Any, **more: Any) -> NoReturn:
        raise ConfigError(
            "a model is put together of layers: got a symbol where numpy wants numbers; use dps.nn layers, or make one "
            "of your own with forward and backward"
        )

    def __repr__(self) -> str:
        return f"<symbol of shape (batch, {', '.join(map(str, self.shape))})>"


def Input(shape: int | Sequence[int]) -> Symbol:
    """An input of a functional model.

    Args:
        shape: The shape of one example, without the batch.

    Returns:
        A symbol, to call layers with.

    Raises:
        ConfigError: Not whole numbers from 1.

    Example:
        ```pycon
        >>> x = dps.nn.Input((4,))
        >>> h = dps.nn.Dense(8, activation="relu")(x)
        >>> model = dps.nn.Model(inputs=x, outputs=dps.nn.Dense(3)(h))
        >>> model.predict(np.ones((2, 4))).shape
        (2, 3)
        ```
    """
    return Symbol(shape_of(shape, "Input: shape"))


def shape_of(shape: Any, what: str) -> tuple[int, ...]:
    """The shape of one example, as a tuple. ConfigError for anything else than whole numbers from 1."""
    found = (shape,) if hasattr(shape, "__index__") else shape
    if not isinstance(found, tuple | list) or not all(
        hasattr(n, "__index__") and not isinstance(n, bool) and n > 0 for n in found
    ):
        raise ConfigError(f"{what}: got {shape!r:.60}, wanted whole numbers from 1 without the batch, as (784,)")
    return tuple(int(n) for n in found)


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
        self,
        place: ComputePlace,
        dtype: np.dtype[Any],
        training: bool = False,
        random: np.random.Generator | None = None,
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


class Add(Layer):
    """The sum of inputs of one shape. `a + b` of two symbols is the same.

    Args:
        name: As of `Layer`.

    Raises:
        ConfigError: When it is called: fewer than two inputs, or different shapes.

    Example:
        ```pycon
        >>> x = dps.nn.Input((2,))
        >>> model = dps.nn.Model(inputs=x, outputs=dps.nn.Add()([x, x]))
        >>> model.predict(np.ones((1, 2))).tolist()
        [[2.0, 2.0]]
        ```
    """

    kind = "add"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)

    def output_shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        """As Layer.output_shape."""
        if len(shapes) < 2 or len(set(shapes)) > 1:
            raise ConfigError(f"Add: got {_said(shapes)}, wanted two inputs or more of one shape")
        return shapes[0]

    def forward(self, computation: Computation, params: Mapping[str, Any], *inputs: Any) -> tuple[Any, Any]:
        """As Layer.forward."""
        total = inputs[0]
        for x in inputs[1:]:
            out = computation.empty(x.shape)
            computation.kernels.add(out, total, x, computation.stream)
            total = out
        return total, len(inputs)

    def backward(
        self, computation: Computation, params: Mapping[str, Any], kept: Any, dout: Any
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """As Layer.backward."""
        return [dout, *(computation.copy(dout) for _ in range(kept - 1))], {}


class Concatenate(Layer):
    """The columns of several inputs (batch, n) beside each other.

    Args:
        name: As of `Layer`.

    Raises:
        ConfigError: When it is called: fewer than two inputs, or examples that are no rows.

    Example:
        ```pycon
        >>> x, y = dps.nn.Input((2,)), dps.nn.Input((1,))
        >>> model = dps.nn.Model(inputs=[x, y], outputs=dps.nn.Concatenate()([x, y]))
        >>> model.predict([np.ones((1, 2)), np.zeros((1, 1))]).tolist()
        [[1.0, 1.0, 0.0]]
        ```
    """

    kind = "concatenate"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)

    def output_shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        """As Layer.output_shape."""
        if len(shapes) < 2 or any(len(shape) != 1 for shape in shapes):
            raise ConfigError(f"Concatenate: got {_said(shapes)}, wanted two inputs or more of (batch, n)")
        return (sum(shape[0] for shape in shapes),)

    def forward(self, computation: Computation, params: Mapping[str, Any], *inputs: Any) -> tuple[Any, Any]:
        """As Layer.forward."""
        widths = [x.shape[1] for x in inputs]
        out = computation.empty((inputs[0].shape[0], sum(widths)))
        for x, start in zip(inputs, accumulate(widths, initial=0), strict=False):
            computation.kernels.put_columns(out, x, start, computation.stream)
        return out, widths

    def backward(
        self, computation: Computation, params: Mapping[str, Any], kept: Any, dout: Any
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """As Layer.backward."""
        found = []
        for width, start in zip(kept, accumulate(kept, initial=0), strict=False):
            dx = computation.empty((dout.shape[0], width))
            computation.kernels.take_columns(dx, dout, start, computation.stream)
            found.append(dx)
        return found, {}


def _said(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"(batch, {', '.join(map(str, shape))})" for shape in shapes) or "none"
