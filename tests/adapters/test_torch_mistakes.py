"""Mistakes of programs with `dps.torch.Optimizer`, each of which is told in words that fit it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import dps
from dps.errors import ConfigError
from tests.in_process import cluster

pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')

import dps.torch
from tests.adapters.models import classifier, linear, losses, torch

SGD = dps.optim.SGD(0.1)


@pytest.fixture
def server() -> Iterator[dps.Server]:
    with cluster(transport="inproc") as (worker,):
        yield worker


def optimizer(model: Any, server: Any, **settings: Any) -> Any:
    return dps.torch.Optimizer(model.named_parameters(), server, SGD, **settings)


def one_step(model: Any, opt: Any) -> None:
    opt.zero_grad()
    model(torch.ones(3, 4, dtype=model.weight.dtype)).square().mean().backward()
    opt.step()


class WithMean(torch.nn.Linear):  # type: ignore[misc]
    """A layer with a buffer of its own."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("mean", torch.zeros(4))


def assign_attribute(model: Any) -> None:
    model.mean = 0.5 * model.mean + 0.5


def give_other_memory(model: Any) -> None:
    model.mean.data = torch.ones(4)


@pytest.mark.parametrize("replace", [assign_attribute, give_other_memory])
def test_a_buffer_that_the_model_replaces_is_told_once(replace: Any, server: dps.Server, caplog: Any) -> None:
    """The ps, the other workers and checkpoints had its first values for ever."""
    model = WithMean()
    opt = optimizer(model, server, buffers=model.named_buffers())
    one_step(model, opt)
    assert not caplog.records
    for _ in range(2):
        replace(model)
        one_step(model, opt)
    (told,) = [r.getMessage() for r in caplog.records if "in the place of the buffer mean" in r.getMessage()]
    assert "self.mean.copy_(...)" in told
    opt.close()


def test_buffers_that_are_changed_in_place_are_not_replaced(server: dps.Server, caplog: Any) -> None:
    model = classifier()
    seen = torch.zeros(4)
    views = [("first", seen[:2]), ("second", seen[2:])]
    opt = dps.torch.Optimizer(model.named_parameters(), server, SGD, buffers=[*model.named_buffers(), *views])
    del views
    losses(model, opt, 2, more=lambda: seen.add_(1.0))
    seen.add_(1.0)
    assert opt.session.pull()["first"].tolist() == [1.0, 1.0]
    assert not caplog.records
    opt.close()


@pytest.mark.parametrize(("change", "dtype"), [("half", "float16"), ("double", "float64")])
def test_a_model_that_gets_another_dtype_later_is_an_error_of_its_own(
    change: str, dtype: str, server: dps.Server, caplog: Any
) -> None:
    """The error spoke of an `out`, which the program does not have, and a warning of a clip of weights."""
    model = linear()
    opt = optimizer(model, server)
    one_step(model, opt)
    getattr(model, change)()
    wanted = rf"weight is torch\.{dtype} \[2, 4\] now, and was torch\.float32 \[2, 4\]"
    for _ in range(2):
        with pytest.raises(ConfigError, match=wanted):
            one_step(model, opt)
    assert not caplog.records and opt.session.global_step == 1
    model.float()
    one_step(model, opt)
    opt.close()


def test_buffers_without_names_are_an_error(server: dps.Server) -> None:
    """The advice was the call that had been made."""
    model = classifier()
    with pytest.raises(ConfigError, match=r"buffers: got Tensor, .*; give model\.named_buffers\(\)"):
        optimizer(model, server, buffers=model.buffers())


def test_parameters_without_values_are_an_error(server: dps.Server) -> None:
    with pytest.raises(ConfigError, match=r"weight is on the meta device and has no values; give it some before"):
        optimizer(torch.nn.Linear(4, 2, device="meta"), server)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps])
def test_an_optimizer_is_neither_copied_nor_saved(duplicate: Any, server: dps.Server) -> None:
    """The copy had no session, and its step an AttributeError."""
    opt = optimizer(linear(), server)
    with pytest.raises(TypeError, match=r"its session can neither be copied nor saved; save opt\.state_dict\(\)"):
        duplicate(opt)
    opt.close()


def test_two_models_of_one_task_are_told_that_they_have_the_same_values(server: dps.Server, caplog: Any) -> None:
    """The second of two networks got the values of the first without a word."""
    first, second = linear(0), linear(1)
    opt = optimizer(first, server)
    opt.close()
    opt = optimizer(first, server)
    assert not caplog.records
    other = optimizer(second, server)
    assert torch.equal(first.weight, second.weight)
    (told,) = caplog.records
    assert 'give one optimizer both, as [*a.named_parameters(prefix="a"), ' in told.getMessage()
    other.close()
    opt.close()


def test_two_models_in_one_optimizer_take_turns(server: dps.Server, caplog: Any) -> None:
    plain, ours = [linear(0), linear(1)], [linear(0), linear(1)]
    opts = [torch.optim.SGD(model.parameters(), 0.1) for model in plain]
    pairs = [*ours[0].named_parameters(prefix="a"), *ours[1].named_parameters(prefix="b")]
    opt = dps.torch.Optimizer(pairs, server, SGD)
    for turn in (0, 1, 1, 0):
        one_step(plain[turn], opts[turn])
        one_step(ours[turn], opt)
        for one, other in zip(plain, ours, strict=True):
            assert torch.allclose(one.weight, other.weight, atol=1e-6)
    assert not caplog.records
    opt.close()


@pytest.mark.parametrize(("name", "value"), [("weight_decay", 0.1), ("momentum", 0.9), ("betas", (0.9, 0.99))])
def test_a_number_of_a_rule_in_a_group_is_an_error(name: str, value: Any, server: dps.Server) -> None:
    """It changed nothing, without a word."""
    model = linear()
    opt = optimizer(model, server)
    one_step(model, opt)
    opt.param_groups[0][name] = value
    with pytest.raises(ConfigError, match=rf"param_groups has {name}, which no ps reads: the rule is the ps's, SGD\("):
        one_step(model, opt)
    del opt.param_groups[0][name]
    one_step(model, opt)
    opt.close()
