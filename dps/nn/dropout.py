"""Dropout: random zeros while a model trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dps.errors import ConfigError
from dps.nn.layer import Computation, Layer


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
        factors = computation.place.bring((kept / computation.dtype.type(1 - self.rate)).astype(computation.dtype))
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
