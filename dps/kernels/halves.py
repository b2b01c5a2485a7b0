"""Numbers of two bytes as float32, and back: what a ps does around an update of variables that it keeps in halves.

All arrays are flat and C-contiguous: `bits` are float16 or bfloat16 as uint16, `a` and `out` are float32. Widening is
exact; narrowing rounds to nearest, ties to even, and what is too large becomes infinite, as IEEE 754 has it and numpy
and torch do it. (`dps.kernels.compress` keeps such numbers finite instead: there only the way is in halves.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from dps.kernels.jit import compiled

Array: TypeAlias = npt.NDArray[Any]


@intrinsic
def _bits_of(context: Any, number: Any) -> Any:
    """The bits of a float32, as uint32. In a register, so that loops become vector loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def _number_of(context: Any, bits: Any) -> Any:
    """The float32 of these bits, which are uint32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


bits_of: Any = _bits_of  # numba supplies the context
number_of: Any = _number_of


@compiled
def widen_float16(out: Array, bits: Array) -> None:
    """The numbers that IEEE halves stand for."""
    for i in range(bits.size):
        half = np.uint32(bits[i])
        sign = np.uint32((half & np.uint32(0x8000)) << np.uint32(16))
        size = np.uint32(half & np.uint32(0x7FFF))
        least = np.float32(np.int32(size)) * np.float32(2.0**-24)  # what is below 2**-14 is a multiple of this
        whole = np.uint32((size << np.uint32(13)) + np.uint32(112 << 23))
        whole = np.uint32(whole + np.uint32(112 << 23)) if size >= np.uint32(0x7C00) else whole  # infinite or NaN
        whole = bits_of(least) if size < np.uint32(0x400) else whole
        out[i] = number_of(np.uint32(whole | sign))


@compiled
def narrow_float16(bits: Array, a: Array) -> None:
    """The IEEE halves nearest to numbers.

    Below 2**-14, where halves are evenly spaced, adding 0.5 makes the float32 adder round to just that spacing.
    """
    for i in range(a.size):
        whole = bits_of(a[i])
        sign = (whole >> np.uint32(16)) & np.uint32(0x8000)
        size = np.uint32(whole & np.uint32(0x7FFFFFFF))
        odd = (size >> np.uint32(13)) & np.uint32(1)
        half = np.uint32((size + np.uint32(0xFFF) + odd - np.uint32(112 << 23)) >> np.uint32(13))
        small = np.uint32(bits_of(number_of(size) + np.float32(0.5)) - np.uint32(0x3F000000))
        half = small if size < np.uint32(0x38800000) else half
        half = np.uint32(0x7C00) if size >= np.uint32(0x477FF000) else half
        half = np.uint32(0x7E00) if size > np.uint32(0x7F800000) else half
        bits[i] = np.uint16(sign | half)


@compiled
def widen_bfloat16(out: Array, bits: Array) -> None:
    """The numbers that upper halves of float32 stand for."""
    for i in range(bits.size):
        out[i] = number_of(np.uint32(np.uint32(bits[i]) << np.uint32(16)))


@compiled
def narrow_bfloat16(bits: Array, a: Array) -> None:
    """The upper halves nearest to numbers."""
    for i in range(a.size):
        whole = bits_of(a[i])
        upper = np.uint32(whole >> np.uint32(16))
        half = np.uint32((whole + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16))
        half = np.uint32(upper | np.uint32(0x40)) if (whole & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000) else half
        bits[i] = np.uint16(half)


@compiled
def all_below(bits: Array, exponent: int) -> bool:
    """Whether no number has all bits of its exponent, those in the mask `exponent`: none is infinite or NaN."""
    mask, found = np.uint16(exponent), False
    for i in range(bits.size):
        found |= np.uint16(bits[i] & mask) == mask
    return not found


WIDEN: dict[str, Callable[[Array, Array], None]] = {"float16": widen_float16, "bfloat16": widen_bfloat16}
NARROW: dict[str, Callable[[Array, Array], None]] = {"float16": narrow_float16, "bfloat16": narrow_bfloat16}
_EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80}


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether these are numbers of two bytes that are computed with in float32."""
    return dtype.itemsize == 2 and dtype.name in WIDEN  # a name takes ten times as long


def all_finite(a: Array) -> bool:
    """Whether no element of a flat array of halves is infinite or NaN. True for no elements."""
    return bool(all_below(a.view(np.uint16), _EXPONENT[a.dtype.name]))


def widened(a: Array) -> Array:
    """Halves of any shape as float32, in new memory; an array of another dtype is returned as it is."""
    if not is_half(a.dtype):
        return a
    out = np.empty(a.shape, np.float32)
    flat = np.require(a, requirements=["C", "W"]).reshape(-1)  # kernels exist for memory that is writable
    WIDEN[a.dtype.name](out.reshape(-1), flat.view(np.uint16))
    return out
