"""Reads and writes single elements in kernels: float16 and bfloat16 as float32, other dtypes unchanged.

Indices are not checked. Arrays of halves are C-contiguous; see `dps.kernels.widening`. An array may be None, for a slot
that an optimizer does not use: its elements are None, and writing them does nothing.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types
from numba.extending import overload

from dps.kernels.widening import is_narrow, narrowed, wide, widened

Array: TypeAlias = npt.NDArray[Any]
Scalar: TypeAlias = "np.floating[Any]"


def number(a: Array, i: int) -> Any:
    """a[i]"""
    raise NotImplementedError("numba compiles this")


def put_number(a: Array, i: int, x: Any) -> None:
    """a[i] = x"""
    raise NotImplementedError("numba compiles this")


def entry(a: Array, i: int, j: int) -> Any:
    """a[i, j]"""
    raise NotImplementedError("numba compiles this")


def put_entry(a: Array, i: int, j: int, x: Any) -> None:
    """a[i, j] = x"""
    raise NotImplementedError("numba compiles this")


def address(context: Any, builder: Any, kind: Any, array: Any, index: Any, lane: Any, lanes: int = 0) -> Any:
    """A pointer to a number of type `lane`, or to a vector of `lanes` of them, that begins at an element."""
    memory = context.make_array(kind)(context, builder, array)
    wanted = ir.VectorType(lane, lanes) if lanes else lane
    return builder.bitcast(builder.gep(memory.data, [index]), wanted.as_pointer())


def _read(typing: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = address(context, builder, array, args[0], args[1], ir.IntType(16))
        return widened(builder, array.dtype, builder.load(place, align=1))

    return wide(array.dtype)(array, types.intp), generate


def _write(typing: Any, array: Any, index: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = address(context, builder, array, args[0], args[1], ir.IntType(16))
        builder.store(narrowed(builder, array.dtype, args[2]), place, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), generate


_read_half: Any = extending.intrinsic(_read)  # numba supplies the first argument
_write_half: Any = extending.intrinsic(_write)


@overload(number)
def _number(a, i):  # type: ignore[no-untyped-def]  # numba compares it with the lambdas, to the letter
    if a is types.none:
        return lambda a, i: None
    return (lambda a, i: _read_half(a, i)) if is_narrow(a.dtype) else (lambda a, i: a[i])


@overload(put_number)
def _put_number(a, i, x):  # type: ignore[no-untyped-def]
    def put(a, i, x):  # type: ignore[no-untyped-def]
        a[i] = x

    if a is types.none:
        return lambda a, i, x: None
    return (lambda a, i, x: _write_half(a, i, x)) if is_narrow(a.dtype) else put


@overload(entry)
def _entry(a, i, j):  # type: ignore[no-untyped-def]
    if a is types.none:
        return lambda a, i, j: None
    return (lambda a, i, j: _read_half(a, i * a.shape[1] + j)) if is_narrow(a.dtype) else (lambda a, i, j: a[i, j])


@overload(put_entry)
def _put_entry(a, i, j, x):  # type: ignore[no-untyped-def]
    def put(a, i, j, x):  # type: ignore[no-untyped-def]
        a[i, j] = x

    if a is types.none:
        return lambda a, i, j, x: None
    return (lambda a, i, j, x: _write_half(a, i * a.shape[1] + j, x)) if is_narrow(a.dtype) else put
