"""Converts whole arrays between float16 or bfloat16 and float32, and prepares them for kernels.

All arrays are flat and C-contiguous: `bits` are float16 or bfloat16 as integers of two bytes, `a` and `out` float32.
`dps.kernels.widening` documents the rounding. (`dps.kernels.compress` keeps such numbers finite instead, because there
halves are only the wire format.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels import looking
from dps.kernels.elements import number, put_number
from dps.kernels.jit import compiled
from dps.kernels.vectors import lanes_of, load, store

Array: TypeAlias = npt.NDArray[Any]


@compiled
def _widen(out: Array, bits: Array) -> None:
    lanes = lanes_of(bits)
    end = bits.size // lanes * lanes
    for i in range(0, end, lanes):
        store(out, i, load(bits, i))
    for i in range(end, bits.size):
        out[i] = number(bits, i)


@compiled
def _narrow(bits: Array, a: Array) -> None:
    lanes = lanes_of(bits)
    end = bits.size // lanes * lanes
    for i in range(0, end, lanes):
        store(bits, i, load(a, i))
    for i in range(end, bits.size):
        put_number(bits, i, a[i])


def widen_float16(out: Array, bits: Array) -> None:
    """The values of IEEE halves."""
    _widen(out, bits.view(np.int16))


def narrow_float16(bits: Array, a: Array) -> None:
    """The IEEE halves nearest to the numbers."""
    _narrow(bits.view(np.int16), a)


def widen_bfloat16(out: Array, bits: Array) -> None:
    """The values of upper halves of float32."""
    _widen(out, bits.view(np.uint16))


def narrow_bfloat16(bits: Array, a: Array) -> None:
    """The upper halves nearest to the numbers."""
    _narrow(bits.view(np.uint16), a)


WIDEN: dict[str, Callable[[Array, Array], None]] = {"float16": widen_float16, "bfloat16": widen_bfloat16}
NARROW: dict[str, Callable[[Array, Array], None]] = {"float16": narrow_float16, "bfloat16": narrow_bfloat16}


@cache
def given_as(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The integer dtype in which kernels get halves of this dtype, by which they tell them apart; None for others."""
    return {"float16": np.dtype(np.int16), "bfloat16": np.dtype(np.uint16)}.get(dtype.name)


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype has two bytes and is computed in float32."""
    return given_as(dtype) is not None


def bits_in(a: Array) -> Array:
    """Halves of any shape in the form for kernels. Copied if not aligned or not writable, because kernels are compiled
    for such memory. An array of another dtype is returned unchanged."""
    given = given_as(a.dtype)
    if given is None:
        return a
    return (a if a.flags.carray else np.require(a, requirements=["C", "A", "W"])).view(given)


def all_finite(a: Array) -> bool:
    """Whether no element of an array of halves is infinite or NaN. True for no elements."""
    return bool(looking.all_finite(bits_in(a).reshape(-1)))


def widened(a: Array) -> Array:
    """Halves of any shape as float32, in new memory; an array of another dtype is returned unchanged."""
    if not is_half(a.dtype):
        return a
    out = np.empty(a.shape, np.float32)
    _widen(out.reshape(-1), bits_in(a).reshape(-1))
    return out
