"""Sums and maxima of several runs, added in their order: one pass for up to four. 1-D arrays of one size and dtype.

`out` overlaps none of them. Elements are independent of each other, so their bits do not depend on how a run was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels.jit import compiled

Array: TypeAlias = npt.NDArray[Any]


@compiled
def add3(out: Array, a: Array, b: Array, c: Array) -> None:
    """out = (a + b) + c."""
    for i in range(out.size):
        out[i] = (a[i] + b[i]) + c[i]


@compiled
def add4(out: Array, a: Array, b: Array, c: Array, d: Array) -> None:
    """out = ((a + b) + c) + d."""
    for i in range(out.size):
        out[i] = ((a[i] + b[i]) + c[i]) + d[i]


@np.errstate(over="ignore", invalid="ignore")  # what is not finite is found where sums are used
def total(out: Array, arrays: Sequence[Array]) -> None:
    """out = the sum of the arrays, in their order."""
    first, rest = arrays[0], list(arrays[1:])
    if not rest:
        out[...] = first
    elif out.dtype.kind != "f" or len(rest) == 1:  # numpy is as fast for two
        np.add(first, rest.pop(0), out=out)
    elif len(rest) == 2:
        add3(out, first, rest.pop(0), rest.pop(0))
    else:
        add4(out, first, rest.pop(0), rest.pop(0), rest.pop(0))
    for array in rest:
        np.add(out, array, out=out)


@np.errstate(invalid="ignore")
def largest(out: Array, arrays: Sequence[Array]) -> None:
    """out = the maximum of the arrays, element by element; NaN where one is NaN."""
    out[...] = arrays[0]
    for array in arrays[1:]:
        np.maximum(out, array, out=out)
