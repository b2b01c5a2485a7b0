"""The operations of optimizers' rules beside +, -, /, abs and math.copysign: on a number, or on a vector of numbers.

A rule (`Optimizer.rule`) is plain Python that kernels are made from. `dps.kernels` defines these operations for
vectors on a CPU and for a GPU. The functions here run in numba's CUDA simulator, and define the bits: each result is
rounded once, to the type of the arguments.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

Number: TypeAlias = Any


def mul(a: Number, b: Number) -> Number:
    """a * b, rounded. CUDA's compiler joins `*` with a sum to one operation with one rounding (fma), but never this."""
    return a * b


def sqrt(a: Number) -> Number:
    """The square root; NaN for negative numbers."""
    return type(a)(math.sqrt(a) if a >= 0 else math.nan)


def power(a: Number, exponent: Number) -> Number:
    """a**exponent; `exponent` is never a vector. The bits may differ between a CPU and a GPU."""
    return a**exponent


def above(x: Number, limit: Number, then: Number, other: Number) -> Number:
    """`then` where x > limit, else `other`."""
    return then if x > limit else other
