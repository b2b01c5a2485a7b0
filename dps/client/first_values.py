"""First values that a program makes only where they are needed: `init_fn`, in the session that is asked for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dps.errors import DpsError, HookError
from dps.transport.wire import Array
from dps.variables.tree import leaves, to_array


class FirstValues:
    """Calls `init_fn(params)` and puts what it returns in the place of the values of params."""

    def __init__(self, init_fn: Callable[[Any], Any], params: Any, name: str) -> None:
        """`name`: the session's, for messages."""
        self._function, self._params, self._name = init_fn, params, name

    def __call__(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The first values by name; those of params for a variable that `init_fn` does not name. Blocks as it does.

        Raises HookError where `init_fn` raises, or returns what are no values of the variables.
        """
        try:
            made = self._function(self._params)
        except DpsError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            raise HookError(f"{self._name}: init_fn raised {type(error).__name__}: {text}") from error
        if not isinstance(made, dict | list | tuple):
            raise HookError(
                f"{self._name}: init_fn returned {made!r:.80}, wanted first values in the nesting of params"
            )
        try:
            found = {name: to_array(leaf, name) for name, leaf in leaves(made)}
        except (TypeError, ValueError) as error:
            raise HookError(f"{self._name}: init_fn returned values that cannot be used: {error}") from None
        for name, array in found.items():
            if problem := _problem(name, array, values.get(name)):
                raise HookError(f"{self._name}: init_fn returned {problem}")
        return {**values, **found}


def _problem(name: str, array: Array, wanted: Array | None) -> str:
    """Why an array is no first value of the variable of its name; "" if it is one."""
    if wanted is None:
        return f"{name!r}, which is no variable"
    if array.shape == wanted.shape and array.dtype == wanted.dtype:
        return ""
    return f"{array.dtype.name} {array.shape} for {name}, the variable is {wanted.dtype.name} {wanted.shape}"
