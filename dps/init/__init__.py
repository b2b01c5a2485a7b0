"""Initializers: first values that the ps make, as users write them. The code is in `dps.training.initializers`."""

from __future__ import annotations

from dps.errors import ConfigError
from dps.training.initializers import (
    Constant,
    FromFile,
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    Initializer,
    Normal,
    Ones,
    TruncatedNormal,
    Uniform,
    Zeros,
    from_wire,
    initializer_names,
)

__all__ = [
    "Constant", "FromFile", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Initializer", "Normal", "Ones",
    "TruncatedNormal", "Uniform", "Zeros", "from_wire",
]  # fmt: skip


class UnknownInitializer(ConfigError, AttributeError):
    """dps.init has no such name."""


def __getattr__(name: str) -> object:
    raise UnknownInitializer(f"dps.init has no {name!r}; there are {initializer_names()}")
