"""The elements of a plan: variables and their parts, each part on one ps.

They are named tuples, which are cheap, because every task makes them for a plan of very many variables.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class VariableSpec(NamedTuple):
    """A logical variable, as clients see it. `optimizer` is its wire form; None: it is never updated."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    optimizer: dict[str, Any] | None
    sparse: bool = False


class Part(NamedTuple):
    """Rows `row0` to `row0 + rows` of a variable, on one ps; the only part of an unsplit variable has all."""

    index: int  # type: ignore[assignment]  # a tuple's own `index` is not wanted
    variable: int
    name: str
    shape: tuple[int, ...]
    row0: int
    ps: int
    device: str = ""
    """The device on its ps: "CPU:0", "GPU:1", or "" for the ps's default."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def row_size(self) -> int:
        """Elements of one row."""
        return math.prod(self.shape[1:])
