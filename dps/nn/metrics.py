"""Metrics: a number for each example of a batch. What is reported is the mean over all examples of all replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dps.errors import ConfigError, DataError
from dps.hooks.scalars import TOTALS
from dps.nn import losses
from dps.nn.losses import LOSSES, Loss, classes, like_outputs
from dps.process.telemetry import log
from dps.strategy.strategy import Variables
from dps.training.optimizers import Optimizer
from dps.variables.tree import Variable

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


def sum_metric(metric: Metric, name: str, y: Any, out: Any) -> float:
    """The sum of a metric over a batch. DataError if it has no number for each example."""
    values = np.asarray(metric(y, out))
    if values.shape != (len(out),) or values.dtype.kind not in "fiub":
        raise DataError(
            f"the metric {name} returned {values.dtype.name} {values.shape} for a batch of {len(out)}, wanted a number "
            "for each example"
        )
    return float(values.sum(dtype=np.float64))


CELLS = 4 + MOST
"""How many parts of batches were trained on, the sum of their epochs' numbers, and what `Compiled.sums` returns."""


class SharedTotals:
    """The sums of an epoch over all workers. A synchronous ps adds the gradients of all workers in the same step as
    those of the model, so each worker reads the same sums at the end of its epoch, of exactly its steps."""

    @staticmethod
    def make_variable(optimizer: Optimizer) -> dict[str, Any]:
        """The variable, by its key among the parameters. `optimizer`: one that subtracts gradients as they are."""
        return {TOTALS: Variable(np.zeros(CELLS), optimizer=optimizer)}

    def __init__(self, variables: Variables, workers: int) -> None:
        self._variables, self._workers = variables, workers
        self._epoch, self._before, self._began = 0, np.zeros(CELLS), 0
        self.broken = False
        """Whether a step of this epoch was dropped or undone."""
        self._undone = False
        """Whether some were in this training: then workers need not be at the same batch any more."""

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins on this worker."""
        self._epoch, self._before, self.broken = epoch + 1, self._read_totals(), False
        self._began = self._run_epoch()

    def make_gradient(self, sums: Any) -> dict[str, Any]:
        """The numbers that this worker adds in a step."""
        cells = np.zeros(CELLS)
        cells[: 2 + len(sums)] = [1, self._epoch, *sums]
        return {TOTALS: -cells}

    def end_epoch(self, steps: int, own: Any) -> Any:
        """The sums of all workers over the epoch, which had so many steps; this worker's `own` where some were undone.

        Raises DataError if others were in a later epoch meanwhile."""
        found = self._read_totals() - self._before
        if self.broken or self._run_epoch() != self._began:
            self._undone = True
            return own
        parts, epochs = round(found[0]), round(found[1])
        if epochs > parts * self._epoch and not self._undone:
            raise DataError(
                f"fit: another worker went on to a later epoch during the {steps} steps of epoch {self._epoch} here: "
                "its dataset ended early; give all workers as many batches, or steps_per_epoch"
            )
        if epochs != parts * self._epoch:
            log.warning("fit: the logs of epoch %d hold batches of another one: a worker was in it", self._epoch)
        elif parts < steps * self._workers:
            log.warning(
                "fit: epoch %d was made of %d parts of batches instead of %d: a worker has left, or its dataset ended "
                "early", self._epoch, parts, steps * self._workers,
            )  # fmt: skip
        return found[2 : 2 + len(own)]

    def _run_epoch(self) -> int:
        """The run epoch of what was read last: steps were undone where it is another one."""
        session = getattr(self._variables, "session", None)
        return 0 if session is None else int(session.version.epoch)

    def _read_totals(self) -> Any:
        return np.array(self._variables.read()[TOTALS])
