"""Workers with `dps.torch.Optimizer` share one thread in the simulator; no scope of torch leaks from one to another."""

from __future__ import annotations

from typing import Any

import pytest

import dps

pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')
pytest.importorskip("greenlet")

import dps.torch
from tests.adapters.models import torch


def train(server: dps.Server) -> Any:
    """A worker that evaluates, too: a leaked scope would leave it without gradients, or with them."""
    torch.manual_seed(7)
    table = dps.torch.Embedding(6, 3)
    model = torch.nn.Sequential(table, torch.nn.Flatten(), torch.nn.Linear(6, 1))
    hooks = [dps.StopAtStep(last_step=24)]
    opt = dps.torch.Optimizer(model.named_parameters(), server, dps.optim.SGD(0.05), hooks=hooks)
    rows = torch.tensor([[server.task, 1], [2, 5]])

    def closure() -> Any:
        opt.zero_grad()
        loss = model(rows).square().mean()
        assert loss.requires_grad and torch.is_grad_enabled()
        loss.backward()
        return loss

    loss = None
    while not opt.should_stop():
        loss = opt.step(closure)
        assert torch.is_grad_enabled()
    return loss.item()  # the end of the program closes the session


@pytest.mark.parametrize("update", ["async", "sync", "bounded:1"])
def test_workers_train_and_end_well_without_close(update: str) -> None:
    run = dps.simulate(train, ps=2, workers=3, seed=4, update=update)
    assert set(run.exit_codes.values()) == {0} and not run.errors and not run.lost, str(run)
    assert max(row["step"] for row in run.history) >= 24
    again = dps.simulate(train, ps=2, workers=3, seed=4, update=update)
    assert again.results == run.results


def test_an_error_of_one_worker_is_told_and_the_others_go_on() -> None:
    def fails(server: dps.Server) -> Any:
        if server.task != 1:
            return train(server)
        model = torch.nn.Sequential(dps.torch.Embedding(6, 3), torch.nn.Flatten(), torch.nn.Linear(6, 1))
        opt = dps.torch.Optimizer(model.named_parameters(), server, dps.optim.SGD(0.05))
        model(torch.tensor([[0, 1]])).sum().backward()
        opt.step()
        raise ValueError("no more")

    run = dps.simulate(fails, workers=3, seed=2, update="sync")
    assert "no more" in run.errors["worker:1"]
    assert run.exit_codes["worker:0"] == run.exit_codes["worker:2"] == 0
