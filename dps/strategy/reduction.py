"""Reductions over replicas: sum, mean and maximum, computed in replica order, so that bits do not depend on timing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as folded
from typing import Any

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


def reduce_values(op: str, values: Sequence[Any], axis: int | None = None) -> Any:
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
        return _reduce_arrays(op, arrays, len(arrays))
    _check_axis(f"reduce {op!r}", arrays, axis)
    _check_shapes(f"reduce {op!r}", arrays, axis)
    if op == "max":
        filled = [array for array in arrays if array.shape[axis]]
        if not filled:
            raise ConfigError(f"reduce 'max': no replica has an element along axis {axis}, so there is no largest one")
        return folded(np.maximum, [array.max(axis=axis) for array in filled])
    return _reduce_arrays(op, [array.sum(axis=axis) for array in arrays], sum(array.shape[axis] for array in arrays))


def _reduce_arrays(op: str, arrays: Sequence[Any], count: int) -> Any:
    total = folded(np.maximum if op == "max" else np.add, arrays)
    return total / total.dtype.type(count) if op == "mean" and total.dtype.kind == "f" else (
        total / count if op == "mean" else total[()]
    )  # fmt: skip


def gather_values(values: Sequence[Any], axis: int) -> Any:
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
        The replica's share of the mean loss, in the dtype of the losses. Shares of all replicas add up to the mean.

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
    if hasattr(per_example_loss, "detach"):  # a tensor's share belongs to its graph
        return per_example_loss.sum() / int(global_batch_size)
    if not hasattr(per_example_loss, "sum"):
        per_example_loss = array_of(per_example_loss)
    total = per_example_loss.sum()
    size = int(global_batch_size)
    return total / total.dtype.type(size) if isinstance(total, np.floating) else total / size
