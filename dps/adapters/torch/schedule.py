"""Schedulers of torch as data for the ps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dps.errors import ConfigError
from dps.training.schedules import MOST_VALUES, Constant, PerStep


def schedule(make_scheduler: Callable[[torch.optim.Optimizer], Any], steps: int, rate: float) -> PerStep:
    """Turn a scheduler of torch into a schedule that the ps can evaluate.

    The scheduler runs once, here, on an optimizer of a parameter of its own. What depends on losses, such as
    `ReduceLROnPlateau`, cannot be known before.

    Args:
        make_scheduler: Makes the scheduler of an optimizer, such as
            `lambda opt: torch.optim.lr_scheduler.StepLR(opt, 30)`.
        steps: How many global steps have rates of their own; at most 100,000. Later ones have the last rate.
        rate: The optimizer's rate, of which the scheduler makes its rates.

    Returns:
        A schedule for `dps.optim`: the scheduler's rate after so many calls of its `step` as there were global steps.

    Raises:
        ConfigError: No step, or more than 100,000; or a scheduler that is of another optimizer, whose `step` needs a
            loss, or that changes more than the rate, as `OneCycleLR` does without `cycle_momentum=False`.

    Example:
        ```python
        import torch, dps.torch

        def halve(optimizer):
            return torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)

        rate = dps.torch.schedule(halve, steps=30, rate=0.1)
        assert [rate.at(step) for step in (0, 9, 10, 25)] == [0.1, 0.1, 0.05, 0.025]
        sgd = dps.optim.SGD(rate)
        ```
    """
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or not 1 <= steps <= MOST_VALUES:
        raise ConfigError(f"dps.torch.schedule: steps is {steps!r}, it must be from 1 to {MOST_VALUES}; try steps=1000")
    first = Constant(rate).value
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=first)
    (group,) = optimizer.param_groups
    others = {name: value for name, value in group.items() if name not in ("params", "lr")}
    scheduler = make_scheduler(optimizer)
    _check(scheduler, optimizer)
    values = []
    for _ in range(steps):
        values.append(float(group["lr"]))
        if changed := [name for name, value in others.items() if group[name] != value]:
            raise ConfigError(
                f"dps.torch.schedule: {type(scheduler).__name__} changes {changed[0]}, which the ps keep as it is in "
                "dps.optim; wanted a scheduler of the rate alone, such as OneCycleLR(..., cycle_momentum=False)"
            )
        optimizer.step()
        scheduler.step()
    return PerStep(values)


def _check(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError for what is no scheduler of the optimizer, or depends on losses."""
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError("dps.torch.schedule: the rates of ReduceLROnPlateau depend on losses that are not known yet")
    if not hasattr(scheduler, "step"):
        raise ConfigError(
            f"dps.torch.schedule: make_scheduler returned {type(scheduler).__name__}, wanted a scheduler, as "
            "lambda opt: torch.optim.lr_scheduler.StepLR(opt, 30) does"
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ConfigError(
            "dps.torch.schedule: make_scheduler returned a scheduler of another optimizer than the one that it was "
            "given; wanted one of its argument, as lambda opt: torch.optim.lr_scheduler.StepLR(opt, 30)"
        )
