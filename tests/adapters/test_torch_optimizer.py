"""`dps.torch.Optimizer` learns what plain PyTorch learns, in every update mode, and says what it cannot do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from tests.in_process import cluster, on_all

pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')

import dps.torch
from tests.adapters.models import batch, classifier, linear, losses, torch

TWINS: dict[str, tuple[Any, Any]] = {
    "sgd": (dps.optim.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (dps.optim.Momentum(0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "adagrad": (dps.optim.Adagrad(0.1, initial_accumulator=0.0), lambda p: torch.optim.Adagrad(p, 0.1)),
    "adam": (dps.optim.Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adamw": (dps.optim.AdamW(0.01), lambda p: torch.optim.AdamW(p, 0.01)),
}
SGD = dps.optim.SGD(0.1)


@pytest.fixture
def server() -> Iterator[dps.Server]:
    with cluster(transport="inproc") as (worker,):
        yield worker


def optimizer(model: Any, server: Any, rule: Any = SGD, **settings: Any) -> Any:
    return dps.torch.Optimizer(model.named_parameters(), server, rule, **settings)


def one_step(model: Any, opt: Any) -> None:
    opt.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    opt.step()


# -- what the program changes itself ------------------------------------------------------------------------------


def clip(model: Any) -> None:
    with torch.no_grad():
        model.weight.clamp_(-0.01, 0.01)


def clip_data(model: Any) -> None:
    model.weight.data.clamp_(-0.01, 0.01)


def load(model: Any) -> None:
    model.load_state_dict({name: 0.5 * value for name, value in model.state_dict().items()})


@pytest.mark.parametrize("change", [clip, clip_data, load])
def test_a_change_of_parameters_that_a_step_undoes_is_told_once(change: Any, server: dps.Server, caplog: Any) -> None:
    model = linear()
    opt = optimizer(model, server)
    one_step(model, opt)
    assert not caplog.records
    for _ in range(2):
        change(model)
        one_step(model, opt)
    told = [r.getMessage() for r in caplog.records if "has changed the parameter weight" in r.getMessage()]
    assert len(told) == 1 and "opt.assign()" in told[0]
    opt.close()


@pytest.mark.parametrize("change", [clip, clip_data, load])
def test_a_change_of_parameters_that_is_assigned_counts(change: Any, server: dps.Server, caplog: Any) -> None:
    plain, ours = linear(), linear()
    sgd, opt = torch.optim.SGD(plain.parameters(), 0.1), optimizer(ours, server)
    for _ in range(4):
        one_step(plain, sgd)
        change(plain)
        one_step(ours, opt)
        change(ours)
        opt.assign()
    assert torch.allclose(plain.weight, ours.weight, rtol=1e-6)
    assert np.array_equal(ours.weight.detach().numpy(), opt.session.pull()["weight"])
    assert not caplog.records
    opt.close()


def test_a_mask_of_infinities_is_no_value_that_each_step_assigns(server: dps.Server) -> None:
    """Each step was refused as if its gradients were not finite."""
    model = linear()
    model.register_buffer("mask", torch.full((4, 4), -float("inf")).triu(1))
    model.register_buffer("seen", torch.tensor([float("nan"), 0.0]))
    opt = optimizer(model, server, buffers=model.named_buffers())
    one_step(model, opt)
    assert opt.session.global_step == 1 and model.mask[0, 1] == -float("inf") and model.seen[0].isnan()
    model.seen.fill_(2.0)
    one_step(model, opt)
    assert opt.session.pull()["seen"].tolist() == [2.0, 2.0]
    model.seen.fill_(float("nan"))
    with pytest.raises(ValueError, match="the value of seen has NaN or infinite values: nothing was set"):
        one_step(model, opt)
    opt.close()


# -- what is learnt -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TWINS)
def test_a_hundred_clipped_steps_have_the_losses_of_plain_torch(name: str, server: dps.Server) -> None:
    rule, twin = TWINS[name]
    plain, ours = classifier(), classifier()
    opt = optimizer(ours, server, rule, buffers=ours.named_buffers())
    found, wanted = losses(ours, opt, 100), losses(plain, twin(plain.parameters()), 100)
    opt.close()
    assert np.abs(np.array(found) - wanted).max() < 1e-6 and wanted[-1] < wanted[0]


def test_two_workers_in_sync_with_half_batches_are_one_with_the_whole() -> None:
    models = [linear(), linear()]  # made here: all threads share torch's random numbers

    def halves(server: dps.Server) -> dict[str, Any]:
        model = models[server.task]
        opt = optimizer(model, server, dps.optim.Adam(0.05), update="sync")
        for step in range(20):
            x, _ = batch(step)
            half = x[server.task :: 2, :4]
            opt.zero_grad()
            (model(half) - half.sum(dim=1, keepdim=True)).square().mean().backward()
            opt.step()
        opt.close()
        return {name: value.clone() for name, value in model.state_dict().items()}

    with cluster(workers=2, transport="inproc", update="sync") as workers:
        one, other = on_all(workers, halves)
    plain = linear()
    adam = torch.optim.Adam(plain.parameters(), 0.05)
    for step in range(20):
        x = batch(step)[0][:, :4]
        adam.zero_grad()
        (plain(x) - x.sum(dim=1, keepdim=True)).square().mean().backward()
        adam.step()
    for name, value in plain.state_dict().items():
        assert torch.equal(one[name], other[name])
        assert torch.allclose(one[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["async", "sync", "bounded:1", "local:4"])
def test_every_update_mode_learns_and_ends_at_the_step_of_its_hook(mode: str) -> None:
    with cluster(transport="inproc", update=mode) as (worker,):
        model, steps = classifier(), 8 // (4 if mode == "local:4" else 1)
        hooks = [dps.StopAtStep(last_step=steps)]
        opt = optimizer(model, worker, hooks=hooks, buffers=model.named_buffers())
        plain, found = classifier(), 0
        twin = torch.optim.SGD(plain.parameters(), 0.1)
        while not opt.should_stop():  # also in local mode, whose outer rule takes over what a worker has learnt
            ours, wanted = losses(model, opt, 1), losses(plain, twin, 1)
            assert ours == pytest.approx(wanted, abs=1e-6)
            found += 1
        assert found == 8 and opt.session.global_step == steps
        opt.close()


def test_parameters_keep_their_memory_and_tied_weights_are_one_variable(server: dps.Server) -> None:
    from tests import torch_models

    net = torch_models.Tied()
    opt = optimizer(net, server, dps.optim.SGD(0.5))
    memory = [parameter.data_ptr() for parameter in net.parameters()]
    for _ in range(4):
        net.gradients()
        opt.step()
    assert [parameter.data_ptr() for parameter in net.parameters()] == memory
    assert sorted(opt.session.pull()) == ["embed.weight", "out.bias"]
    wanted = torch_models.by_hand(4)
    assert all(torch.allclose(value, wanted[name], atol=1e-6) for name, value in net.state_dict().items())
    opt.close()


def test_all_names_of_a_tied_weight_may_be_given(server: dps.Server) -> None:
    from tests import torch_models

    net = torch_models.Tied()
    pairs = net.named_parameters(remove_duplicate=False)
    opt = dps.torch.Optimizer(pairs, server, SGD)
    assert sorted(opt.session.pull()) == ["embed.weight", "out.bias"]
    opt.close()


def test_the_first_worker_gives_the_first_values() -> None:
    with cluster(workers=2, transport="inproc") as (one, other):
        first, second = linear(1), linear(2)
        opens = optimizer(first, one)
        joins = optimizer(second, other)
        assert torch.equal(first.weight, second.weight) and torch.equal(first.weight, linear(1).weight)
        opens.close()
        joins.close()


def test_a_backward_pass_through_replaced_values_is_refused_as_in_torch(server: dps.Server) -> None:
    model = linear()
    opt = optimizer(model, server)
    loss = (model(torch.ones(1, 4)) @ model.weight).sum()
    one_step(model, opt)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    opt.close()


# -- a torch optimizer ----------------------------------------------------------------------------------------------


def test_step_hooks_fire_once_and_a_closure_gives_the_loss_to_hooks(server: dps.Server) -> None:
    told: list[Any] = []

    class Losses(dps.Hook):
        def after_run(self, session: Any, push: Any, loss: Any) -> None:
            told.append(float(loss))

    model = linear()
    opt = optimizer(model, server, hooks=[Losses()])
    opt.register_step_pre_hook(lambda *_: told.append("before"))
    opt.register_step_post_hook(lambda *_: told.append("after"))

    def closure() -> Any:
        opt.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = opt.step(closure)
    assert told == ["before", pytest.approx(loss.item()), "after"]
    assert isinstance(opt, torch.optim.Optimizer)
    opt.close()


def test_gradients_are_accumulated_and_scaled_as_with_any_optimizer(server: dps.Server) -> None:
    plain, ours = linear(), linear()
    opt, twin = optimizer(ours, server), torch.optim.SGD(plain.parameters(), 0.1)
    for model, each in ((ours, opt), (plain, twin)):
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for scale in (1.0, 1.0, float("inf"), 1.0):
            each.zero_grad()
            for part in range(2):
                loss = scale * model(batch(part)[0][:, :4]).square().mean()
                scaler.scale(loss).backward()
            scaler.step(each)
            scaler.update()
    assert opt.session.global_step == 3  # the step with infinities was left out
    assert torch.allclose(ours.weight, plain.weight, atol=1e-6)
    opt.close()


def test_sparse_gradients_bfloat16_and_channels_last_arrive(server: dps.Server) -> None:
    pytest.importorskip("ml_dtypes")

    class Mixed(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.table = torch.nn.Embedding(6, 4, sparse=True)
            self.small = torch.nn.Linear(4, 3, dtype=torch.bfloat16)
            self.conv = torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
            self.halved = torch.nn.Conv2d(3, 5, 3, dtype=torch.bfloat16).to(memory_format=torch.channels_last)

        def forward(self, rows: Any) -> Any:
            images = torch.ones(2, 3, 4, 4)
            found = self.table(rows).square().sum() + self.small(images[0, 0].bfloat16()).float().square().mean()
            return found + self.conv(images).square().mean() + self.halved(images.bfloat16()).float().square().mean()

    plain, ours = Mixed(), Mixed()
    opt, twin = optimizer(ours, server), torch.optim.SGD(plain.parameters(), 0.1)
    for _ in range(3):
        for model, each in ((ours, opt), (plain, twin)):
            each.zero_grad()
            model(torch.tensor([1, 3, 1])).backward()
            each.step()
    for name, value in plain.state_dict().items():
        mine = ours.state_dict()[name]
        assert mine.stride() == value.stride() and mine.dtype == value.dtype
        assert torch.allclose(mine.float(), value.float(), atol=1e-5 if value.dtype == torch.float32 else 2e-2), name
    opt.close()


def test_float_buffers_are_shared_and_counters_stay_local() -> None:
    with cluster(workers=2, transport="inproc") as (one, other):
        first, second = classifier(), classifier()
        opens = optimizer(first, one, buffers=first.named_buffers())
        joins = optimizer(second, other, buffers=second.named_buffers())
        losses(first, opens, 3)
        assert not torch.equal(first[1].running_mean, torch.zeros(16))
        joins.zero_grad()
        joins.session.pull()
        second.eval()
        second(batch(0)[0]).sum().backward()
        second[1].running_mean.copy_(torch.from_numpy(opens.session.pull()["1.running_mean"]))
        joins.step()
        assert torch.equal(first[1].running_mean, second[1].running_mean)
        assert first[1].num_batches_tracked == 3 and second[1].num_batches_tracked == 0
        assert "1.num_batches_tracked" not in opens.session.pull()
        opens.close()
        joins.close()


# -- rates and state ------------------------------------------------------------------------------------------------


def test_the_group_shows_the_rate_of_the_ps_and_another_one_is_an_error(server: dps.Server) -> None:
    model = linear()
    opt = optimizer(model, server, dps.optim.SGD(dps.optim.PerStep([0.1, 0.2, 0.4])))
    (group,) = opt.param_groups
    seen = [group["lr"]]
    for _ in range(3):
        one_step(model, opt)
        seen.append(group["lr"])
    assert seen == [0.1, 0.2, 0.4, 0.4]
    group["lr"] = 0.4 + 5e-7
    one_step(model, opt)
    group["lr"] = 0.3
    with pytest.raises(ConfigError, match=r"the rate 0\.3 .* the ps have 0\.4 at step 4"):
        one_step(model, opt)
    opt.close()


def test_a_scheduler_of_torch_that_the_ps_does_not_follow_is_an_error(server: dps.Server) -> None:
    model = linear()
    opt = optimizer(model, server, dps.optim.SGD(0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    one_step(model, opt)
    scheduler.step()
    with pytest.raises(ConfigError, match=r"dps\.torch\.schedule"):
        one_step(model, opt)
    opt.close()


def test_a_small_rate_that_is_twice_the_one_of_the_ps_is_an_error_too(server: dps.Server) -> None:
    opt = optimizer(linear(), server, dps.optim.SGD(1e-7))
    opt.param_groups[0]["lr"] = 2e-7
    with pytest.raises(ConfigError, match="2e-07"):
        opt.step()
    opt.close()


def test_a_rate_that_is_set_in_float32_is_the_rate_of_the_ps(server: dps.Server) -> None:
    """It differs in the ninth digit each time, and these differences are no changes that add up."""
    model = linear()
    opt = optimizer(model, server)
    for _ in range(800):
        for group in opt.param_groups:
            group["lr"] = float(np.float32(0.1))
        one_step(model, opt)
    opt.close()


@pytest.mark.parametrize("rate", [1e-3, 0.1])
def test_a_scheduler_whose_steps_are_small_is_an_error_soon(rate: float, server: dps.Server) -> None:
    """Each step shows the ps's rate again, so the small differences never became a large one."""
    model = linear()
    opt = optimizer(model, server, dps.optim.Adam(rate))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 2000)
    with pytest.raises(ConfigError, match=r"param_groups has the rate .* and the ps have"):  # noqa: PT012
        for _ in range(50):
            one_step(model, opt)
            scheduler.step()
    opt.close()


