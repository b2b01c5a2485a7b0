"""Reductions over replicas: sum, mean and maximum, computed in replica order, so that bits do not depend on timing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as folded
from typing import Any, NamedTuple

import numpy as np

from dps.errors import NOT_FINITE, ConfigError
from dps.kernels import cpu, halves
from dps.strategy.values import array_of
from dps.transport.wire import Array
from dps.variables.tree import Rows

OPS = ("sum", "mean", "max")


def op_of(op: object) -> str:
    """The name of a reduction, in lower case. ConfigError for an unknown one."""
    found = str(getattr(op, "value", op)).lower()
    if found not in OPS:
        raise ConfigError(f"reduce: got the operation {op!r}, wanted 'sum', 'mean' or 'max'")
    return found


class Reduced(NamedTuple):
    """What some replicas have, as one value; a mean as the sum of what is to be divided."""

    total: Any
    """A mean's and a sum's has the dtype in which it is computed."""
    number: int
    """How many values, or elements along the axis, there are."""
    dtype: np.dtype[Any]
    """Of the result."""


def reduce_values(op: str, values: Sequence[Any], axis: int | None = None) -> Any:
    """One value from those of all replicas.

    `axis`: also reduce each value over this axis; a mean is then that of all elements, so that replicas with more
    elements count more. A mean of bools and integers is a float64, and their sum an int64 or uint64. Sums and means of
    halves are computed in float32. ConfigError for values of different shapes, or of no numbers.
    """
    return result_of(op, reduced(op, values, axis))


def reduced(op: str, values: Sequence[Any], axis: int | None = None) -> Reduced:
    """As `reduce_values`, before the total of a mean is divided: totals of several workers can be added up."""
    arrays = [array_of(value) for value in values]
    for replica, array in enumerate(arrays):
        if array.dtype.kind not in "fiubc" and array.dtype.name != "bfloat16":
            raise ConfigError(f"reduce: replica {replica} has {values[replica]!r:.60}, wanted a number or an array")
    if axis is not None:
        _check_axis(f"reduce {op!r}", arrays, axis)
    _check_shapes(f"reduce {op!r}", arrays, axis)
    count = len(arrays) if axis is None else sum(array.shape[axis] for array in arrays)
    if op == "max":
        filled = [array for array in arrays if axis is None or array.shape[axis]]
        if not filled:  # only other workers may have elements
            total = np.asarray(arrays[0].max(axis=axis, initial=_lowest(arrays[0].dtype)))
            return Reduced(total, 0, total.dtype)
        total = folded(np.maximum, filled if axis is None else [array.max(axis=axis) for array in filled])
        return Reduced(total, count, total.dtype)
    dtype = np.result_type(*(array.dtype for array in arrays))
    if dtype.kind in "biu":  # as numpy sums them over an axis, and takes their mean
        dtype = np.dtype(np.float64 if op == "mean" else np.uint64 if dtype.kind == "u" else np.int64)
    computed = np.dtype(np.float32) if halves.is_half(dtype) else dtype
    added = [array.astype(computed, copy=False) for array in arrays]
    return Reduced(folded(np.add, added if axis is None else [each.sum(axis=axis) for each in added]), count, dtype)


def _lowest(dtype: np.dtype[Any]) -> Any:
    """What is no larger than any value."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else False if dtype.kind == "b" else -np.inf


def result_of(op: str, found: Reduced) -> Any:
    """The value of a reduction. ConfigError for the largest of no elements."""
    total = found.total
    if op == "max" and not found.number:
        raise ConfigError("reduce 'max': no replica has an element along the axis, so there is no largest one")
    if op == "mean":
        total = total / (total.dtype.type(found.number) if total.dtype.kind == "f" else found.number)
    return total.astype(found.dtype, copy=False)[()]


def gather_values(values: Sequence[Any], axis: int) -> Any:
    """The arrays of all replicas one after the other along an axis; their other dimensions are the same."""
    arrays = [array_of(value) for value in values]
    _check_axis("gather", arrays, axis)
    _check_shapes("gather", arrays, axis)
    return np.concatenate(arrays, axis)


