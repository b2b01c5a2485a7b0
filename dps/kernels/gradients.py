"""CPU kernels that add gradients and divide their sums. 1-D arrays, as in `dps.kernels.cpu`.

`out` is the first array after it, or does not overlap any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels.elements import number, put_number
from dps.kernels.jit import compiled

Array: TypeAlias = npt.NDArray[Any]
Scalar: TypeAlias = "np.floating[Any]"


@compiled
def same(a: Array, b: Array) -> bool:
    """Whether two arrays begin at one address."""
    return bool(a.ctypes.data == b.ctypes.data)


@compiled
def add(out: Array, a: Array, b: Array) -> None:
    """out = a + b. A mean is a running sum by `add`, then `add_divide`.

    Here and in `add_divide` a and b may be halves, as `dps.kernels.widening` has them, with `out` in float32.
    """
    if same(out, a):
        for i in range(a.size):
            put_number(a, i, number(a, i) + number(b, i))
    else:
        for i in range(a.size):
            out[i] = number(a, i) + number(b, i)


@compiled
def add_divide(out: Array, a: Array, b: Array, n: Scalar) -> None:
    """out = (a + b) / n: the end of a mean, in one pass."""
    if same(out, a):
        for i in range(a.size):
            put_number(a, i, (number(a, i) + number(b, i)) / n)
    else:
        for i in range(a.size):
            out[i] = (number(a, i) + number(b, i)) / n


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
