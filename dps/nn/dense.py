"""A dense layer: activation(x @ w + b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dps import layers
from dps.errors import ConfigError
from dps.nn.activation import checked_activation
from dps.nn.layer import Computation, Layer, one_row


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
        if isinstance(units, bool) or not isinstance(units, int) or units < 1:
            raise ConfigError(f"Dense: got units={units!r}, wanted a whole number from 1")
        self.units, self.activation = units, checked_activation(activation, "Dense")
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
