"""Two mistakes that cost an afternoon are told once: values pushed instead of gradients, and values that pulls undo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from tests.in_process import cluster

VALUES = {"w": np.arange(4, dtype=np.float32), "mean": np.zeros(2, np.float32), "n": np.int64(0)}


def session(worker: Any, params: Any = None) -> dps.Session:
    start = {name: np.array(value) for name, value in VALUES.items()} if params is None else params
    return dps.Session(worker, start, optimizer=dps.optim.SGD(0.5), timeout=60)


def told(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


PUSHED, REPLACED = "are equal to the values", "pull(out=) has replaced the value of mean"


@pytest.mark.parametrize("out", [True, False])
def test_a_pull_that_undoes_a_value_without_gradient_is_told_once(caplog: pytest.LogCaptureFixture, out: bool) -> None:
    here = {name: np.array(value) for name, value in VALUES.items()}
    with cluster() as (worker,), session(worker) as s:
        here["mean"] += 1
        s.pull(out=here)
        assert told(caplog, REPLACED) == 0  # nothing was learned yet: the values are those of the run
        for _ in range(3):
            s.push({"w": np.ones(4, np.float32)})
            here["mean"] += 1
            here["n"] += 1
            s.pull(names=None if out else ["mean", "n"], out=here)
            assert not here["mean"].any()
    assert told(caplog, REPLACED) == 1
    assert "session.assign" in caplog.text


def test_who_assigns_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    here = {name: np.array(value) for name, value in VALUES.items()}
    with cluster() as (worker,), session(worker) as s:
        for _ in range(3):
            s.push({"w": np.ones(4, np.float32)})
            here["mean"] += 1
            s.assign({"mean": here["mean"]})
            here["mean"] += 1
            s.pull(out=here)
        assert here["mean"].tolist() == [3.0, 3.0]
    assert told(caplog, REPLACED) == 0


def test_values_that_get_gradients_or_stay_as_they_are_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    here = {name: np.array(value) for name, value in VALUES.items()}
    with cluster() as (worker,), session(worker) as s:
        for _ in range(3):
            s.push({"w": np.ones(4, np.float32)})
            here["w"] += 1
            s.pull(out=here)
    assert told(caplog, "has replaced") == 0


@pytest.mark.parametrize("hook", [True, False])
def test_a_variable_that_gets_its_first_gradient_in_a_later_push_is_not_told_of(
    caplog: pytest.LogCaptureFixture, hook: bool
) -> None:
    """After two pushes no gradient was noted any more: the steps of a generator, after some of a discriminator, were
    told as values without gradients. The variable without any gradient is still told of."""
    params = {"gen": np.zeros(3), "disc": np.zeros(3), "late": np.zeros(3), "mean": np.zeros(2)}
    here = {name: np.array(value) for name, value in params.items()}
    with cluster() as (worker,), session(worker, params) as s:
        if hook:
            s.watch_gradient_norms(lambda norm: None)
        for names in (["disc"], ["disc"], ["disc"], ["gen"], ["late", "gen"]):
            s.push({name: np.ones(3) for name in names})
            s.pull(out=here) if "gen" in names else s.pull()
        assert told(caplog, "has replaced") == 0
        here["mean"] += 1
        s.pull(out=here)
    assert told(caplog, REPLACED) == 1


def test_gradients_are_not_looked_at_once_all_have_come_or_no_pull_is_checked() -> None:
    """A push costs nothing for it then."""
    with cluster() as (worker,), session(worker, {"w": np.zeros(3), "v": np.zeros(3)}) as s:
        for name in "wwv":
            assert s._training.reports.watch is not None
            s.push({name: np.ones(3)})
        assert s._training.reports.watch is None
    with cluster() as (worker,), session(worker, {"w": np.zeros(3), "v": np.zeros(3)}) as s:
        for _ in range(2):
            s.push({"w": np.ones(3)})
        s.assign({"v": np.ones(3)})
        s.push({"w": np.ones(3)})
        assert s._training.reports.watch is None


@pytest.mark.parametrize("how", ["params", "pulled", "changed in place", "copy", "out"])
def test_values_pushed_as_gradients_are_told_once(caplog: pytest.LogCaptureFixture, how: str) -> None:
    params = {"w": np.arange(4, dtype=np.float32)}
    with cluster() as (worker,), session(worker, params) as s:
        given = s.pull() if how in ("pulled", "copy", "changed in place") else params
        given = s.pull(out=given) if how == "out" else given
        if how == "changed in place":
            given["w"] -= 0.1
        s.push({"w": given["w"].copy()} if how == "copy" else given)
        s.push(given)
    assert told(caplog, PUSHED) == 1


def test_gradients_are_not_taken_for_values(caplog: pytest.LogCaptureFixture) -> None:
    with cluster() as (worker,), session(worker, {"w": np.zeros(4, np.float32), "v": np.ones(2, np.float32)}) as s:
        s.push(s.pull() | {"v": np.zeros(2, np.float32)})
        s.push({"w": s.pull()["w"] * 0})  # all zero: as good a gradient as any
    assert told(caplog, PUSHED) == 0


@pytest.mark.parametrize("form", ["step", "view", "prefetch", "async", "some"])
def test_values_that_were_copied_and_pushed_are_told_after_every_form_of_pull(
    caplog: pytest.LogCaptureFixture, form: str
) -> None:
    with cluster() as (worker,), session(worker, {"w": np.arange(200, dtype=np.float32)}) as s:
        given: Any = {}
        if form == "step":
            given = s.step({"w": np.ones(200, np.float32)})
        elif form == "view":
            with s.view() as values:
                given = {"w": values["w"].copy()}
        elif form == "prefetch":
            given = next(iter(s.prefetch()))
        else:
            given = s.pull_async().result() if form == "async" else s.pull(names=["w"])
        own = {"w": given.pop("w").copy()}  # what was pulled is gone, as after load_state_dict
        s.push(own)
    assert told(caplog, PUSHED) == 1


def test_values_pushed_in_local_mode_are_told(caplog: pytest.LogCaptureFixture) -> None:
    params, sgd = {"w": np.arange(200, dtype=np.float32)}, dps.optim.SGD(0.5)
    with cluster() as (worker,), dps.Session(worker, params, optimizer=sgd, update="local:4") as s:
        s.push({"w": np.ones(200, np.float32)})
        s.push({"w": s.pull()["w"].copy()})
    assert told(caplog, PUSHED) == 1


@pytest.mark.parametrize("nothing", [{}, None, {"w": None}, {"w": dps.Rows([], np.zeros(0, np.float32))}])
def test_a_push_without_any_gradient_is_told_once(caplog: pytest.LogCaptureFixture, nothing: Any) -> None:
    with cluster() as (worker,), session(worker) as s:
        for _ in range(3):
            s.push({"w": np.ones(4, np.float32)})
        assert told(caplog, "had no gradient") == 0
        for _ in range(3):
            s.push(nothing)
        assert s.global_step == 6
    assert told(caplog, "a push had no gradient: it counts as a step, and nothing is learned") == 1


@pytest.mark.slow  # loads torch
def test_a_pull_fills_tensors_on_the_cpu_through_their_memory() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.float32)
    half = torch.zeros(3, dtype=torch.bfloat16)
    with cluster() as (worker,), session(worker, {**model.state_dict(), "half": half + 1}) as s:
        s.assign({"1.running_mean": torch.tensor([3.0, 4.0]), "1.num_batches_tracked": torch.tensor(5)})
        model.requires_grad_(True)
        out = {**dict(model.named_parameters()), **dict(model.named_buffers()), "half": half}
        model[0].weight.data.zero_()
        assert s.pull(out=out) is out
        assert model[1].running_mean.tolist() == [3.0, 4.0] and int(model[1].num_batches_tracked) == 5
        assert half.tolist() == [1.0] * 3 and bool(model[0].weight.any())
        with pytest.raises(ValueError, match=r"out has a tensor on meta for half; wanted one on the CPU"):
            s.pull(out={**out, "half": torch.zeros(3, dtype=torch.bfloat16, device="meta")})
        with pytest.raises(ValueError, match=r"out has float32 \(2,\) for half; wanted an array of bfloat16 \(3,\)"):
            s.pull(out={**out, "half": torch.zeros(2)})
