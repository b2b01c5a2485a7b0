"""Base classes for settings: frozen records of checked numbers with a name and a wire form.

The definitions in `dps.training` build on it. Numbers are kept as Python floats and ints, so equal settings
compare equal and have equal hashes. A number out of range raises ConfigError (a ValueError). A value that is not a
number, and surplus, missing or unknown arguments raise BadArgument (a ConfigError and a TypeError). All messages say
what was got, what was wanted and what to try.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from dps.errors import ConfigError
from dps.process.record import as_dict, fields_of, init_of

D = TypeVar("D", bound="Definition")


def whole_number(got: str, value: Any, least: int, wanted: str = "a whole number") -> int:
    """The value, if it is a whole number from `least`. Raises ConfigError for anything else; `got` begins its message,
    such as "Dense: got units=", and `wanted` says what the number is."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:  # also of arrays and tensors that are no whole number, which have `__index__`, too
        number = least - 1
    if number < least:
        raise ConfigError(f"{got}{value!r:.40}, wanted {wanted} from {least}")
    return number


class BadArgument(ConfigError, TypeError):
    """An argument that has the wrong type, is missing, or is unknown."""


class Checked(type):
    """A metaclass: errors of the constructor list its arguments in one line."""

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        signature = inspect.signature(init_of(cls))
        fields = ", ".join(list(signature.parameters)[1:]) or "nothing"
        if unknown := [name for name in named if name not in signature.parameters]:
            raise BadArgument(f"{cls.__name__}: got {', '.join(unknown)}, which it does not take; it takes {fields}")
        try:
            signature.bind(None, *arguments, **named)
        except TypeError as error:
            raise BadArgument(f"{cls.__name__}: {error}; it takes {fields}") from None
        return super().__call__(*arguments, **named)


class Definition(metaclass=Checked):
    """Base class of optimizers and schedules: checked numbers and a wire form."""

    name: ClassVar[str]

    def to_wire(self) -> dict[str, Any]:
        """This definition as plain str, float, int, bool, list and dict, for msgpack or JSON."""
        wire: dict[str, Any] = {"name": self.name}
        for field, value in as_dict(self).items():
            plain = value.to_wire() if isinstance(value, Definition) else value
            wire[field] = list(plain) if isinstance(plain, tuple) else plain
        return wire

    def _put(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _refuse(self, field: str, got: object, wanted: str, suggestion: object) -> ConfigError:
        what = f"{type(self).__name__}: {field} is {got!r}, it must be {wanted}"
        return ConfigError(f"{what}; try {field}={suggestion!r}")

    def _mistaken(self, field: str, got: object, wanted: str, suggestion: object) -> BadArgument:
        what = f"{type(self).__name__}: {field} is {got!r:.200} of type {type(got).__name__}, it must be {wanted}"
        return BadArgument(f"{what}; try {field}={suggestion!r}")

    def _listed(self, field: str, suggestion: object) -> tuple[Any, ...]:
        """The elements of one field."""
        got = getattr(self, field)
        if isinstance(got, str | bytes) or not hasattr(got, "__iter__"):
            raise self._mistaken(field, got, "a list of numbers", suggestion)
        return tuple(got)

    def _finite(self, field: str, suggestion: float) -> float:
        """Convert one field to a finite float, store and return it."""
        got = getattr(self, field)
        if isinstance(got, bool | str | bytes) or not hasattr(got, "__float__"):
            raise self._mistaken(field, got, "a number", suggestion)
        try:
            value = float(got)
        except OverflowError:  # an int too large for a float
            value = math.inf
        except (TypeError, ValueError, RuntimeError):  # an array or a tensor
            raise self._mistaken(field, got, "one number", suggestion) from None
        if not math.isfinite(value):
            raise self._refuse(field, got, "finite", suggestion)
        self._put(field, value)
        return value

    def _at_least_zero(self, field: str, suggestion: float) -> None:
        if self._finite(field, suggestion) < 0:
            raise self._refuse(field, getattr(self, field), ">= 0", suggestion)

    def _positive(self, field: str, suggestion: float) -> None:
        if self._finite(field, suggestion) <= 0:
            raise self._refuse(field, getattr(self, field), "> 0", suggestion)

    def _fraction(self, field: str, suggestion: float) -> None:
        if not 0 <= self._finite(field, suggestion) < 1:
            raise self._refuse(field, getattr(self, field), "at least 0 and below 1", suggestion)

    def _whole_steps(self, field: str, suggestion: int) -> None:
        value = self._finite(field, suggestion)
        if value < 1 or value != int(value):
            raise self._refuse(field, value, "a whole number of steps, 1 or more", suggestion)
        self._put(field, int(value))

    def _rate(self, field: str) -> None:
        """Accept a schedule (a definition with `at`), or convert the field to a float of at least 0."""
        got = getattr(self, field)
        if not (isinstance(got, Definition) and hasattr(got, "at")):
            self._at_least_zero(field, 0.01)

    def _flag(self, field: str) -> None:
        got = getattr(self, field)
        if not isinstance(got, bool):
            raise BadArgument(f"{type(self).__name__}: {field} is {got!r}, it must be True or False; try {field}=False")


def build(known: Mapping[str, type[D]], what: str, wire: object) -> D:
    """The definition of a wire form from `to_wire`, as one of the `known` classes.

    `what` is its name in messages. Nested definitions must have been built before.
    Raises TypeError if `wire` is not a map, ValueError for an unknown name or field, and errors of the constructor.
    """
    if not isinstance(wire, Mapping):
        raise TypeError(f"{what}: got {wire!r:.200}, it must be a map with a name; try {what}.to_wire()")
    fields = dict(wire)
    name = fields.pop("name", None)
    cls = known.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"{what}: the name is {name!r}, it must be a known one; try one of {', '.join(sorted(known))}")
    names = fields_of(cls)
    if unknown := sorted(set(map(str, fields)) - set(names)):
        raise ValueError(f"{name}: got {', '.join(unknown)}, which it does not take; try {', '.join(names)}")
    return cls(**fields)
