"""A layer that makes each example one row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dps.nn.layer import Computation, Layer


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
