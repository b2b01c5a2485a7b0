"""Losses of the examples of a batch, and the gradients by the model's outputs. Those of classes take scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dps.errors import ConfigError, DataError

Loss = Callable[[Any, Any], tuple[Any, Any]]
"""`loss(y, out)`: the losses (batch,), and the gradient of each example's loss by `out`, in the shape of `out`."""


def mse(y: Any, out: Any) -> tuple[Any, Any]:
    """The mean of (out - y)² over an example's outputs."""
    error = out - like_outputs(y, out, "mse")
    width = out.dtype.type(max(1, error[0].size if len(error) else 1))
    return _per_example(error * error), 2 * error / width


def mae(y: Any, out: Any) -> tuple[Any, Any]:
    """The mean of |out - y| over an example's outputs; its gradient at 0 is 0."""
    error = out - like_outputs(y, out, "mae")
    width = out.dtype.type(max(1, error[0].size if len(error) else 1))
    return _per_example(np.abs(error)), np.sign(error) / width


def binary_crossentropy(y: Any, out: Any) -> tuple[Any, Any]:
    """log(1 + exp(out)) - y out, the mean over an example's outputs; labels from 0 to 1."""
    y = like_outputs(y, out, "binary_crossentropy")
    width = out.dtype.type(max(1, out[0].size if len(out) else 1))
    small = np.exp(-np.abs(out))
    losses = np.maximum(out, 0) - out * y + np.log1p(small)
    return _per_example(losses), (np.where(out >= 0, 1, small) / (1 + small) - y) / width


def categorical_crossentropy(y: Any, out: Any) -> tuple[Any, Any]:
    """-sum(y log softmax(out)); `y` (batch, classes) is a distribution, such as a one for the right class."""
    y = like_outputs(y, out, "categorical_crossentropy")
    logs = _log_softmax(out, "categorical_crossentropy")
    return -(y * logs).sum(axis=1), np.exp(logs) * y.sum(axis=1, keepdims=True) - y


def sparse_categorical_crossentropy(y: Any, out: Any) -> tuple[Any, Any]:
    """-log softmax(out)[y]; `y` (batch,) is the number of the right class."""
    logs, labels = _log_softmax(out, "sparse_categorical_crossentropy"), classes(y, out)
    right = np.arange(len(labels)), labels
    gradient = np.exp(logs)
    gradient[right] -= 1
    return -logs[right], gradient


LOSSES: dict[str, Loss] = {
    "mse": mse, "mean_squared_error": mse, "mae": mae, "mean_absolute_error": mae,
    "binary_crossentropy": binary_crossentropy, "categorical_crossentropy": categorical_crossentropy,
    "sparse_categorical_crossentropy": sparse_categorical_crossentropy,
}  # fmt: skip


def loss_of(loss: Any) -> Loss:
    """The loss of a name, or the user's function. ConfigError for an unknown one."""
    if callable(loss):
        return loss  # type: ignore[no-any-return]
    if not isinstance(loss, str) or loss not in LOSSES:
        raise ConfigError(
            f"compile: got loss={loss!r:.60}, wanted one of {', '.join(map(repr, LOSSES))}, or a function of (y, out) "
            "that returns the losses and their gradients"
        )
    return LOSSES[loss]


def like_outputs(y: Any, out: Any, what: str) -> Any:
    """Targets in the shape and dtype of the outputs. DataError if they do not fit."""
    y = np.asarray(y)
    if y.shape == out.shape[:-1] and out.shape[-1] == 1:
        y = y.reshape(out.shape)
    if y.shape != out.shape or y.dtype.kind not in "fiub":
        raise DataError(
            f"{what}: y has {y.dtype.name} {_batch(y)}, and the model's outputs are {_batch(out)}; wanted the same"
        )
    return y.astype(out.dtype, copy=False)


def classes(y: Any, out: Any) -> Any:
    """Numbers of classes (batch,). DataError for others than 0 to the number of outputs."""
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != out.shape[:1] or y.dtype.kind not in "iub":
        raise DataError(f"y has {y.dtype.name} {_batch(y)}, wanted whole numbers (batch,): one class for each example")
    if y.size and (y.min() < 0 or y.max() >= out.shape[1]):
        wrong = y[(y < 0) | (y >= out.shape[1])][0]
        raise DataError(f"y has the class {wrong}, and the model has {out.shape[1]} outputs: 0 to {out.shape[1] - 1}")
    return y.astype(np.int64, copy=False)


def _per_example(values: Any) -> Any:
    return values.reshape(len(values), -1).mean(axis=1) if len(values) else values.reshape(-1)


def _log_softmax(out: Any, what: str) -> Any:
    if out.ndim != 2:
        raise DataError(f"{what}: the model's outputs are {_batch(out)}, wanted scores (batch, classes)")
    shifted = out - out.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _batch(array: Any) -> str:
    return f"({', '.join(['batch', *map(str, array.shape[1:])])})" if array.ndim else "one number"
