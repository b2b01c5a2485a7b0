"""Reads the headers of very many numpy arrays from memory, since asking each array costs 0.3 us in Python.

An array begins, like each CPython object, with its reference count. Then comes the struct `PyArrayObject_fields` of
numpy's C API (https://numpy.org/doc/stable/reference/c-api/types-and-structures.html), which does not change, because
extension modules are compiled against it. If either is different from what this module expects, nothing is read.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from dps.kernels.jit import compiled
from dps.kernels.vectors import intrinsic

Array: TypeAlias = npt.NDArray[Any]
Table: TypeAlias = npt.NDArray[np.int64]
"""A row for each array, with the columns below."""

REFERENCES, DATA, FLAGS, WEAK, KIND, DTYPE, NDIM, SHAPE = range(8)
DIMS = 5
"""The last columns are the shape; arrays of more dimensions never match."""
COLUMNS = SHAPE + DIMS
_KIND = id(np.ndarray)
PLAIN = 0x1 | 0x100
"""Flags of arrays that are C-contiguous and aligned: NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED."""


def are_like(arrays: Sequence[object], table: Table) -> bool:
    """Whether the arrays are contiguous and have the dtypes and shapes of a table, in order."""
    if len(arrays) != len(table) or not readable():
        return False
    objects = np.fromiter(arrays, object, len(arrays))
    return bool(_same(_place(objects), table, _KIND, False))


def lay(arrays: Sequence[Array], out: Array) -> bool:
    """Copy arrays one after the other to `out`, which is flat, contiguous, of their dtype and of their total length.
    False if this is not possible here. `arrays` must be ndarrays of that dtype."""
    if not readable():
        return False
    objects = np.fromiter(arrays, object, len(arrays))
    return bool(_lay(_place(objects), len(arrays), _KIND, out.view(np.uint8), out.itemsize))


def described(dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]]) -> Table:
    """The table for arrays of these dtypes and shapes."""
    table = np.zeros((len(dtypes), COLUMNS), np.int64)
    table[:, KIND] = _KIND
    table[:, DTYPE] = [id(dtype) for dtype in dtypes]
    table[:, NDIM] = [len(shape) for shape in shapes]
    for axis in range(DIMS):
        table[:, SHAPE + axis] = [shape[axis] if axis < len(shape) else 0 for shape in shapes]
    return table


class Headers:
    """Records the headers of some arrays, and checks later whether they are unchanged."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        """`arrays` must be ndarrays."""
        self._objects = np.fromiter(arrays, object, len(arrays))
        self._table = np.zeros((len(arrays), COLUMNS), np.int64)
        self.known = readable()
        """Whether the headers can be read at all."""
        if self.known:
            _read(_place(self._objects), self._table, _KIND)
            self.known = bool((self._table[:, NDIM] <= DIMS).all())

    def unchanged(self) -> bool:
        """Whether none of the arrays has more references (also weak ones) than when this was made, and none has
        changed: its shape, its dtype, whether it is writable."""
        return self.known and bool(_same(_place(self._objects), self._table, _KIND, True))


def ready() -> None:
    """Compile or load all functions of this module."""
    arrays = [np.zeros(2, np.float32) for _ in range(2)]
    are_like(arrays, described([array.dtype for array in arrays], [array.shape for array in arrays]))
    Headers(arrays).unchanged()
    lay(arrays, np.zeros(4, np.float32))


def _place(objects: Array) -> int:
    return int(objects.__array_interface__["data"][0])


@intrinsic
def _word(typing: Any, place: Any) -> Any:
    """The 8 bytes at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=8)

    return types.int64(types.intp), generate


HALF = 0xFFFFFFFF
"""Mask of the lower 4 of 8 bytes, on little-endian machines: a C int, and from Python 3.12 on the reference count."""


