"""The sum of a variable's gradients over replicas, in replica order: dense arrays, rows, or both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dps.errors import NOT_FINITE
from dps.kernels import cpu, halves
from dps.transport.wire import Array
from dps.variables.tree import Rows


def summed(gradients: Sequence[Array | Rows], shape: tuple[int, ...]) -> Array | Rows:
    """The sum: of rows one after the other if all are rows, else an array. One gradient is its own sum. Halves are
    summed in float32."""
    if len(gradients) == 1:
        return gradients[0]
    rows = [gradient for gradient in gradients if isinstance(gradient, Rows)]
    if len(rows) == len(gradients):
        indices = np.concatenate([np.asarray(gradient.indices).reshape(-1) for gradient in rows])
        return Rows(indices, np.concatenate([_of_rows(gradient, shape) for gradient in rows]))
    total: Any = None
    for gradient in gradients:
        dense = _dense(gradient, shape) if isinstance(gradient, Rows) else halves.widened(gradient)
        total = dense if total is None else np.add(total, dense)
    return np.asarray(total)


def _of_rows(gradient: Rows, shape: tuple[int, ...]) -> Array:
    return halves.widened(np.asarray(gradient.values)).reshape(-1, *shape[1:])


def _dense(gradient: Rows, shape: tuple[int, ...]) -> Array:
    values = _of_rows(gradient, shape)
    out = np.zeros(shape, values.dtype)
    np.add.at(out, np.asarray(gradient.indices).reshape(-1), values)
    return out


def not_finite(name: str, gradient: Array | Rows) -> str:
    """A sentence that says that a gradient has NaN or infinite values; "" if it has none."""
    array = np.asarray(gradient.values if isinstance(gradient, Rows) else gradient)
    sound = halves.all_finite(array) if halves.is_half(array.dtype) else bool(cpu.all_finite(array.reshape(-1)))
    return "" if sound else f"the gradient of {name} {NOT_FINITE}"
