"""Metrics: a number for each example of a batch. What is reported is the mean over all examples of all replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dps.errors import ConfigError, DataError
from dps.nn import losses
from dps.nn.losses import LOSSES, Loss, classes, like_outputs

Metric = Callable[[Any, Any], Any]
"""`metric(y, out)`: a number for each example (batch,)."""
MOST = 12
"""The most metrics of a model."""


def sparse_categorical_accuracy(y: Any, out: Any) -> Any:
    """1 where the largest score is that of class `y`."""
    return out.argmax(axis=1) == classes(y, out)


def categorical_accuracy(y: Any, out: Any) -> Any:
    """1 where the largest score is that of the largest element of `y`."""
    return out.argmax(axis=1) == like_outputs(y, out, "categorical_accuracy").argmax(axis=1)


def binary_accuracy(y: Any, out: Any) -> Any:
    """The share of an example's scores that are above 0 where `y` is above 0.5."""
    same = (out > 0) == (like_outputs(y, out, "binary_accuracy") > 0.5)
    return same.reshape(len(same), -1).mean(axis=1) if len(same) else same.reshape(-1)


METRICS: dict[str, Metric] = {
    "sparse_categorical_accuracy": sparse_categorical_accuracy, "categorical_accuracy": categorical_accuracy,
    "binary_accuracy": binary_accuracy,
}  # fmt: skip
_ACCURACY: dict[Any, Metric] = {
    losses.sparse_categorical_crossentropy: sparse_categorical_accuracy,
    losses.categorical_crossentropy: categorical_accuracy, losses.binary_crossentropy: binary_accuracy,
}  # fmt: skip


def metrics_of(metrics: Sequence[Any], loss: Loss) -> dict[str, Metric]:
    """The metrics by name. ConfigError for unknown ones, too many, or one twice."""
    if isinstance(metrics, str) or not isinstance(metrics, Sequence) or len(metrics) > MOST:
        raise ConfigError(f"compile: got metrics={metrics!r:.60}, wanted a list of at most {MOST}, as ['accuracy']")
    found: dict[str, Metric] = {}
    for metric in metrics:
        name = metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)
        if name in found or name == "loss":
            raise ConfigError(f"compile: there are two metrics {name!r}; give one of them another name")
        found[name] = _metric(metric, loss)
    return found


def _metric(metric: Any, loss: Loss) -> Metric:
    if callable(metric):
        return metric  # type: ignore[no-any-return]
    if metric in ("accuracy", "acc"):
        if loss not in _ACCURACY:
            raise ConfigError(
                f"compile: got metrics=[{metric!r}] with a loss that is of no classes; wanted "
                f"{', '.join(map(repr, METRICS))}, or a loss of classes"
            )
        return _ACCURACY[loss]
    if metric in METRICS:
        return METRICS[metric]
    if metric in LOSSES:
        of_name = LOSSES[metric]
        return lambda y, out: of_name(y, out)[0]
    known = ["accuracy", *METRICS, *LOSSES]
    raise ConfigError(
        f"compile: got metrics=[{metric!r:.60}], wanted one of {', '.join(map(repr, known))}, or a function of (y, "
        "out) that returns a number for each example"
    )


def measured(metric: Metric, name: str, y: Any, out: Any) -> float:
    """The sum of a metric over a batch. DataError if it has no number for each example."""
    values = np.asarray(metric(y, out))
    if values.shape != (len(out),) or values.dtype.kind not in "fiub":
        raise DataError(
            f"the metric {name} returned {values.dtype.name} {values.shape} for a batch of {len(out)}, wanted a number "
            "for each example"
        )
    return float(values.sum(dtype=np.float64))
