"""Checks the arrays, parameters, row numbers and labels that a user passes to a network. Each error is one line."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.variables.tree import to_array


def parameter(value: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A parameter as a C-contiguous array, copied only if necessary. ValueError for another shape or dtype."""
    array = to_array(value, name)
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name}: got {array.dtype.name} {array.shape}, wanted {dtype.name} {shape}")
    return array


def target(value: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """An array for a gradient. ValueError if its shape or dtype is wrong, or if it cannot be written in place."""
    if not isinstance(value, np.ndarray):
        raise ValueError(f"out: got {type(value).__name__} for {name}, wanted a numpy array")
    if value.shape != shape or value.dtype != dtype or not value.flags.c_contiguous or not value.flags.writeable:
        raise ValueError(
            f"out: got {value.dtype.name} {value.shape} for {name}, wanted {dtype.name} {shape}, C-contiguous"
        )
    return value


def features(x: Any, width: int, dtype: np.dtype[Any]) -> Any:
    """A batch for a dense layer, (batch, width), in the network's dtype. ValueError for another shape or no rows."""
    array = to_array(x, "x")
    if array.ndim != 2 or array.shape[1] != width or not len(array):
        raise ValueError(f"x: got shape {array.shape}, wanted (batch, {width}) with a batch of 1 or more")
    return np.ascontiguousarray(array, dtype)


def whole_numbers(values: Any, name: str, shapes: tuple[tuple[int, ...], ...], below: int) -> Any:
    """Row numbers or labels as int64, each at least 0 and smaller than `below`. ValueError names the first bad one."""
    array = to_array(values, name)
    wanted = " or ".join(str(shape).replace("-1", "batch") for shape in shapes)
    fits = any(len(s) == array.ndim and all(m in (-1, n) for m, n in zip(s, array.shape, strict=True)) for s in shapes)
    if not fits or not array.size or array.dtype.kind not in "iu":
        raise ValueError(f"{name}: got {array.dtype.name} {array.shape}, wanted integers {wanted}")
    outside = np.flatnonzero((array < 0) | (array >= below))
    if outside.size:
        first = int(outside[0])
        raise ValueError(f"{name}: got {array.flat[first]} at position {first}, wanted 0 to {below - 1}")
    return array.astype(np.int64, copy=False)