def _check_axis(what: str, arrays: Sequence[Any], axis: int) -> None:
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise ConfigError(f"{what}: axis: got {axis!r:.60}, wanted a whole number")
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


def sum_gradients(gradients: Sequence[Array | Rows], shape: tuple[int, ...]) -> Array | Rows:
    """The sum: of rows one after the other if all are rows, else an array. One gradient is its own sum. Halves are
    summed in float32."""
    if len(gradients) == 1:
        return gradients[0]
    rows = [gradient for gradient in gradients if isinstance(gradient, Rows)]
    if len(rows) == len(gradients):
        indices = np.concatenate([np.asarray(gradient.indices).reshape(-1) for gradient in rows])
        return Rows(indices, np.concatenate([_row_values(gradient, shape) for gradient in rows]))
    total: Any = None
    for gradient in gradients:
        dense = _dense_sum(gradient, shape) if isinstance(gradient, Rows) else halves.widened(gradient)
        total = dense if total is None else np.add(total, dense)
    return np.asarray(total)


def _row_values(gradient: Rows, shape: tuple[int, ...]) -> Array:
    return halves.widened(np.asarray(gradient.values)).reshape(-1, *shape[1:])


def _dense_sum(gradient: Rows, shape: tuple[int, ...]) -> Array:
    values = _row_values(gradient, shape)
    out = np.zeros(shape, values.dtype)
    np.add.at(out, np.asarray(gradient.indices).reshape(-1), values)
    return out


def not_finite_text(name: str, gradient: Array | Rows) -> str:
    """A sentence that says that a gradient has NaN or infinite values; "" if it has none."""
    array = np.asarray(gradient.values if isinstance(gradient, Rows) else gradient)
    sound = halves.all_finite(array) if halves.is_half(array.dtype) else bool(cpu.all_finite(array.reshape(-1)))
    return "" if sound else f"the gradient of {name} {NOT_FINITE}"


def average_loss(per_example_loss: Any, global_batch_size: int) -> Any:
    """The sum of a replica's losses, divided by the size of the global batch.

    Gradients are summed over the replicas, so each example must count for 1 / global batch. A mean over the replica's
    own examples would make the sum as many times too large as there are replicas.

    Args:
        per_example_loss: The losses of this replica's examples, of any shape; or what has `sum`, as a tensor.
        global_batch_size: How many examples all replicas have together in this step.

    Returns:
        The replica's share of the mean loss, in the dtype of the losses; halves are summed in float32. Shares of all
        replicas add up to the mean.

    Raises:
        ConfigError: A size that is no whole number from 1.

    Example:
        ```pycon
        >>> first, second = np.array([1.0, 2.0, 3.0]), np.array([6.0])
        >>> shares = [dps.strategy.average_loss(losses, 4) for losses in (first, second)]
        >>> float(sum(shares)), float(np.mean([1.0, 2.0, 3.0, 6.0]))
        (3.0, 3.0)
        ```
    """
    if isinstance(global_batch_size, bool) or not hasattr(global_batch_size, "__index__") or global_batch_size < 1:
        raise ConfigError(
            f"average_loss: got global_batch_size={global_batch_size!r}, wanted the number of examples of all replicas "
            "together, a whole number from 1"
        )
    size = int(global_batch_size)
    if hasattr(per_example_loss, "detach"):  # a tensor's share belongs to its graph
        if str(per_example_loss.dtype) in ("torch.float16", "torch.bfloat16"):
            return (per_example_loss.float().sum() / size).to(per_example_loss.dtype)
        return per_example_loss.sum() / size
    if not hasattr(per_example_loss, "sum"):
        per_example_loss = array_of(per_example_loss)
    dtype: Any = getattr(per_example_loss, "dtype", None)
    if hasattr(dtype, "name") and halves.is_half(dtype):
        return (per_example_loss.astype(np.float32).sum() / np.float32(size)).astype(dtype)
    total = per_example_loss.sum()
    return total / total.dtype.type(size) if isinstance(total, np.floating) else total / size