@functools.partial(compiled, nogil=False)
def _read(objects: int, table: Table, kind: int) -> None:
    """Fill a table with the headers of the arrays whose pointers are at an address. `kind`: the type ndarray."""
    for i in range(len(table)):
        array = _word(objects + 8 * i)
        table[i, REFERENCES] = _word(array) & HALF
        table[i, KIND] = _word(array + 8)
        if table[i, KIND] != kind:
            continue
        table[i, DATA] = _word(array + 16)
        table[i, NDIM] = _word(array + 24) & HALF
        table[i, DTYPE] = _word(array + 56)
        table[i, FLAGS] = _word(array + 64) & HALF
        table[i, WEAK] = _word(array + 72)
        shape = _word(array + 32)
        for axis in range(min(DIMS, table[i, NDIM])):
            table[i, SHAPE + axis] = _word(shape + 8 * axis)


@functools.partial(compiled, nogil=False)
def _same(objects: int, table: Table, kind: int, wholly: bool) -> bool:
    """Whether the arrays' headers equal a table or, if not `wholly`, have its dtypes and shapes and are plain."""
    found = np.zeros((1, COLUMNS), np.int64)
    for i in range(len(table)):
        found[0, SHAPE:] = 0
        _read(objects + 8 * i, found, kind)
        if found[0, KIND] != kind or found[0, NDIM] > DIMS:
            return False
        if not wholly and found[0, FLAGS] & PLAIN != PLAIN:
            return False
        for column in range(0 if wholly else DTYPE, COLUMNS):
            if found[0, column] != table[i, column]:
                return False
    return True


@functools.partial(compiled, nogil=False)
def _lay(objects: int, count: int, kind: int, out: Array, itemsize: int) -> bool:
    """As `lay`; `out` are bytes."""
    found, at = np.zeros((1, COLUMNS), np.int64), np.int64(0)
    for i in range(count):
        _read(objects + 8 * i, found, kind)
        nbytes = np.int64(itemsize)
        for axis in range(min(DIMS, found[0, NDIM])):
            nbytes *= found[0, SHAPE + axis]
        if (
            found[0, KIND] != kind
            or found[0, NDIM] > DIMS
            or found[0, FLAGS] & PLAIN != PLAIN
            or at + nbytes > len(out)
        ):
            return False
        _copy(out, at, found[0, DATA], nbytes)
        at += nbytes
    return bool(at == len(out))


@intrinsic
def _copy(typing: Any, out: Any, at: Any, place: Any, nbytes: Any) -> Any:
    """Bytes from an address, into an array of bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        memory = context.make_array(out)(context, builder, args[0])
        source = builder.inttoptr(args[2], ir.IntType(8).as_pointer())
        cgutils.raw_memcpy(builder, builder.gep(memory.data, [args[1]]), source, args[3], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(out, types.int64, types.int64, types.int64), generate


@functools.cache
def readable() -> bool:
    """Whether array headers can be read in this Python and this numpy; tested with some arrays."""
    if object.__basicsize__ != 16 or sys.byteorder != "little" or sys.implementation.name != "cpython":
        return False
    sheet = np.zeros((6, 8), np.float32)
    tried = [sheet, sheet[1:4, ::2], np.array(3), np.zeros((2, 3, 4, 5), np.int64), sheet[2], np.zeros(0, bool)]
    sheet.flags.writeable = False
    objects, table = np.fromiter(tried, object, len(tried)), np.zeros((len(tried), COLUMNS), np.int64)
    before = [sys.getrefcount(array) for array in objects]
    _read(_place(objects), table, _KIND)
    told = described([array.dtype for array in tried], [array.shape for array in tried])
    told[:, DATA] = [array.__array_interface__["data"][0] for array in tried]
    told[:, FLAGS] = [array.flags.num for array in tried]
    own = before[0] - int(table[0, REFERENCES])  # getrefcount's and the loop's
    told[:, REFERENCES] = [references - own for references in before]
    return np.array_equal(told, table)
