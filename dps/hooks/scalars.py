"""Scalars that a program reports beside its loss."""

from __future__ import annotations

from typing import Any

from dps.errors import ConfigError

RESERVED = ("wall_time", "step", "worker", "loss", "staleness", "accepted", "steps_per_s", "examples_per_s", "event")
"""What a row of a summary has anyhow."""


class Scalars:
    """The newest value of each name. `count` rises with every value, so that each reader knows what is new to it."""

    def __init__(self) -> None:
        self.count = 0
        self._values: dict[str, tuple[int, float]] = {}

    def put(self, name: str, value: Any) -> None:
        """Note a value; ValueError for a name that rows have already, or for what is no number."""
        if not isinstance(name, str) or not name or name in RESERVED:
            raise ConfigError(f"summary: got the name {name!r}, wanted one beside {', '.join(RESERVED)}")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"summary: got {value!r:.80} for {name}, wanted a number") from None
        self.count += 1
        self._values[name] = (self.count, number)

    def since(self, count: int) -> dict[str, float]:
        """The values that were put after `count` values had been, by name."""
        return {name: value for name, (number, value) in self._values.items() if number > count}
