"""The elements of a plan: variables and their parts, each part on one ps.

Tuples with names, as a plan of very many variables is made of them in every task.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


class VariableSpec(NamedTuple):
    """A logical variable: what clients see. `optimizer` is its wire form; None: it is never updated."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    optimizer: dict[str, Any] | None
    sparse: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Part(NamedTuple):
    """Rows `row0` to `row0 + rows` of a variable, on one ps; the only part of an unsplit variable has all."""

    index: int  # type: ignore[assignment]  # a tuple's own `index` is not wanted
    variable: int
    name: str
    shape: tuple[int, ...]
    row0: int
    ps: int
    device: str = ""
    """Where on its ps: "CPU:0", "GPU:1", or "" for wherever the ps keeps what says nothing."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def row_size(self) -> int:
        """Elements of one row."""
        return math.prod(self.shape[1:])
