"""A model that is a row of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dps.errors import ConfigError
from dps.nn.layer import Layer
from dps.nn.model import Model


class Sequential(Model):
    """Layers one after the other.

    Args:
        layers: The layers.
        name: As of `Model`.
        dtype: As of `Model`.
        seed: As of `Model`.

    Raises:
        ConfigError: Something else than layers.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([
        ...     dps.nn.Dense(8, activation="relu", input_shape=(4,)),
        ...     dps.nn.Dense(3),
        ... ])
        >>> model.summary()
        Model: 'sequential'
        Layer (type)     Output Shape  Param #
        ========================================
        dense (Dense)    (batch, 8)    40
        dense_1 (Dense)  (batch, 3)    27
        ========================================
        Total params: 67
        ```
    """

    def __init__(
        self, layers: Sequence[Layer] = (), name: str | None = None, dtype: str = "float32", seed: int = 0
    ) -> None:  # fmt: skip
        super().__init__(name=name, dtype=dtype, seed=seed)
        self._row: list[Layer] = []
        for layer in layers:
            self.add(layer)

    def add(self, layer: Layer) -> None:
        """Put a layer at the end.

        Args:
            layer: The layer.

        Raises:
            ConfigError: No layer, or the model is built already.
        """
        if not isinstance(layer, Layer):
            raise ConfigError(f"Sequential: got {layer!r:.60}, wanted layers of dps.nn")
        if self.built:
            raise ConfigError("Sequential: add: the model is built already; add all layers first")
        self._row.append(layer)

    def call(self, inputs: Any) -> Any:
        """The layers one after the other.

        Args:
            inputs: The symbol of the input.

        Returns:
            What the last layer returned.
        """
        for layer in self._row:
            inputs = layer(inputs)
        return inputs

    def _known_shapes(self) -> Any:
        return self._row[0].input_shape if self._row else None
