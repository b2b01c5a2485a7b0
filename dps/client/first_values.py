"""Calls `init_fn` for first values, in the one session that the chief asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dps.errors import DpsError, HookError
from dps.transport.wire import Array
from dps.variables.sharing import tied
from dps.variables.tree import leaves, to_array


def first_values(
    function: Callable[[Any], Any], params: Any, name: str, values: Mapping[str, Array]
) -> dict[str, Array]:
    """What `init_fn(params)` returns, by name, in place of the values of params; those of params for a variable that it
    does not name. Blocks as it does. `name`: the session's, for messages.

    Raises HookError if `init_fn` raises, or does not return values of the variables.
    """
    first = tied(leaves(params))
    try:
        made = function(params)
    except DpsError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise HookError(f"{name}: init_fn raised {type(error).__name__}: {text}") from error
    if not isinstance(made, dict | list | tuple):
        raise HookError(f"{name}: init_fn returned {made!r:.80}, wanted first values in the nesting of params")
    try:
        given = {path: to_array(leaf, path) for path, leaf in leaves(made)}
    except (TypeError, ValueError) as error:
        raise HookError(f"{name}: init_fn returned values that cannot be used: {error}") from None
    found: dict[str, Array] = {}
    for path, array in given.items():
        own = first.get(path, path)
        if problem := _problem(path, array, values.get(own)):
            raise HookError(f"{name}: init_fn returned {problem}")
        if not np.array_equal(found.setdefault(own, array), array, equal_nan=True):
            raise HookError(f"{name}: init_fn returned two values for {own}, which is tied to {path}")
    return {**values, **found}


def _problem(name: str, array: Array, wanted: Array | None) -> str:
    """Why an array is no first value of the variable of its name; "" if it is one."""
    if wanted is None:
        return f"{name!r}, which is no variable"
    if array.shape == wanted.shape and array.dtype == wanted.dtype:
        return ""
    return f"{array.dtype.name} {array.shape} for {name}, the variable is {wanted.dtype.name} {wanted.shape}"
