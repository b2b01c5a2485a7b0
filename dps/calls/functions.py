"""The functions that a worker runs for others: those of the modules that it serves, and no others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from dps.errors import ConfigError
from dps.functions import load, module_of

Function = Callable[..., Any]


class Served:
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

    def find(self, path: str) -> Function:
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
