"""Packages that import a module only when one of its names is first used, since most processes need few of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def at_first_use(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `names` maps a name to its module; "" if it is a module itself.

    Type checkers see the names under `if TYPE_CHECKING`.
    """

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{names[name] or name}")
        value = getattr(module, name) if names[name] else module
        setattr(sys.modules[package], name, value)
        return value

    return load
