"""Collects scalars that a program reports beside its loss."""

from __future__ import annotations

import math
from typing import Any

from dps.errors import ConfigError

RESERVED = ("wall_time", "step", "worker", "loss", "staleness", "accepted", "steps_per_s", "examples_per_s", "event")
"""Columns that every row of a summary has."""

TOTALS = "training_totals"
"""The variable in which `fit` sums losses and metrics over workers. What is pushed for it is no gradient."""


def as_number(value: Any, what: str) -> float:
    """A reported value as a float; arrays and tensors of one element (numpy, PyTorch, JAX) are allowed, too.

    Raises TypeError for a value that is not a number, such as text, and ValueError for an array of several elements;
    `what` names the value in the message.
    """
    if value.__class__ is float:
        return value
    shape = tuple(getattr(value, "shape", ()))
    if math.prod(shape) != 1:
        raise ValueError(f"got an array of shape {shape} for {what}, wanted one number, such as its mean")
    try:
        if not isinstance(value, str | bytes | bytearray):
            return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"got {value!r:.80} for {what}, wanted a number")


class Scalars:
    """The newest value of each name. `count` rises with every value, so that each reader can find the new ones."""

    def __init__(self) -> None:
        self.count = 0
        self._values: dict[str, tuple[int, float]] = {}

    def store_value(self, name: str, value: Any) -> None:
        """Store a value. Raises ValueError for a reserved name, or for a value that is not a number."""
        if not isinstance(name, str) or not name or name in RESERVED:
            raise ConfigError(f"summary: got the name {name!r}, wanted one beside {', '.join(RESERVED)}")
        try:
            number = as_number(value, name)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"summary: {error}") from None
        self.count += 1
        self._values[name] = (self.count, number)

    def values_since(self, count: int) -> dict[str, float]:
        """The values that were stored after the first `count` ones, by name."""
        return {name: value for name, (number, value) in self._values.items() if number > count}
