"""A model on a real GPU learns through a ps what it learns with plain PyTorch. Needs torch with CUDA and a GPU."""

from __future__ import annotations

from typing import Any

import pytest

import dps
from tests.in_process import cluster, on_all

pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')

import dps.torch
from tests.adapters.models import batch, classifier, linear, torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")


def train(model: Any, optimizer: Any, steps: int = 60) -> list[float]:
    """The loss of each step; nothing in the loop waits for the GPU but the optimizer and the loss that is kept."""
    found = []
    for step in range(steps):
        x, labels = (tensor.cuda() for tensor in batch(step))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.detach())
    return [float(one) for one in found]


def test_the_losses_of_a_model_on_a_gpu_are_those_of_plain_torch() -> None:
    plain, ours = classifier().cuda(), classifier().cuda()
    wanted = train(plain, torch.optim.Adam(plain.parameters(), 0.01))
    memory = [p.data_ptr() for p in ours.parameters()]
    with cluster(transport="inproc") as (worker,):
        optimizer = dps.torch.Optimizer(
            ours.named_parameters(), worker, dps.optim.Adam(0.01), buffers=ours.named_buffers()
        )
        found = train(ours, optimizer)
        optimizer.close()
    assert max(abs(one - other) for one, other in zip(found, wanted, strict=True)) < 1e-5
    assert [p.data_ptr() for p in ours.parameters()] == memory and wanted[-1] < wanted[0]


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
def test_a_model_on_a_gpu_steps_over_each_transport(transport: str) -> None:
    plain = linear().cuda()
    wanted = train_linear(plain, torch.optim.SGD(plain.parameters(), 0.1))
    ours = linear().cuda()
    with cluster(transport=transport) as (worker,):
        optimizer = dps.torch.Optimizer(ours.named_parameters(), worker, dps.optim.SGD(0.1))
        found = train_linear(ours, optimizer)
        optimizer.close()
    assert found == pytest.approx(wanted, abs=1e-5)


def train_linear(model: Any, optimizer: Any, steps: int = 20) -> list[float]:
    found = []
    for step in range(steps):
        x = batch(step)[0][:, :4].cuda()
        optimizer.zero_grad()
        loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_two_workers_of_one_gpu_in_sync_are_one_with_the_whole_batch() -> None:
    models = [linear().cuda(), linear().cuda()]

    def halves(server: dps.Server) -> list[float]:
        model = models[server.task]
        optimizer = dps.torch.Optimizer(model.named_parameters(), server, dps.optim.SGD(0.1), update="sync")
        for step in range(20):
            half = batch(step)[0][server.task :: 2, :4].cuda()
            optimizer.zero_grad()
            (model(half) - half.sum(dim=1, keepdim=True)).square().mean().backward()
            optimizer.step()
        optimizer.close()
        return [float(p.detach().sum()) for p in model.parameters()]

    with cluster(workers=2, transport="inproc", update="sync") as workers:
        one, other = on_all(workers, halves)
    plain = linear().cuda()
    train_linear(plain, torch.optim.SGD(plain.parameters(), 0.1))
    assert one == other == pytest.approx([float(p.detach().sum()) for p in plain.parameters()], abs=1e-5)


def test_a_gradient_that_is_nan_is_named_and_the_next_step_goes_on() -> None:
    model = linear().cuda()
    with cluster(transport="inproc") as (worker,):
        optimizer = dps.torch.Optimizer(model.named_parameters(), worker, dps.optim.SGD(0.1))
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        model.weight.grad = torch.full((2, 4), float("nan"), device="cuda")
        with pytest.raises(ValueError, match="weight"):
            optimizer.step()
        model.weight.grad = torch.ones(2, 4, device="cuda")
        before = model.weight.detach().clone()
        optimizer.step()
        assert torch.allclose(model.weight, before - 0.1)
        optimizer.close()
