"""Functions by their paths: how a training function is named to another process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from dps.errors import ConfigError


def load(path: str) -> Callable[..., Any]:
    """A function by its path, "package.module:function" or "folder/file.py:function"; ConfigError when not there."""
    target, _, name = path.rpartition(":")
    try:
        if target.endswith(".py"):
            sys.path.insert(0, os.path.dirname(os.path.abspath(target)))
            target = os.path.splitext(os.path.basename(target))[0]
        else:
            sys.path.insert(0, os.getcwd())
        found: Callable[..., Any] = getattr(importlib.import_module(target), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{path}: {error}; wanted package.module:function or folder/file.py:function") from None
    return found


def path_of(function: Callable[..., Any]) -> tuple[str, bytes]:
    """A function's path, "module:name" or "file.py:name"; for one that has none its code, if cloudpickle is there."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    if name.isidentifier() and module and module != "__main__":
        return f"{module}:{name}", b""
    if name.isidentifier() and module == "__main__" and main_file and main_file.endswith(".py"):
        return f"{os.path.abspath(main_file)}:{name}", b""
    try:
        code: bytes = importlib.import_module("cloudpickle").dumps(function)
    except ImportError:
        raise ConfigError(
            f"{name or function!r} has no path that another process could import; put it at the top of a .py file, or "
            "install dps[notebook]"
        ) from None
    return "", code
