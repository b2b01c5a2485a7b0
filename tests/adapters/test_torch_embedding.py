"""`dps.torch.Embedding` learns what PyTorch's does, and its table is on the ps alone."""

from __future__ import annotations

import copy
import io
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


def test_a_deep_copy_of_a_table_on_the_ps_has_no_values_and_no_memory(server: dps.Server) -> None:
    """Its forward pass told to make an optimizer, which then trained a table of NaN."""
    table = dps.torch.Embedding(10, 4)
    before = copy.deepcopy(table)
    assert torch.equal(before.weight, table.weight)
    opt = dps.torch.Optimizer(table.named_parameters(), server, dps.optim.SGD(0.1))
    copied = copy.deepcopy(table)
    assert copied.weight.shape == (10, 4) and copied.weight.untyped_storage().nbytes() == 4
    with pytest.raises(ConfigError, match="is a copy of one whose table is on the ps, and has no values"):
        copied(torch.tensor([1]))
    opt.close()


def test_a_model_with_a_table_is_saved_whole(server: dps.Server) -> None:
    """The loaded table was a plain parameter, which looks nothing up; of one on the ps, an error told of a lock."""
    table, saved = dps.torch.Embedding(10, 4), [io.BytesIO(), io.BytesIO()]
    torch.save(table, saved[0])
    first = table.weight.detach().clone()
    opt = dps.torch.Optimizer(table.named_parameters(), server, dps.optim.SGD(0.1))
    torch.save(table, saved[1])
    opt.close()
    before, after = (torch.load(io.BytesIO(file.getvalue()), weights_only=False) for file in saved)
    assert after.weight.shape == (10, 4) and after.weight.untyped_storage().nbytes() == 4
    with cluster(transport="inproc") as (other,):
        opt = dps.torch.Optimizer(before.named_parameters(), other, dps.optim.SGD(0.1))
        assert torch.equal(before(torch.tensor([1, 7])), first[[1, 7]])
        opt.close()


def test_a_table_that_gets_another_dtype_later_is_an_error(server: dps.Server) -> None:
    table = dps.torch.Embedding(10, 4)
    opt = dps.torch.Optimizer(table.named_parameters(), server, dps.optim.SGD(0.1))
    table.half()
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match=r"weight is torch\.float16 \[10, 4\] now, and was torch\.float32"):
        opt.step()
    opt.close()


@pytest.mark.parametrize("kind", ["the same", "a copy"])
def test_a_run_does_not_begin_with_a_table_without_values(kind: str, server: dps.Server) -> None:
    """The new run trained a table of NaN."""
    table = dps.torch.Embedding(10, 4)
    opt = dps.torch.Optimizer(table.named_parameters(), server, dps.optim.SGD(0.1))
    opt.close()
    used = table if kind == "the same" else copy.deepcopy(table)
    with cluster(transport="inproc") as (other,), pytest.raises(ConfigError, match="weight has no values: its table"):
        dps.torch.Optimizer(used.named_parameters(), other, dps.optim.SGD(0.1))
    again = dps.torch.Optimizer(used.named_parameters(), server, dps.optim.SGD(0.1))  # that run has the values
    assert not used(torch.tensor([1])).isnan().any()
    again.close()
