"""Layers with several inputs: their sum, and their columns beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from dps.errors import ConfigError
from dps.nn.layer import Computation, Layer


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
