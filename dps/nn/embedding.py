"""An embedding: rows of a table, looked up by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dps import layers
from dps.errors import ConfigError
from dps.nn.layer import Computation, Layer, one_row


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
        for what, value in (("rows", rows), ("dim", dim)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"Embedding: got {what}={value!r}, wanted a whole number from 1")
        self.rows, self.dim = rows, dim
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
