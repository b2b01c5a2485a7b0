"""Encodes arguments and results of calls: plain values and arrays, and marks for objects that the worker has itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.errors import ConfigError, ProtocolError
from dps.variables.items import Special, pack, unpack

if TYPE_CHECKING:
    from dps.calls.messages import Call
    from dps.transport.wire import Array

SESSION, VALUE, RESOURCE, NUMBER = 3, 4, 5, 6
"""The codes of values that are neither plain nor arrays: the worker's own session; the result of an earlier call; a
value that the worker keeps for the client; a number of numpy's."""

Packed = tuple[bytes, "tuple[Array, ...]"]
"""A form and its arrays."""


def pack_arguments(function: str, args: tuple[Any, ...], kwargs: dict[str, Any], special: Special) -> Packed:
    """Arguments as they travel; arrays are copied. Raises TypeError for what cannot travel."""
    return _packed([list(args), kwargs], f"{function}: an argument", special)


def unpack_arguments(call: Call, special: Callable[[int, Any], Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call. `special` returns the session for SESSION, and the value that RESOURCE names."""
    own = len(call.arrays) - sum(count for _, count in call.values)
    values, start = [], own
    for form, count in call.values:
        values.append(unpack_value(form, call.arrays[start : start + count]))
        start += count

    def leaf(code: int, content: Any) -> Any:
        if code == VALUE:
            return values[content]
        return _plain_leaf(code, content, special)

    args, kwargs = unpack(call.form, call.arrays[:own], leaf)
    return args, kwargs


def pack_value(value: Any, function: str) -> Packed:
    """A function's value as it travels; arrays are copied. Raises TypeError for what cannot travel."""
    return _packed(value, f"{function}: the value that it returned", lambda leaf: None)


def unpack_value(form: bytes, arrays: tuple[Array, ...]) -> Any:
    """A function's value; its arrays are the caller's own."""
    return unpack(form, arrays, lambda code, content: _plain_leaf(code, content, None))


def _packed(value: Any, what: str, special: Special) -> Packed:
    def leaf(found: Any) -> tuple[int, Any] | None:
        if isinstance(found, np.bool | np.integer | np.float64 | np.float32 | np.float16):
            return NUMBER, [found.dtype.name, found.item()]
        return special(found)

    try:
        form, arrays = pack(value, leaf)
    except ConfigError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{what}: {error}") from None
    return form, tuple(array.copy() for array in arrays)


def _plain_leaf(code: int, content: Any, special: Callable[[int, Any], Any] | None) -> Any:
    if code == NUMBER:
        return np.dtype(content[0]).type(content[1])
    if special is None:
        raise ProtocolError(f"a value of kind {code} cannot be read; install the same dps version on all tasks")
    return special(code, content)
