"""Tensors that are not on the CPU are copied through memory of the host; a stand-in device shows the order."""

from __future__ import annotations

from typing import Any

import pytest

import dps
from tests.in_process import cluster

pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')

import dps.torch
from dps.adapters.torch import staging
from tests.adapters.models import batch, linear, torch


class Later(staging.Copies):
    """A device whose copies to it are made late: at the next copy from it, or when they are waited for."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._on_the_way: list[tuple[Any, Any]] = []

    def buffer(self, like: Any) -> Any:
        self.told.append("buffer")
        return super().buffer(like)

    def to_host(self, pairs: Any) -> None:
        self.finish()
        self.told.append("to host")
        super().to_host(pairs)

    def to_device(self, pairs: Any) -> None:
        self.told.append("to device")
        self._on_the_way += pairs

    def finish(self) -> None:
        super().to_device(self._on_the_way)
        self._on_the_way = []


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Later:
    made = Later()
    monkeypatch.setattr(staging, "is_direct", lambda tensor: False)
    monkeypatch.setattr(staging, "copies_for", lambda device: made)
    return made


def train(model: Any, optimizer: Any, wait: Any = lambda: None) -> None:
    for step in range(4):
        wait()
        optimizer.zero_grad()
        model(batch(step)[0][:, :4]).square().mean().backward()
        optimizer.step()
    wait()


def test_a_model_of_another_device_learns_as_one_of_the_cpu(device: Later) -> None:
    plain, ours = linear(), linear()
    train(plain, torch.optim.SGD(plain.parameters(), 0.1))
    with cluster(transport="inproc") as (worker,):
        opt = dps.torch.Optimizer(ours.named_parameters(), worker, dps.optim.SGD(0.1))
        memory = [p.data_ptr() for p in ours.parameters()]
        train(ours, opt, device.finish)
        opt.close()
    assert all(
        torch.allclose(one, other, atol=1e-6) for one, other in zip(ours.parameters(), plain.parameters(), strict=True)
    )
    assert [p.data_ptr() for p in ours.parameters()] == memory
    assert device.told == ["buffer"] * 2 + ["to device"] + ["to host", "to device"] * 4  # memory is made once


def test_memory_that_a_failed_push_may_read_is_not_used_again(device: Later) -> None:
    model = linear()
    with cluster(transport="inproc") as (worker,):
        opt = dps.torch.Optimizer(model.named_parameters(), worker, dps.optim.SGD(0.1))
        device.finish()
        model.weight.grad = torch.full((2, 4), float("nan"))
        with pytest.raises(ValueError, match="weight"):
            opt.step()
        before = device.told.count("buffer")
        model.weight.grad = torch.ones(2, 4)
        opt.step()
        assert device.told.count("buffer") == before + 2  # values of both parameters
        opt.close()


def test_without_a_gpu_other_devices_get_copies_that_block() -> None:
    copies = staging.copies_for(torch.device("cpu"))
    source, target = torch.ones(2, 3), copies.buffer(torch.zeros(2, 3))
    copies.to_host([(source, target)])
    assert torch.equal(source, target) and target.is_contiguous()
