"""Symbols, which stand for batches while a model is built: a shape, and the layer call that makes the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from dps.errors import ConfigError

if TYPE_CHECKING:
    from dps.nn.layer import Layer


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
        from dps.nn.merging import Add

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
