"""Names functions by their import path, so that another process can import them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import linecache
import os
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

from dps.errors import ConfigError

DPS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of this package."""
_loading: list[str] = []


def loading() -> str:
    """The path whose module `load` is importing; "" if it imports none."""
    return _loading[-1] if _loading else ""


def load(path: str) -> Callable[..., Any]:
    """A function by its path, "package.module:function" or "folder/file.py:function". ConfigError if it is missing."""
    found: Callable[..., Any] | None = find(path)
    if not callable(found):
        target, _, name = path.rpartition(":")
        raise ConfigError(f"{path}: {target} has no function {name!r}; {_WANTED}")
    return found


def find(path: str) -> Any:
    """What has this name in this module or file; None where nothing has, ConfigError for no such module or file."""
    target, _, name = path.rpartition(":")
    return getattr(module_of(target, path), name, None)


def module_of(target: str, path: str = "") -> ModuleType:
    """A module by its name, or that of a file. `path`: what errors call it. ConfigError for no such module or file."""
    _loading.append(path or target)
    try:
        return (_file if target.endswith(".py") else _module)(path or target, target)
    finally:
        _loading.pop()


def import_path(function: Callable[..., Any] | str) -> str:
    """The path of a function that a worker imports: "module:name"; "/folder/file.py:name" for one of the main script,
    and "__main__:name" for a notebook's. ConfigError for a function without a path; text is checked only."""
    if isinstance(function, str):
        if not all(function.rpartition(":")):
            raise ConfigError(f"got the function {function!r}; {_WANTED}")
        return function
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    if not callable(function) or not module or not name.isidentifier():
        what = name or f"{function!r:.60}"
        raise ConfigError(
            f"{what} has no path by which a worker could import it; wanted a function at the top of a module, whose "
            "arguments bring the rest"
        )
    main = sys.modules.get("__main__")
    if module == "__main__" and getattr(main, "__spec__", None) is not None:  # python -m package.module
        return f"{main.__spec__.name}:{name}"  # type: ignore[union-attr]
    file = getattr(main, "__file__", None) or ""
    if module == "__main__" and file.endswith(".py"):
        return f"{os.path.abspath(file)}:{name}"
    return f"{module}:{name}"


_WANTED = "wanted package.module:function or folder/file.py:function"


def _module(path: str, target: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if not target:
        raise ConfigError(f"{path}: no module {target!r}; {_WANTED}")
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError as error:
        missing = error.name
        if missing is not None and target != missing and not target.startswith(f"{missing}."):
            raise  # the module exists, but one that it imports does not
        raise ConfigError(f"{path}: no module {target!r}; {_WANTED}") from None


def _file(path: str, target: str) -> ModuleType:
    """Import a file as a module of its own name, or of another if a module of that name is loaded already."""
    file = os.path.abspath(target)
    if not os.path.exists(file):
        raise ConfigError(f"{path}: no file {target!r}; {_WANTED}")
    sys.path.insert(0, os.path.dirname(file))
    name = os.path.splitext(os.path.basename(file))[0]
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == file:
        return loaded
    spec = importlib.util.spec_from_file_location(name if loaded is None else f"dps_program_{name}", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:  # remove the incomplete module
        del sys.modules[spec.name]
        raise
    return module


def path_of(function: Callable[..., Any]) -> tuple[str, bytes]:
    """A function's path, "module:name" or "file.py:name". If it has none, its code, if cloudpickle is installed."""
    with contextlib.suppress(ConfigError):
        path = import_path(function)
        if not path.startswith("__main__:"):
            return path, b""
    try:
        code: bytes = importlib.import_module("cloudpickle").dumps(function)
    except ImportError:
        name = getattr(function, "__qualname__", "")
        raise ConfigError(
            f"{name or function!r} has no path that another process could import; put it at the top of a .py file, or "
            "install dps[notebook]"
        ) from None
    return "", code


def sources() -> dict[str, list[str]]:
    """The lines of all code without a file, such as a notebook's cells, by its name in tracebacks."""
    return {name: entry[2] for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}


def show_sources(known: dict[str, list[str]]) -> None:
    """Make tracebacks of this process show lines that `sources` returned in another process."""
    linecache.cache.update({name: (sum(map(len, lines)), None, lines, name) for name, lines in known.items()})


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame of a user's program on: without those of dps and of the import system before."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(("<frozen ", DPS)):
        trace = trace.tb_next
    return trace
