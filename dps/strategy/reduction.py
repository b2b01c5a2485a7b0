"""Reductions over replicas: sum, mean and maximum, computed in replica order, so that bits do not depend on timing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as folded
from typing import Any

import numpy as np

from dps.errors import ConfigError
from dps.strategy.values import array_of

OPS = ("sum", "mean", "max")


def op_of(op: object) -> str:
    """The name of a reduction, in lower case. ConfigError for an unknown one."""
    found = str(getattr(op, "value", op)).lower()
    if found not in OPS:
        raise ConfigError(f"reduce: got the operation {op!r}, wanted 'sum', 'mean' or 'max'")
    return found


def reduced(op: str, values: Sequence[Any], axis: int | None = None) -> Any:
    """One value from those of all replicas.

    `axis`: also reduce each value over this axis; a mean is then that of all elements, so that replicas with more
    elements count more. ConfigError for values of different shapes, or of no numbers.
    """
    arrays = [array_of(value) for value in values]
    for replica, array in enumerate(arrays):
        if array.dtype.kind not in "fiubc" and array.dtype.name != "bfloat16":
            raise ConfigError(f"reduce: replica {replica} has {values[replica]!r:.60}, wanted a number or an array")
    if axis is None:
        _check_shapes(f"reduce {op!r}", arrays, None)
        return _over_replicas(op, arrays, len(arrays))
    _check_axis(f"reduce {op!r}", arrays, axis)
    _check_shapes(f"reduce {op!r}", arrays, axis)
    if op == "max":
        filled = [array for array in arrays if array.shape[axis]]
        if not filled:
            raise ConfigError(f"reduce 'max': no replica has an element along axis {axis}, so there is no largest one")
        return folded(np.maximum, [array.max(axis=axis) for array in filled])
    return _over_replicas(op, [array.sum(axis=axis) for array in arrays], sum(array.shape[axis] for array in arrays))


def _over_replicas(op: str, arrays: Sequence[Any], count: int) -> Any:
    total = folded(np.maximum if op == "max" else np.add, arrays)
    return total / total.dtype.type(count) if op == "mean" and total.dtype.kind == "f" else (
        total / count if op == "mean" else total[()]
    )  # fmt: skip


def gathered(values: Sequence[Any], axis: int) -> Any:
    """The arrays of all replicas one after the other along an axis; their other dimensions are the same."""
    arrays = [array_of(value) for value in values]
    _check_axis("gather", arrays, axis)
    _check_shapes("gather", arrays, axis)
    return np.concatenate(arrays, axis)


def _check_axis(what: str, arrays: Sequence[Any], axis: int) -> None:
    for replica, array in enumerate(arrays):
        if not -array.ndim <= axis < array.ndim:
            raise ConfigError(f"{what}: replica {replica} has shape {array.shape}, which has no axis {axis}")


def _check_shapes(what: str, arrays: Sequence[Any], axis: int | None) -> None:
    """ConfigError if arrays differ in another dimension than `axis`."""

    def rest(array: Any) -> tuple[int, ...]:
        return array.shape if axis is None else tuple(np.delete(array.shape, axis).tolist())

    for replica, array in enumerate(arrays[1:], 1):
        if array.ndim != arrays[0].ndim or rest(array) != rest(arrays[0]):
            other = "the same shape" if axis is None else f"shapes that differ in axis {axis} alone"
            raise ConfigError(
                f"{what}: replica 0 has shape {arrays[0].shape}, replica {replica} has {array.shape}; wanted {other}"
            )
