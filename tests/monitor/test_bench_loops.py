"""The training loops of `dps bench`: every form trains as plain local training does, and figures are of one step."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dps.cli import main
from dps.monitor import bench, loops
from dps.monitor.loops import Computing, MeasuredLoop
from dps.monitor.rounds import Rounds
from dps.monitor.setting import SHARED_LANE, Setting

SHORT = Setting("loop", "inproc", "mlp", computing_ms=0.7, steps=3)


def test_gradients_are_those_of_the_loss() -> None:
    params = {name: values.astype(np.float64) for name, values in MeasuredLoop().params().items()}
    images = np.random.default_rng(3).random((8, 784))
    labels = np.arange(8)
    grads = loops._gradients(params, images, labels, None)

    def loss() -> float:
        hidden = np.maximum(images @ params["hidden_w"] + params["hidden_b"], 0)
        scores = hidden @ params["out_w"] + params["out_b"]
        return float((np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(8), labels]).mean())

    for name, place in (("hidden_w", (400, 7)), ("hidden_b", (7,)), ("out_w", (7, 2)), ("out_b", (2,))):
        kept = params[name][place]
        params[name][place] = kept + 1e-4
        above = loss()
        params[name][place] = kept - 1e-4
        below = loss()
        params[name][place] = kept
        assert grads[name][place] == pytest.approx((above - below) / 2e-4, rel=1e-4, abs=1e-8)


def test_given_arrays_are_filled_with_the_same_gradients() -> None:
    params, out = MeasuredLoop().params(), {name: np.empty(shape, np.float32) for name, shape in loops.SHAPES.items()}
    made = Computing(2).gradients(params, out)
    fresh = Computing(2).gradients(params)
    for name, array in out.items():
        assert made[name] is array
        assert np.array_equal(array, fresh[name])


@pytest.mark.parametrize("form", ["step", "pull and push", "in place"])
def test_a_loop_through_a_ps_trains_as_the_local_one_does(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SHORT.cluster() as server, SHORT.session(server) as session:
        calls = SHORT.loop.calls(session)
        calls[form]()
        found = session.pull()
        session.request_stop()
    params = SHORT.loop.params()
    monkeypatch.setattr(MeasuredLoop, "params", lambda self: params)
    SHORT.loop.local()()
    for name, values in params.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6)


def test_the_overlapped_loop_makes_all_its_pushes() -> None:
    with SHORT.cluster() as server, SHORT.session(server) as session:
        calls = SHORT.loop.calls(session)
        for done in (1, 2):
            calls["overlapped"]()
            assert session.global_step == done * SHORT.steps
        session.request_stop()


def test_figures_are_of_one_step_of_a_call_of_several() -> None:
    setting = Setting("loop", "tcp", "mlp", workers=2, computing_ms=8.0, batches=10, steps=4)
    found = Rounds([1.0], [{"loop step": [0.08], "local training": [0.04]}], [{"loop step": 10.0}])
    row = bench._row(setting, "loop step", SHARED_LANE, found)
    assert row["p50_us"] == pytest.approx(20_000)
    assert row["limit_p50_us"] == pytest.approx(10_000)
    assert row["per_s"] == pytest.approx(1 / 0.02 + 10 * 4)
    assert row["of_limit"] == pytest.approx(90 / 100)
    assert (row["computing_ms"], row["nbytes"]) == (8.0, 2 * 407_080)


def test_a_longer_step_computes_more_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "seconds", lambda work, at_least_s: [0.001])
    assert [(made.batches, made.steps) for made in map(loops.loop_of, (0.0007, 0.008, 0.02))] == [
        (1, 128), (8, 16), (20, 8),
    ]  # fmt: skip


def test_loops_are_measured_in_all_forms(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "loop", lambda computing_ms, transport, ps, workers: SHORT)
    flags = ["--works", "loop", "--computing", "0.7", "--transports", "inproc", "--rounds", "1", "--seconds", "0.01"]
    assert main(["bench", "--json", *flags]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["work"] + " in place" * row["in_place"] for row in rows] == [f"loop {form}" for form in loops.FORMS]
    assert all(row["limit"] == loops.LOCAL and row["of_limit"] > 0 for row in rows)
