"""`dps.torch.Optimizer(overlap=True)`: the push of a step is on its way while the program computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dps
from dps.errors import ConfigError
from tests.in_process import cluster
from tests.tuned import tune

pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')

import dps.torch
from tests.adapters.models import classifier, linear, torch

RULES: dict[str, tuple[Any, Any]] = {
    "sgd": (dps.optim.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "adam": (dps.optim.Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late answer would have the loop pull newer values."""
    tune(monkeypatch, client__step_patience_s=20.0, nodes__first_resend_s=20.0)


@pytest.fixture(params=[1, 2], ids=["1 ps", "2 ps"])
def server(request: pytest.FixtureRequest) -> Iterator[dps.Server]:
    with cluster(request.param, 1) as (worker,):
        yield worker


def overlapped(model: Any, server: Any, rule: Any = None, **settings: Any) -> Any:
    settings.setdefault("update", "async")
    return dps.torch.Optimizer(model.named_parameters(), server, rule or dps.optim.SGD(0.1), overlap=True, **settings)


def gradients(model: Any, step: int) -> None:
    """Computes those of a batch of this number."""
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    model.zero_grad(set_to_none=False)
    (model(x) - x[:, :2]).square().mean().backward()


def step_of_nan(model: Any, opt: Any) -> None:
    """A step that the ps refuses."""
    gradients(model, 0)
    model.weight.grad[0, 0] = torch.nan
    opt.step()


def copied(model: Any) -> list[Any]:
    return [tensor.detach().clone() for tensor in model.parameters()]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "sockets"])
def test_each_step_has_the_values_right_after_the_push_before(rule: str, shared: bool, server: dps.Server) -> None:
    ours, read, applied = linear(), linear(), linear()
    with_ps, (_, plain) = overlapped(ours, server, RULES[rule][0], shared_memory=shared), RULES[rule]
    theirs = plain(applied.parameters())
    for step in range(12):
        before = copied(applied)
        gradients(read, step)
        for target, source in zip(applied.parameters(), read.parameters(), strict=True):
            target.grad = source.grad.clone()
        theirs.step()
        gradients(ours, step)
        with_ps.step()
        for tensor in ours.parameters():
            tensor.grad.fill_(1e6)  # the program's again
        read.load_state_dict(dict(zip(read.state_dict(), before, strict=True)))
        for one, other in zip(ours.parameters(), read.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    with_ps.close()
    for one, other in zip(ours.parameters(), applied.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_an_error_of_a_push_is_raised_by_the_next_step_and_the_loop_goes_on() -> None:
    with cluster(1, 1) as (server,):
        model = linear()
        opt = overlapped(model, server)
        step_of_nan(model, opt)
        gradients(model, 1)
        with pytest.raises(ValueError, match="the gradient of weight has NaN"):
            opt.step()
        before = copied(model)
        for step in range(2, 5):
            gradients(model, step)
            opt.step()
        assert opt.session.global_step >= 2 and not torch.equal(before[0], model.weight)
        gradients(model, 5)
        model.weight.grad[0, 0] = torch.inf
        opt.step()
        with pytest.raises(ValueError, match="the gradient of weight has NaN"):
            opt.close()


def test_modes_that_need_the_step_before_say_so() -> None:
    with cluster(1, 1) as (server,), pytest.raises(ConfigError, match="prefetch in sync mode"):
        overlapped(linear(), server, update="sync")
    with cluster(1, 1) as (server,), pytest.raises(ConfigError, match="prefetch in local mode"):
        overlapped(linear(), server, update=dps.Local(2))


def test_tables_buffers_and_halves_are_trained() -> None:
    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = dps.torch.Embedding(10, 4)
            self.small = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
            self.norm = torch.nn.BatchNorm1d(4)
            self.frozen = torch.nn.Parameter(torch.ones(4), requires_grad=False)

        def forward(self, rows: Any) -> Any:
            return self.norm(self.small(self.table(rows).bfloat16()).float()) * self.frozen

    with cluster(1, 1) as (server,):
        torch.manual_seed(0)
        net = Net()
        opt = overlapped(net, server, buffers=net.named_buffers())
        wanted, found = torch.randn(10, 4), list[float]()
        for _ in range(60):
            opt.zero_grad()
            loss = (net(torch.arange(10)) - wanted).square().mean()
            loss.backward()
            opt.step(loss=loss)
            found.append(loss.item())
        opt.close()
        assert found[-1] < 0.7 * found[0] and torch.equal(net.frozen, torch.ones(4))
        assert not torch.equal(net.norm.running_mean, torch.zeros(4))


def test_a_run_that_is_to_stop_has_steps_that_end() -> None:
    with cluster(1, 1) as (server,):
        model = linear()
        opt, steps = overlapped(model, server, hooks=[dps.StopAtStep(last_step=5)]), 0
        while not opt.should_stop():
            gradients(model, steps)
            opt.step()
            steps += 1
        assert 5 <= steps <= 7
        gradients(model, steps)
        opt.step()
        opt.close()


def test_a_loop_learns_as_without_overlap() -> None:
    with cluster(1, 1) as (server,):
        model = classifier()
        opt, found = overlapped(model, server, dps.optim.Adam(0.01), buffers=model.named_buffers()), list[float]()
        for step in range(80):
            x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
            opt.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
            loss.backward()
            opt.step(loss=loss)
            found.append(loss.item())
        opt.close()
        assert sum(found[-5:]) < 0.5 * sum(found[:5])


def test_what_the_program_sets_is_not_undone_by_values_that_were_on_their_way() -> None:
    with cluster(1, 1) as (server,):
        model = linear()
        opt = overlapped(model, server)
        for step in range(3):
            gradients(model, step)
            opt.step()
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.fill_(7.0)
        opt.assign()
        for _ in range(3):
            model.zero_grad(set_to_none=False)
            opt.step()
            assert all(torch.equal(tensor, torch.full_like(tensor, 7.0)) for tensor in model.parameters())
        opt.close()


def test_buffers_that_the_worker_changes_in_each_step_keep_their_changes() -> None:
    with cluster(1, 1) as (server,):
        model = classifier()
        opt, mean = overlapped(model, server, buffers=model.named_buffers()), model[1].running_mean
        for step in range(6):
            model.zero_grad()
            model(torch.randn(32, 8)).square().mean().backward()
            before = mean.clone()
            opt.step()
            assert torch.equal(mean, before), step
        opt.close()
        assert torch.equal(mean, before)


def test_a_loss_is_that_of_its_step_although_the_program_reuses_its_memory() -> None:
    """A NanGuard missed a NaN without a word."""
    with cluster(1, 1) as (server,):
        model, loss = linear(), torch.tensor(float("nan"))
        opt = overlapped(model, server, hooks=[dps.NanGuard()])
        gradients(model, 0)
        opt.step(loss=loss)
        loss.fill_(1.0)
        gradients(model, 1)
        with pytest.raises(dps.NotFinite):
            opt.step(loss=loss)


def test_the_end_of_a_program_raises_the_error_of_the_last_push() -> None:
    with cluster(1, 1) as (server,):
        model = linear()
        opt = overlapped(model, server)
        step_of_nan(model, opt)
        with pytest.raises(ValueError, match="the gradient of weight has NaN"):
            opt._end_program(None)
