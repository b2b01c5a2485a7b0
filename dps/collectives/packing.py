"""Encodes arrays of any shapes and dtypes, with these, as the part that one member brings to a gathering."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dps.transport.dtypes import dtype_of, wire_name
from dps.transport.wire import Array


def packed(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """A description, and the bytes of the arrays; at least one."""
    described = [f"{wire_name(array.dtype)}:{','.join(map(str, array.shape))}" for array in arrays]
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return np.frombuffer(";".join(described).encode(), np.uint8), np.concatenate(parts or [np.zeros(1, np.uint8)])


def unpacked(row: Array, head: int) -> list[Array]:
    """The arrays of a description of so many bytes, and what follows it."""
    found, at = [], head
    for text in bytes(row[:head]).decode().split(";") if head else ():
        name, _, sizes = text.rpartition(":")
        shape = tuple(int(size) for size in sizes.split(",") if size)
        dtype = dtype_of(name)
        nbytes = dtype.itemsize * math.prod(shape)
        found.append(row[at : at + nbytes].copy().view(dtype).reshape(shape))
        at += nbytes
    return found
