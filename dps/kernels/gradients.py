"""CPU kernels that add gradients and divide their sums. 1-D arrays, as in `dps.kernels.cpu`.

`out` is the first array after it, or does not overlap any.
"""

from __future__ import annotations

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
