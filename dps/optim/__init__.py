"""Optimizers, learning-rate schedules and moving averages, as users write them. The code is in `dps.training`."""

from __future__ import annotations

from dps.errors import ConfigError
from dps.training.averages import MovingAverage
from dps.training.optimizers import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Ftrl,
    Momentum,
    Optimizer,
    RMSProp,
    from_wire,
    optimizer_names,
)
from dps.training.schedules import Constant, Cosine, Exponential, PerStep, Piecewise, Schedule, WarmUp, schedule_names

__all__ = [
    "SGD", "Adagrad", "Adam", "AdamW", "Constant", "Cosine", "Exponential", "Ftrl", "Momentum", "MovingAverage",
    "Optimizer", "PerStep", "Piecewise", "RMSProp", "Schedule", "WarmUp", "from_wire",
]  # fmt: skip


class UnknownOptimizer(ConfigError, AttributeError):
    """dps.optim has no such name."""


def __getattr__(name: str) -> object:
    raise UnknownOptimizer(
        f"dps.optim has no {name!r}; there are the optimizers {optimizer_names()}, and the schedules {schedule_names()}"
    )
