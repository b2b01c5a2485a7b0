"""The settings of `compile`: optimizer, loss and metrics, and what these compute for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dps.errors import ConfigError
from dps.nn.losses import Loss, loss_of
from dps.nn.metrics import Metric, metrics_of, sum_metric
from dps.training import optimizers as optim


class CompileSettings:
    """The settings of `compile`, checked."""

    def __init__(self, optimizer: Any, loss: Any, metrics: Sequence[Any]) -> None:
        """Raises ConfigError for unknown ones."""
        self.optimizer = _optimizer(optimizer)
        self.loss: Loss = loss_of(loss)
        self.metrics: dict[str, Metric] = metrics_of(metrics, self.loss)

    def sums(self, y: Any, out: Any, losses: Any) -> Any:
        """The sums of a batch: the number of its examples, the sum of their losses, and the sums of the metrics."""
        found = [float(len(out)), float(np.sum(losses, dtype=np.float64))]
        return np.array(found + [sum_metric(metric, name, y, out) for name, metric in self.metrics.items()])

    def nothing(self) -> Any:
        """The sums of no examples."""
        return np.zeros(2 + len(self.metrics))

    def logs(self, sums: Any) -> dict[str, float]:
        """Loss and metrics by name: the means over the examples."""
        if not sums[0]:
            return {}
        return {name: float(total / sums[0]) for name, total in zip(["loss", *self.metrics], sums[1:], strict=True)}


def _optimizer(optimizer: Any) -> optim.Optimizer:
    if isinstance(optimizer, optim.Optimizer):
        return optimizer
    name = optimizer.lower() if isinstance(optimizer, str) else None
    if name not in optim.KNOWN:
        known = ", ".join(map(repr, optim.KNOWN))
        raise ConfigError(f"compile: got optimizer={optimizer!r:.60}, wanted one of dps.optim, or {known}")
    return optim.KNOWN[name].usual()
