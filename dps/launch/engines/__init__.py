"""The launch engines: each module of this folder is one, by its name, which `dps launch --on` takes.

An engine's module has `make_engine(settings)`, which returns a `dps.launch.supervision.engine.Engine`. What several of
them use is in `dps.launch.hosts`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError

if TYPE_CHECKING:
    from dps.launch.supervision.engine import Engine

LOCAL, FOR_HOSTS = "local", "ssh"
"""The engines of runs that name none: this machine, and the one for an experiment file that has hosts."""


def names() -> list[str]:
    """The names of all engines. Imports none, nor pkgutil, which takes 1 ms of each start of `dps`."""
    files = [name for folder in __path__ for name in os.listdir(folder)]
    return sorted(name.removesuffix(".py") for name in files if name.endswith(".py") and not name.startswith("_"))


def default(settings: Mapping[str, Any]) -> str:
    """The name of the engine for settings of an experiment file, if nothing else says where its tasks run."""
    return FOR_HOSTS if "hosts" in settings else LOCAL


def make_engine(settings: Mapping[str, Any]) -> Engine:
    """The engine for the settings of a run: `on`, its name, and what an experiment file says for it."""
    on, known = settings.get("on", LOCAL), names()
    if on not in known:
        raise ConfigError(f"--on {on}: no such engine; wanted {', '.join(known[:-1])} or {known[-1]}")
    made: Engine = importlib.import_module(f"{__name__}.{on}").make_engine(settings)
    return made
