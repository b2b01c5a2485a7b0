"""`dps.torch.Embedding` learns what PyTorch's does, and its table is on the ps alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dps
from dps.errors import ConfigError
from tests.in_process import cluster

pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')

import dps.torch
from tests.adapters.models import torch


@pytest.fixture
def server() -> Iterator[dps.Server]:
    with cluster(transport="inproc") as (worker,):
        yield worker


def model(table: Any) -> Any:
    """Two fields of a table of ten rows, and what they predict."""
    torch.manual_seed(5)
    return torch.nn.Sequential(table(10, 4), torch.nn.Flatten(), torch.nn.Linear(8, 1))


def sparse(rows: int, dim: int) -> Any:
    return torch.nn.Embedding(rows, dim, sparse=True)


def train(net: Any, optimizer: Any, steps: int = 5) -> list[float]:
    found = []
    for step in range(steps):
        rows = torch.tensor([[step, 3], [3, 9], [0, step]])
        optimizer.zero_grad()
        for _ in range(2):  # two backward passes: gradients add up
            loss = (net(rows) - 1).square().mean()
            loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in net.parameters() if not p.grad.is_sparse], 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("mode", ["async", "sync", "local:2"])
def test_it_learns_what_an_embedding_of_torch_learns(mode: str) -> None:
    plain, ours = model(sparse), model(dps.torch.Embedding)
    wanted = train(plain, torch.optim.SGD(plain.parameters(), 0.1))
    with cluster(ps=2, transport="inproc", update=mode) as (worker,):
        opt = dps.torch.Optimizer(ours.named_parameters(), worker, dps.optim.SGD(0.1))
        assert train(ours, opt) == pytest.approx(wanted, abs=1e-6)
        rows = torch.from_numpy(opt.session.lookup("0.weight", range(10)))
        assert torch.allclose(rows, plain[0].weight, atol=1e-6)
        opt.close()


def test_its_weight_stands_for_the_table_and_holds_no_values(server: dps.Server) -> None:
    net = model(dps.torch.Embedding)
    assert net[0].weight.shape == (10, 4) and not net[0].weight.isnan().any()
    opt = dps.torch.Optimizer(net.named_parameters(), server, dps.optim.SGD(0.1))
    assert net[0].weight.shape == (10, 4) and net[0].weight.isnan().all()
    assert net[0].weight.untyped_storage().nbytes() == 4
    with torch.no_grad():
        rows = net[0](torch.tensor([[1, 2], [2, 3]]))
    assert rows.shape == (2, 2, 4) and not rows.requires_grad
    assert torch.equal(rows[0, 1], rows[1, 0])
    opt.close()


def test_values_are_loaded_before_the_table_is_on_the_ps_and_refused_after(server: dps.Server) -> None:
    """torch said that more than one element of the written-to tensor refers to a single memory location."""
    table = dps.torch.Embedding(10, 4)
    table.load_state_dict({"weight": torch.ones(10, 4)}, assign=True)
    opt = dps.torch.Optimizer(table.named_parameters(), server, dps.optim.SGD(0.1))
    assert table(torch.tensor([3])).tolist() == [[1.0] * 4]
    saved = {"weight": table.state_dict()["weight"].clone()}
    with pytest.raises(
        ConfigError, match=r"weight is a table on the ps since .*session.assign\(\{'weight': values\}\)"
    ):
        table.load_state_dict({"weight": torch.zeros(10, 4)})
    with pytest.raises(ConfigError, match="weight is a table on the ps"):
        table.load_state_dict(saved, assign=True)
    table.load_state_dict(table.state_dict())  # changes nothing
    opt.session.assign({"weight": torch.zeros(10, 4)})
    assert table(torch.tensor([3])).tolist() == [[0.0] * 4]
    with pytest.raises(ConfigError, match="the state has no values of weight: it was saved while the table was on"):
        dps.torch.Embedding(10, 4).load_state_dict(saved)
    opt.close()


def test_a_table_of_bfloat16(server: dps.Server) -> None:
    pytest.importorskip("ml_dtypes")
    table = dps.torch.Embedding(6, 3, dtype=torch.bfloat16)
    first = table.weight.detach().clone()
    opt = dps.torch.Optimizer(table.named_parameters(), server, dps.optim.SGD(1.0))
    found = table(torch.tensor([4, 1]))
    assert torch.equal(found, first[[4, 1]])
    found.sum().backward()
    opt.step()
    assert torch.allclose(table(torch.tensor([4])), first[4] - 1)
    opt.close()


def test_a_forward_pass_without_an_optimizer_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"make a dps\.torch\.Optimizer"):
        dps.torch.Embedding(4, 2)(torch.tensor([1]))