def test_the_optimizers_own_scheduler_shows_the_rate_of_the_ps(server: dps.Server) -> None:
    model = linear()
    opt = optimizer(model, server, dps.optim.SGD(dps.optim.PerStep([0.4, 0.2, 0.1])))
    scheduler = opt.scheduler()
    rates = []
    for _ in range(3):
        rates.append(scheduler.get_last_lr()[0])
        one_step(model, opt)
        scheduler.step()
    assert rates == [0.4, 0.2, 0.1] and isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    again = opt.scheduler()
    again.load_state_dict(scheduler.state_dict())
    one_step(model, opt)
    opt.close()


def test_rates_of_local_mode_count_the_steps_of_the_worker() -> None:
    with cluster(transport="inproc", update="local:2") as (worker,):
        model, rates = linear(), [0.1, 0.2, 0.3, 0.4, 0.5]
        opt = optimizer(model, worker, dps.optim.SGD(dps.optim.PerStep(rates)))
        plain = linear()
        twin = torch.optim.SGD(plain.parameters(), 0.1)
        for rate in rates[:4]:
            assert opt.param_groups[0]["lr"] == rate
            twin.param_groups[0]["lr"] = rate
            for each_model, each in ((model, opt), (plain, twin)):
                one_step(each_model, each)
        assert torch.allclose(model.weight, plain.weight, atol=1e-6)
        opt.close()


