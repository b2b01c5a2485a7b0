"""Packages that import a module only when one of its names is first used, since most processes need few of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def at_first_use(package: str, names: Mapping[str, str], into: str = "") -> Callable[[str], Any]:
    """The `__getattr__` of a package, or of the module `into`. `names` maps a name to its module in the package; "" if
    it is a module itself.

    Type checkers see the names under `if TYPE_CHECKING`.
    """

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {into or package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{names[name] or name}")
        value = getattr(module, name) if names[name] else module
        setattr(sys.modules[into or package], name, value)
        return value

    return load
