"""The functions that a worker runs for others: those of the modules that it serves, and no others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.errors import ConfigError, ProtocolError
from dps.process.functions import load, module_of
from dps.variables.items import Special, pack, unpack

if TYPE_CHECKING:
    from dps.transport.wire import Array


Function = Callable[..., Any]


class ServedFunctions:
    """The functions that a worker serves. All of them are imported when this is made, so that errors come early and
    calls do not wait.

    Each entry is a module, "package.module" or "folder/file.py", or one function of one, "package.module:function".
    """

    def __init__(self, entries: Sequence[str], functions: Mapping[str, Function] | None = None) -> None:
        """`functions`: by their paths, functions that came without a module, such as a notebook's. Raises ConfigError
        for an entry that is not there."""
        self.entries = [*entries, *(functions or {})]
        self._functions = dict(functions or {})
        self._modules: dict[str, ModuleType] = {}
        for entry in entries:
            if ":" in entry:
                function = load(entry)
                self._functions |= dict.fromkeys({entry, *_paths(function)}, function)
            else:
                module = module_of(entry)
                self._modules |= dict.fromkeys(_names(module, entry), module)

    def find_function(self, path: str) -> Function:
        """The function of a path. Raises ConfigError if it is not served, or not there."""
        if path in self._functions:
            return self._functions[path]
        target, _, name = path.rpartition(":")
        module = self._modules.get(target)
        if module is None:
            raise ConfigError(
                f"got a call of {path}, and this worker serves {', '.join(self.entries) or 'nothing'} only; start it "
                f"with --serve {target or path}"
            )
        found = vars(module).get(name)
        if not callable(found) or getattr(found, "__module__", None) != module.__name__:
            own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
            close = get_close_matches(name, own, 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"{target} has no function {name!r} of its own{meant}")
        function: Function = found
        return function


def _names(module: ModuleType, entry: str) -> set[str]:
    """The names by which a client may call the module: its name, its file, and the entry."""
    file = getattr(module, "__file__", None)
    return {module.__name__, entry} | ({os.path.abspath(file)} if file else set())


def _paths(function: Function) -> set[str]:
    """The names by which a client may call a function that was given by its own path."""
    module, name = module_of(function.__module__), getattr(function, "__name__", "")
    return {f"{target}:{name}" for target in _names(module, function.__module__)}


SESSION, VALUE, RESOURCE, NUMBER = 3, 4, 5, 6
"""The codes of values that are neither plain nor arrays: the worker's own session; the result of an earlier call; a
value that the worker keeps for the client; a number of numpy's."""

Packed = tuple[bytes, "tuple[Array, ...]"]
"""A form and its arrays."""
Mark = Callable[[int, Any], Any]
"""Returns what a code and its content stand for."""


def pack_arguments(function: str, args: tuple[Any, ...], kwargs: dict[str, Any], special: Special) -> Packed:
    """Arguments as they travel; arrays are copied. Raises TypeError for what cannot travel."""
    return _packed([list(args), kwargs], f"{function}: an argument", special)


def unpack_arguments(
    form: bytes, arrays: Sequence[Array], values: Sequence[tuple[bytes, int]] = (), special: Mark | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call. `values`: of earlier calls' results among them, the form and the number of arrays, which
    are the last ones. `special` returns the session for SESSION, and the value that RESOURCE names."""
    start = own = len(arrays) - sum(count for _, count in values)
    found = []
    for result, count in values:
        found.append(unpack_value(result, arrays[start : start + count]))
        start += count

    def leaf(code: int, content: Any) -> Any:
        if code == VALUE:
            return found[content]
        return _plain_leaf(code, content, special)

    args, kwargs = unpack(form, arrays[:own], leaf)
    return args, kwargs


def pack_value(value: Any, function: str, special: Special | None = None) -> Packed:
    """A function's value as it travels; arrays are copied. Raises TypeError for what cannot travel."""
    return _packed(value, f"{function}: the value that it returned", special)


def unpack_value(form: bytes, arrays: Sequence[Array]) -> Any:
    """A function's value; its arrays are the caller's own."""
    return unpack(form, arrays, lambda code, content: _plain_leaf(code, content, None))


def _packed(value: Any, what: str, special: Special | None) -> Packed:
    def leaf(found: Any) -> tuple[int, Any] | None:
        mark = None if special is None else special(found)
        if mark is None and isinstance(found, np.bool | np.integer | np.float64 | np.float32 | np.float16):
            return NUMBER, [found.dtype.name, found.item()]
        return mark

    try:
        form, arrays = pack(value, leaf)
    except ConfigError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{what}: {error}") from None
    return form, tuple(array.copy() for array in arrays)


def _plain_leaf(code: int, content: Any, special: Mark | None) -> Any:
    if code == NUMBER:
        return np.dtype(content[0]).type(content[1])
    if special is None:
        raise ProtocolError(f"a value of kind {code} cannot be read; install the same dps version on all tasks")
    return special(code, content)
