"""Collects scalars that a program reports beside its loss."""

from __future__ import annotations

import math
import re
from typing import Any

from dps.errors import ConfigError

RESERVED = (
    "wall_time", "step", "worker", "loss", "staleness", "accepted", "steps_per_s", "examples_per_s", "event", "hparams",
)  # fmt: skip
"""Columns that rows of a summary have by themselves."""

TOTALS = "training_totals"
"""The variable in which `fit` sums losses and metrics over workers. What is pushed for it is no gradient."""

NO_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, ends of lines, and halves of a surrogate pair, which UTF-8 cannot represent."""


def is_name(name: object) -> bool:
    """Whether a log, rows of JSON and event files can have this name: text in one line that is not blank."""
    return isinstance(name, str) and bool(name.strip()) and NO_NAME.search(name) is None


def check_scalar_name(name: object, own: tuple[str, ...] = ()) -> None:
    """Raise ConfigError unless a program may report a scalar of this name. `own`: columns that it may set itself."""
    if not is_name(name):
        raise ConfigError(
            f"summary: got the name {name!r:.80}, wanted text in one line, without control characters, such as "
            "'accuracy'"
        )
    if name in RESERVED and name not in own:
        raise ConfigError(f"summary: got the name {name!r}, wanted one beside {', '.join(RESERVED)}")


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
        number = value.item() if hasattr(value, "item") else value
        if not isinstance(number, str | bytes | bytearray):
            return float(number)
    except OverflowError:
        raise ValueError(f"got a whole number that no float can represent for {what}, wanted one below 1e308") from None
    except (TypeError, ValueError):
        pass
    raise TypeError(f"got {value!r:.80} for {what}, wanted a number")


class Scalars:
    """The newest value of each name. `count` rises with every value, so that each reader can find the new ones."""

    def __init__(self) -> None:
        self.count = 0
        self._values: dict[str, tuple[int, float]] = {}

    def store_value(self, name: str, value: Any) -> None:
        """Store a value. Raises ConfigError for a name that is reserved or that files cannot have, and for a value that
        is not a number."""
        if not isinstance(name, str) or name not in self._values:
            check_scalar_name(name)
        try:
            number = as_number(value, name)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"summary: {error}") from None
        self.count += 1
        self._values[name] = (self.count, number)

    def values_since(self, count: int) -> dict[str, float]:
        """The values that were stored after the first `count` ones, by name."""
        return {name: value for name, (number, value) in self._values.items() if number > count}


class ScalarReader:
    """Gives each new value of a session's scalars once, of one session after the other."""

    def __init__(self) -> None:
        self._scalars: Scalars | None = None
        self._seen = 0

    def take_new(self, scalars: Scalars) -> dict[str, float]:
        """The newest value of each name that has a new one."""
        if scalars is not self._scalars:
            self._scalars, self._seen = scalars, 0
        found = scalars.values_since(self._seen)
        self._seen = scalars.count
        return found
