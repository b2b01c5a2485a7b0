"""A dense layer: activation(x @ w + b)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dps import layers
from dps.errors import ConfigError
from dps.kernels.layers_cpu import ACTIVATIONS
from dps.nn.layer import Computation, Layer, one_row
from dps.training.definition import whole_number


class Embedding(Layer):
    """Rows of a table, looked up by number: from (batch, fields) to (batch, fields * dim).

    It computes as `dps.layers.Embedding`, and its gradient has only the rows that a batch names. Its parameter is
    "table" (rows, dim). It takes an input of the model, of whole numbers.

    Args:
        rows: The rows of the table.
        dim: The elements of a row.
        name: As of `Layer`.
        input_shape: As of `Layer`: how many numbers an example has.

    Raises:
        ConfigError: Sizes below 1.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([dps.nn.Embedding(100, 8), dps.nn.Dense(3)])
        >>> model.predict(np.array([[5, 7], [1, 2]])).shape
        (2, 3)
        ```
    """

    kind = "embedding"
    takes_numbers = True

    def __init__(
        self, rows: int, dim: int, name: str | None = None, input_shape: int | Sequence[int] | None = None
    ) -> None:  # fmt: skip
        super().__init__(name, input_shape)
        self.rows = whole_number("Embedding: got rows=", rows, 1)
        self.dim = whole_number("Embedding: got dim=", dim, 1)
        self._inner: layers.Embedding | None = None

    def output_shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        """As Layer.output_shape."""
        self._inner = layers.Embedding(self.rows, self.dim, one_row(self, shapes))
        return (self._inner.n_out,)

    def initial(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> dict[str, Any]:
        """As Layer.initial."""
        return self._built.initial(rng, dtype)

    def forward(self, computation: Computation, params: Mapping[str, Any], *inputs: Any) -> tuple[Any, Any]:
        """As Layer.forward, with row numbers on the host."""
        numbers = self._built.checked(inputs[0], computation.dtype)
        name = self.name or "embedding"
        made = self._built.forward(computation.place, name, params, numbers, computation.dtype, None)
        return made.out, made

    def backward(
        self, computation: Computation, params: Mapping[str, Any], kept: Any, dout: Any
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """As Layer.backward."""
        grads, _ = self._built.backward(computation.place, self.name or "embedding", kept, dout, None, True)
        return [None], grads

    @property
    def _built(self) -> layers.Embedding:
        assert self._inner is not None, "output_shape is called first"
        return self._inner


class Activation(Layer):
    """An activation: "relu", "tanh", "sigmoid", or "linear" for none.

    Args:
        activation: Its name.
        name: As of `Layer`.

    Raises:
        ConfigError: An unknown activation.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([dps.nn.Activation("relu")])
        >>> model.predict(np.array([[-1.0, 2.0]])).tolist()
        [[0.0, 2.0]]
        ```
    """

    kind = "activation"

    def __init__(self, activation: str, name: str | None = None) -> None:
        super().__init__(name)
        self.activation = checked_activation(activation, "Activation")

    def forward(self, computation: Computation, params: Mapping[str, Any], *inputs: Any) -> tuple[Any, Any]:
        """As Layer.forward."""
        out = computation.empty(inputs[0].shape)
        computation.kernels.activate(out, inputs[0], self.activation, computation.stream)
        return out, out

    def backward(
        self, computation: Computation, params: Mapping[str, Any], kept: Any, dout: Any
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """As Layer.backward."""
        dx = computation.empty(dout.shape)
        computation.kernels.activate_backward(dx, dout, kept, self.activation, computation.stream)
        return [dx], {}


def checked_activation(activation: object, what: str) -> str:
    """The name of an activation, as kernels know it. ConfigError for an unknown one."""
    if activation in (None, "linear"):
        return "identity"
    if activation in ACTIVATIONS:
        return str(activation)
    more = "; losses take scores, so leave a softmax out" if activation == "softmax" else ""
    known = ", ".join(repr(name) for name in ACTIVATIONS if name != "identity")
    raise ConfigError(f"{what}: got activation={activation!r:.40}, wanted {known} or 'linear'{more}")


class Dense(Layer):
    """A dense layer: `activation(x @ w + b)`, from (batch, n) to (batch, units). It computes as `dps.layers.Dense`.

    Its parameters are "w" (n, units) and "b" (units,). `b` begins with 0; `w` is normal with variance 2 / n for relu,
    else 1 / n.

    Args:
        units: The number of outputs.
        activation: "relu", "tanh" or "sigmoid". None, "linear" or "identity": none, as the last layer before a loss
            of scores wants it.
        name: As of `Layer`.
        input_shape: As of `Layer`.

    Raises:
        ConfigError: No units, or an unknown activation.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([dps.nn.Dense(3, input_shape=(4,))])
        >>> [array.shape for array in model.get_weights()]
        [(4, 3), (3,)]
        ```
    """

    kind = "dense"

    def __init__(
        self, units: int, activation: str | None = None, name: str | None = None,
        input_shape: int | Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, input_shape)
        self.units = whole_number("Dense: got units=", units, 1)
        self.activation = checked_activation(activation, "Dense")
        self._inner: layers.Dense | None = None

    def output_shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        """As Layer.output_shape."""
        n = one_row(self, shapes)
        if self._inner is not None and self._inner.n_in != n:
            raise ConfigError(f"Dense {self.name or ''}: takes {self._inner.n_in} inputs, and is called with {n}")
        self._inner = layers.Dense(n, self.units, self.activation)
        return (self.units,)

    def initial(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> dict[str, Any]:
        """As Layer.initial."""
        return self._built.initial(rng, dtype)

    def forward(self, computation: Computation, params: Mapping[str, Any], *inputs: Any) -> tuple[Any, Any]:
        """As Layer.forward."""
        made = self._built.forward(computation.place, self.name or "dense", params, inputs[0], computation.dtype, None)
        return made.out, made

    def backward(
        self, computation: Computation, params: Mapping[str, Any], kept: Any, dout: Any
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """As Layer.backward."""
        first = not computation.by_inputs
        grads, dx = self._built.backward(computation.place, self.name or "dense", kept, dout, None, first)
        return [dx], grads

    @property
    def _built(self) -> layers.Dense:
        assert self._inner is not None, "output_shape is called first"
        return self._inner


class Dropout(Layer):
    """Random zeros while a model trains (Srivastava et al. 2014).

    Each value is 0 with probability `rate`, and the others are divided by 1 - rate. Otherwise values stay as they are.

    Args:
        rate: From 0 to below 1.
        name: As of `Layer`.

    Raises:
        ConfigError: Another rate.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([dps.nn.Dropout(0.5)])
        >>> model.predict(np.ones((1, 3))).tolist()
        [[1.0, 1.0, 1.0]]
        ```
    """

    kind = "dropout"

    def __init__(self, rate: float, name: str | None = None) -> None:
        super().__init__(name)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise ConfigError(f"Dropout: got rate={rate!r}, wanted a number from 0 to below 1")
        self.rate = rate

    def forward(self, computation: Computation, params: Mapping[str, Any], *inputs: Any) -> tuple[Any, Any]:
        """As Layer.forward."""
        x = inputs[0]
        if not computation.training or not self.rate:
            return x, None
        assert computation.random is not None, "training passes have random numbers"
        kept = computation.random.random(x.shape, np.float32) >= self.rate
        factors = computation.place.load_array((kept / computation.dtype.type(1 - self.rate)).astype(computation.dtype))
        out = computation.empty(x.shape)
        computation.kernels.multiply(out, x, factors, computation.stream)
        return out, factors

    def backward(
        self, computation: Computation, params: Mapping[str, Any], kept: Any, dout: Any
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """As Layer.backward."""
        if kept is None:
            return [dout], {}
        dx = computation.empty(dout.shape)
        computation.kernels.multiply(dx, dout, kept, computation.stream)
        return [dx], {}


class Flatten(Layer):
    """Each example as one row: from (batch, a, b, ...) to (batch, a * b * ...).

    Args:
        name: As of `Layer`.
        input_shape: As of `Layer`.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([dps.nn.Flatten()])
        >>> model.predict(np.ones((2, 4, 3))).shape
        (2, 12)
        ```
    """

    kind = "flatten"

    def output_shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        """As Layer.output_shape."""
        return (math.prod(shapes[0]),)

    def forward(self, computation: Computation, params: Mapping[str, Any], *inputs: Any) -> tuple[Any, Any]:
        """As Layer.forward."""
        shape = inputs[0].shape
        return inputs[0].reshape((shape[0], math.prod(shape[1:]))), shape

    def backward(
        self, computation: Computation, params: Mapping[str, Any], kept: Any, dout: Any
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """As Layer.backward."""
        return [dout.reshape(kept)], {}