def test_this_runs_state_is_accepted_and_that_of_a_new_run_or_of_torch_is_not(server: dps.Server) -> None:
    model = linear()
    opt = optimizer(model, server, dps.optim.Adam(0.01))
    one_step(model, opt)
    state = opt.state_dict()
    assert state["dps"]["step"] == 1 and state["param_groups"][0]["lr"] == 0.01
    opt.load_state_dict(state)
    one_step(model, opt)
    with pytest.raises(ConfigError, match=r"not dps\.torch\.Optimizer"):
        opt.load_state_dict(torch.optim.Adam(model.parameters()).state_dict())
    opt.close()
    with cluster(transport="inproc") as (other,):
        fresh = optimizer(linear(), other, dps.optim.Adam(0.01))
        with pytest.raises(ConfigError, match=r"of step 1, and this run is at step 0.*checkpoint_dir"):
            fresh.load_state_dict(state)
        fresh.close()
    with cluster(transport="inproc") as (other,):
        changed = optimizer(linear(), other, dps.optim.Adam(0.02))
        with pytest.raises(ConfigError, match="this run has Adam"):
            changed.load_state_dict(state)
        changed.close()


# -- what it refuses ------------------------------------------------------------------------------------------------


def test_a_group_that_is_added_later_is_an_error(server: dps.Server) -> None:
    opt = optimizer(linear(), server)
    with pytest.raises(ConfigError, match="add_param_group"):
        opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    opt.close()


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([("w", "complex64")], r"w is of torch\.complex64"),
        ([("w", "float32"), ("w", "float32")], "the name w twice"),
        ([], "got none"),
    ],
    ids=["dtype", "twice", "none"],
)
def test_parameters_that_no_run_can_have(pairs: list[tuple[str, str]], words: str, server: dps.Server) -> None:
    named = [(name, torch.nn.Parameter(torch.zeros(2, dtype=getattr(torch, dtype)))) for name, dtype in pairs]
    with pytest.raises(ConfigError, match=words):
        dps.torch.Optimizer(named, server, SGD)


