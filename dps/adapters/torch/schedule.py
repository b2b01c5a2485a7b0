"""Schedulers of torch as data for the ps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dps.errors import ConfigError
from dps.training.schedules import MOST_VALUES, PerStep


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
        ConfigError: No step, or more than 100,000; or a scheduler whose `step` needs a loss.

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
    if not 1 <= steps <= MOST_VALUES:
        raise ConfigError(f"dps.torch.schedule: steps is {steps}, it must be from 1 to {MOST_VALUES}; try steps=1000")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler = make_scheduler(optimizer)
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError("dps.torch.schedule: the rates of ReduceLROnPlateau depend on losses that are not known yet")
    values = []
    for _ in range(steps):
        values.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return PerStep(values)
