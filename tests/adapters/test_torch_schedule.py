"""Schedulers of PyTorch as data for the ps."""

from __future__ import annotations

from typing import Any

import pytest

import dps
from dps.errors import ConfigError
from tests.in_process import cluster

pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')

import numpy as np

import dps.torch
from dps.training.schedules import schedule_from_wire
from tests.adapters.models import classifier, losses, torch

lr = torch.optim.lr_scheduler


def warm_up_and_cosine(optimizer: Any) -> Any:
    first = lr.LinearLR(optimizer, 0.1, total_iters=10)
    return lr.SequentialLR(optimizer, [first, lr.CosineAnnealingLR(optimizer, 40)], milestones=[10])


def test_adam_with_a_warm_up_and_a_cosine_has_the_losses_of_plain_torch() -> None:
    plain, ours = classifier(), classifier()
    adam = torch.optim.Adam(plain.parameters(), 0.01)
    scheduler = warm_up_and_cosine(adam)
    wanted = losses(plain, adam, 60, more=scheduler.step)
    with cluster(transport="inproc") as (worker,):
        rule = dps.optim.Adam(dps.torch.schedule(warm_up_and_cosine, 60, 0.01))
        opt = dps.torch.Optimizer(ours.named_parameters(), worker, rule, buffers=ours.named_buffers())
        found = losses(ours, opt, 60)
        opt.close()
    assert np.abs(np.array(found) - wanted).max() < 1e-6


def test_every_step_has_the_rate_of_the_scheduler_and_later_ones_the_last() -> None:
    halved = dps.torch.schedule(lambda opt: lr.StepLR(opt, step_size=2, gamma=0.5), 6, 0.4)
    assert [halved.at(step) for step in range(6)] == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]
    assert halved.at(6) == halved.at(10**6) == 0.1


@pytest.mark.nightly
def test_a_hundred_thousand_steps_reach_the_ps() -> None:
    longest = dps.torch.schedule(lambda opt: lr.CosineAnnealingLR(opt, 100_000), 100_000, 0.1)
    assert schedule_from_wire(longest.to_wire()) == longest
    assert longest.at(50_000) == pytest.approx(0.05)
    with cluster(transport="inproc") as (worker,):
        model = torch.nn.Linear(2, 1)
        opt = dps.torch.Optimizer(model.named_parameters(), worker, dps.optim.SGD(longest))
        model(torch.ones(1, 2)).sum().backward()
        opt.step()
        assert opt.param_groups[0]["lr"] == longest.at(1) < 0.1
        opt.close()


@pytest.mark.parametrize("steps", [0, 100_001, 2.5])
def test_too_few_and_too_many_steps_are_an_error(steps: Any) -> None:
    with pytest.raises(ConfigError, match="from 1 to 100000"):
        dps.torch.schedule(lambda opt: lr.StepLR(opt, 1), steps, 0.1)


def test_a_scheduler_that_needs_losses_is_an_error() -> None:
    with pytest.raises(ConfigError, match="ReduceLROnPlateau"):
        dps.torch.schedule(lambda opt: lr.ReduceLROnPlateau(opt), 10, 0.1)


def test_a_scheduler_that_changes_momentum_is_an_error() -> None:
    """The ps took its rates, and kept the momentum (Adam's beta1) that plain torch cycles."""
    with pytest.raises(ConfigError, match=r"OneCycleLR changes momentum, .* cycle_momentum=False"):
        dps.torch.schedule(lambda opt: lr.OneCycleLR(opt, 0.1, total_steps=10), 10, 0.1)
    cycle = dps.torch.schedule(lambda opt: lr.OneCycleLR(opt, 0.1, total_steps=10, cycle_momentum=False), 10, 0.1)
    assert max(map(cycle.at, range(10))) == pytest.approx(0.1) and cycle.at(0) < 0.01


def test_what_is_no_scheduler_of_the_argument_is_an_error() -> None:
    """A scheduler of another optimizer gave one rate for all steps."""
    mine = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(ConfigError, match="a scheduler of another optimizer than the one that it was given"):
        dps.torch.schedule(lambda _: lr.StepLR(mine, 1), 10, 0.1)
    with pytest.raises(ConfigError, match="make_scheduler returned NoneType, wanted a scheduler"):
        dps.torch.schedule(lambda _: None, 10, 0.1)


@pytest.mark.parametrize("make", ["chained", "sequential", "lambda"])
def test_schedulers_of_schedulers_are_of_the_argument(make: str) -> None:
    chained = {
        "chained": lambda opt: lr.ChainedScheduler([lr.ConstantLR(opt, 0.5, 2), lr.ExponentialLR(opt, 0.9)]),
        "sequential": lambda opt: lr.SequentialLR(opt, [lr.ConstantLR(opt, 0.5, 9), lr.ExponentialLR(opt, 0.9)], [2]),
        "lambda": lambda opt: lr.LambdaLR(opt, lambda step: 1 / (1 + step)),
    }[make]
    plain = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler, wanted = chained(plain), []
    for _ in range(6):
        wanted.append(plain.param_groups[0]["lr"])
        plain.step()
        scheduler.step()
    rates = dps.torch.schedule(chained, 6, 0.1)
    assert [rates.at(step) for step in range(6)] == pytest.approx(wanted)