def test_parameters_without_names_are_an_error(server: dps.Server) -> None:
    with pytest.raises(ConfigError, match=r"model\.named_parameters\(\)"):
        dps.torch.Optimizer(linear().parameters(), server, SGD)


def test_an_optimizer_of_torch_is_not_a_rule_of_the_ps(server: dps.Server) -> None:
    model = linear()
    with pytest.raises(ConfigError, match="PyTorch's SGD"):
        optimizer(model, server, torch.optim.SGD(model.parameters(), 0.1))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_frozen_parameter_with_a_gradient_is_an_error(when: str, server: dps.Server) -> None:
    model = linear()
    if when == "before":
        model.bias.requires_grad_(False)
    opt = optimizer(model, server)
    one_step(model, opt)
    model.bias.requires_grad_(when == "before")
    model.bias.grad = torch.ones(2)
    with pytest.raises(ConfigError, match=r"bias .*frozen"):
        opt.step()
    opt.close()


def test_a_gradient_that_is_not_finite_is_refused_by_name(server: dps.Server) -> None:
    model = linear()
    opt = optimizer(model, server)
    model.weight.grad = torch.full((2, 4), float("nan"))
    with pytest.raises(ValueError, match="weight"):
        opt.step()
    opt.close()


def test_a_closed_optimizer_is_not_kept_for_the_end_of_the_program(server: dps.Server) -> None:
    opt = optimizer(linear(), server)
    kept = weakref.ref(opt.session)
    opt.close()
    opt.close()
    del opt
    gc.collect()
    assert kept() is None
