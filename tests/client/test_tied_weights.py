"""Weights that share memory: tied weights of PyTorch are one variable with two names, all else is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from tests.in_process import cluster

pytestmark = pytest.mark.slow  # loads torch
SGD = dps.optim.SGD(0.5)


def Tied() -> Any:
    from tests import torch_models

    return torch_models.Tied()


def by_hand(steps: int) -> Any:
    from tests import torch_models

    return torch_models.by_hand(steps)


def close(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    assert found.keys() == wanted.keys()
    return all(np.allclose(found[name], wanted[name].numpy(), atol=1e-6) for name in wanted)


@pytest.fixture
def torch() -> Any:
    from tests import torch_models

    return torch_models.torch


@pytest.mark.parametrize("mode", ["async", "sync", "local:2"])
@pytest.mark.parametrize("split", [False, True])
def test_tied_weights_learn_as_in_one_process(mode: str, split: bool) -> None:
    net, part = Tied(), dps.partition.Fixed(2) if split else None
    state = net.state_dict()
    settings: dict[str, Any] = {"optimizer": SGD, "partitioner": part, "update": mode}
    with cluster(ps=2) as (worker,), dps.Session(worker, state, **settings) as session:
        for _ in range(4):
            session.pull(out=state)
            session.push(net.gradients())
        pulled = session.pull()
        session.pull(out=state)
        assert np.array_equal(session.lookup("out.weight", [1, 2]), pulled["embed.weight"][[1, 2]])
        assert np.array_equal(session.pull(names=["out.weight"])["out.weight"], pulled["out.weight"])
    wanted = by_hand(4)
    assert close(pulled, wanted) and close(state, wanted)
    assert net.out.weight is net.embed.weight


def test_a_gradient_under_both_names_counts_once_if_it_is_one() -> None:
    net = Tied()
    with cluster() as (worker,), dps.Session(worker, net.state_dict(), optimizer=SGD) as session:
        net.gradients()
        session.push({name: p.grad for name, p in net.named_parameters(remove_duplicate=False)})
        assert close(session.pull(), by_hand(1))
        filled = session.gradients()
        for name, gradient in net.gradients().items():
            filled[name][...] = gradient.numpy()
        assert np.array_equal(filled["out.weight"], filled["embed.weight"])
        session.push(filled)
        twice = {name: filled["embed.weight"].copy() for name in ("embed.weight", "out.weight")}
        with pytest.raises(
            ValueError, match=r"embed.weight and out.weight are one variable .* got two gradients; push"
        ):
            session.push(twice)
        session.assign(net.state_dict())
        with pytest.raises(ValueError, match=r"embed.weight and out.weight are one variable .* got two values"):
            session.assign({name: value + place for place, (name, value) in enumerate(twice.items())})
        assert close(session.pull(), net.state_dict())


def test_a_reader_and_a_restart_from_a_checkpoint_know_both_names(tmp_path: Path) -> None:
    net, other = Tied(), Tied()
    settings: dict[str, Any] = {"optimizer": SGD, "checkpoint_dir": tmp_path}
    with cluster() as (worker,), dps.Session(worker, net.state_dict(), **settings) as session:
        session.push(net.gradients())
        with dps.Session(worker.target) as reader:
            reader.pull(out=other.state_dict())
            assert close(reader.pull(), by_hand(1)) and close(other.state_dict(), by_hand(1))
    with cluster(ps=2) as (worker,), dps.Session(worker, Tied().state_dict(), **settings) as session:
        assert session.global_step == 1
        assert close(session.pull(), by_hand(1))


def test_a_checkpoint_has_both_names_for_followers_and_for_another_order_of_layers(tmp_path: Path) -> None:
    net = Tied()
    settings: dict[str, Any] = {"optimizer": SGD, "checkpoint_dir": tmp_path}
    with cluster() as (worker,), dps.Session(worker, net.state_dict(), **settings) as session:
        session.push(net.gradients())
    step, values = next(iter(dps.follow(checkpoint_dir=tmp_path)))
    assert step == 1 and close(values, by_hand(1))
    other = dict(reversed(Tied().state_dict().items()))
    apart = {name: value.clone() for name, value in other.items()}
    for params in (other, apart):
        assert next(iter(params)) == "out.bias" and list(params).index("out.weight") < list(params).index(
            "embed.weight"
        )
        with cluster() as (worker,), dps.Session(worker, params, **settings) as session:
            assert session.global_step == 1
            assert close(session.pull(), by_hand(1))


def test_first_values_may_come_under_both_names() -> None:
    given = Tied().state_dict()
    trained = {name: value + 1 for name, value in given.items()}
    wrong = {**trained, "out.weight": trained["out.weight"] + 1}
    with cluster() as (worker,), dps.Session(worker, given, optimizer=SGD, init_fn=lambda _: trained) as session:
        assert close(session.pull(), trained)
    with (
        cluster() as (worker,),
        pytest.raises(dps.HookError, match="two values for embed.weight, which is tied to out"),
    ):
        dps.Session(worker, given, optimizer=SGD, init_fn=lambda _: wrong)


def test_another_worker_whose_weights_are_not_tied_is_refused() -> None:
    net = Tied()
    apart = {name: value.clone() for name, value in net.state_dict().items()}
    refused = pytest.raises(ConfigError, match="does not fit the run: only one of the two has")
    with cluster() as (worker,), dps.Session(worker, net.state_dict(), optimizer=SGD), refused:
        dps.Session(worker.target, apart, optimizer=SGD)


def test_a_pull_does_not_write_two_variables_to_one_memory() -> None:
    net = Tied()
    apart = {name: value.clone() for name, value in net.state_dict().items()}
    refused = "one memory for embed.weight and out.weight, which are two variables"
    with cluster() as (worker,), dps.Session(worker, apart, optimizer=SGD) as session:
        for _ in range(2):  # another `out` than that of the call before
            with pytest.raises(ValueError, match=refused):
                session.pull(out=net.state_dict())
            session.pull(out={name: value.clone() for name, value in apart.items()})
        session.publish()
        with dps.Follower(worker) as weights:
            while not weights.fetched:
                time.sleep(0.005)
            with pytest.raises(ValueError, match=refused):
                weights.swap(out=net.state_dict())
    with cluster() as (worker,), dps.Session(worker, dict(net.named_parameters()), optimizer=SGD) as session:
        assert session.pull(out=net.state_dict())["out.weight"] is not None  # this name is not the run's


@pytest.mark.parametrize("kind", ["transposed", "part"])
def test_tensors_that_overlap_are_refused_when_the_session_opens(torch: Any, kind: str) -> None:
    whole = torch.zeros(4, 4)
    params = {"a": whole, "b": whole.t() if kind == "transposed" else whole[1]}
    with (
        cluster() as (worker,),
        pytest.raises(ConfigError, match=r"a and b overlap in memory; .*clone.*tied weights are"),
    ):
        dps.Session(worker, params, optimizer=SGD)


def test_settings_of_a_tied_variable_are_given_once() -> None:
    state = Tied().state_dict()
    params = {**state, "out.weight": dps.Variable(state["out.weight"], optimizer=dps.optim.SGD(0.1))}
    with cluster() as (worker,), pytest.raises(ConfigError, match=r"out.weight is another name of embed.weight"):
        dps.Session(worker, params, optimizer=SGD)
    frozen = {name: dps.Variable(value, trainable=False) for name, value in state.items()}
    with cluster() as (worker,), dps.Session(worker, frozen, optimizer=SGD) as session:
        assert close(session.pull(), state)


def test_strategies_know_both_names() -> None:
    net = Tied()
    for strategy in (dps.strategy.Mirrored(["/cpu:0", "/cpu:1"]), dps.strategy.OneDevice("/cpu:0")):
        with strategy.scope():
            variables = strategy.variables(Tied().state_dict(), optimizer=SGD)
        variables.apply_gradients({name: g.clone() for name, g in net.gradients().items()})
        assert close(variables.read(), by_hand(1))
        variables.assign(Tied().state_dict())
        assert close(variables.read(), Tied().state_dict())


def test_a_parameter_is_no_gradient_and_a_module_no_tree(torch: Any) -> None:
    net = torch.nn.Linear(3, 2)
    with cluster() as (worker,):
        with pytest.raises(
            TypeError, match=r"is a module of PyTorch \(Linear\); wanted arrays: pass its state_dict\(\)"
        ):
            dps.Session(worker, net, optimizer=SGD)
        with pytest.raises(TypeError, match=r"is a generator; wanted arrays: pass a dict or a list of what it yields"):
            dps.Session(worker, net.parameters(), optimizer=SGD)
        with pytest.raises(
            ConfigError, match=r"got PyTorch's SGD \(the ps apply gradients.*, such as SGD\(0.1\)"
        ) as told:
            dps.Session(worker, net.state_dict(), optimizer=torch.optim.SGD(net.parameters(), 0.1))
        assert "\n" not in str(told.value)
        with dps.Session(worker, net.state_dict(), optimizer=SGD) as session:
            before = session.pull()
            for name, wrong in (("weight", net.weight), ("weight", torch.zeros(2, 3, requires_grad=True))):
                with pytest.raises(
                    TypeError, match=rf"got a parameter of PyTorch as the gradient of {name}.*pass p.grad"
                ):
                    session.push({name: wrong})
            with pytest.raises(
                ValueError, match=r"push wants gradients .* got one Linear: pass \{n: p.grad for n, p in"
            ):
                session.push(net)
            with pytest.raises(ValueError, match=r"assign wants values .* got one Linear: pass its state_dict\(\)"):
                session.assign(net)
            with pytest.raises(ValueError, match=r"out is a module of PyTorch \(Linear\); pass its state_dict\(\)"):
                session.pull(out=net)
            assert all(np.array_equal(session.pull()[name], before[name]) for name in before)
            session.assign(dict(net.named_parameters()))


@pytest.mark.parametrize("form", ["out", "load", "step", "prefetch", "view"])
def test_values_pushed_as_gradients_are_told_in_every_form_of_pull(
    torch: Any, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    net = torch.nn.Linear(3, 2)
    state = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    start = {name: value + 1 for name, value in net.state_dict().items()}
    with cluster() as (worker,), dps.Session(worker, start, optimizer=SGD) as session:
        if form == "out":
            session.pull(out=net.state_dict())
        elif form == "view":
            with session.view() as values:
                net.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
        else:
            values = session.step(state) if form == "step" else next(session.prefetch()) if form == "prefetch" else None
            net.load_state_dict({n: torch.tensor(v) for n, v in (values or session.pull()).items()})
            del values
        session.push({name: p.detach() for name, p in net.named_parameters()})
    assert sum("are equal to the values" in record.getMessage() for record in caplog.records) == 1


def test_a_push_without_any_gradient_is_told(torch: Any, caplog: pytest.LogCaptureFixture) -> None:
    net = torch.nn.Linear(3, 2)
    state = net.state_dict()
    with cluster() as (worker,), dps.Session(worker, state, optimizer=SGD) as session:
        for _ in range(4):
            session.push({name: torch.ones_like(value) for name, value in state.items()})
        assert not caplog.records
        for _ in range(3):
            session.push({name: p.grad for name, p in net.named_parameters()})
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and "a push had no gradient: it counts as a step, and nothing is learned" in told[0]
