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


@pytest.mark.parametrize("steps", [0, 100_001])
def test_too_few_and_too_many_steps_are_an_error(steps: int) -> None:
    with pytest.raises(ConfigError, match="from 1 to 100000"):
        dps.torch.schedule(lambda opt: lr.StepLR(opt, 1), steps, 0.1)


def test_a_scheduler_that_needs_losses_is_an_error() -> None:
    with pytest.raises(ConfigError, match="ReduceLROnPlateau"):
        dps.torch.schedule(lambda opt: lr.ReduceLROnPlateau(opt), 10, 0.1)
