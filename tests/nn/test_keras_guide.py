"""The guide's Keras example, and a network whose batches do not divide, under every strategy: as plain SGD to 1e-6."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dps
from dps import strategy as strategies
from tests.nn.text import GUIDE, curve_of, data, losses_of, plain_losses, same_curve, two_layers

HERE = {
    "default": strategies.get_strategy, "one device": lambda: strategies.OneDevice("/cpu:0"),
    "mirrored": lambda: strategies.Mirrored(["/cpu:0", "/cpu:1", "/cpu:2"]),
    "central storage": lambda: strategies.CentralStorage(["/cpu:0", "/cpu:1"]),
}  # fmt: skip
ON_PS = {
    "async": lambda server: strategies.ParameterServer(server, "async"),
    "bounded": lambda server: strategies.ParameterServer(server, "bounded:1"),
    "sync": lambda server: strategies.ParameterServer(server, dps.SyncReplicas(1, 1)),
    "local": lambda server: strategies.Local(server, steps=3),
    "all-reduce": lambda server: strategies.MultiWorkerMirrored(server, ["/cpu:0", "/cpu:1"]),
}  # fmt: skip


@pytest.fixture(params=[*HERE, *ON_PS])
def strategy(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param in HERE:
        yield HERE[request.param]()
        return
    with dps.Server.create_local_server() as server, ON_PS[request.param](server) as made:
        yield made


@pytest.fixture(scope="module")
def wanted() -> Any:
    return curve_of(strategies.get_strategy())


def test_the_guides_losses(strategy: Any) -> None:
    losses = losses_of(strategy)
    np.testing.assert_allclose(losses, plain_losses(), atol=1e-6)
    np.testing.assert_allclose(losses, GUIDE, atol=1e-4)


def test_the_guides_losses_in_float32() -> None:
    np.testing.assert_allclose(losses_of(strategies.get_strategy(), "float32"), plain_losses(), atol=1e-6)


def test_batches_that_do_not_divide_give_the_curve_of_one_process(strategy: Any, wanted: Any) -> None:
    optimizer = dps.optim.SGD(0.1) if isinstance(strategy, strategies.Local) else None
    same_curve(curve_of(strategy, optimizer), wanted if optimizer is None else curve_of_default(optimizer))


def curve_of_default(optimizer: Any) -> Any:
    return curve_of(strategies.get_strategy(), optimizer)


def test_one_process_is_plain_momentum_without_dps(wanted: Any) -> None:
    x, y = data()
    model = two_layers()
    model.build((3,))
    w1, b1, w2, b2 = (np.array(w) for w in model.get_weights())
    moved = [np.zeros_like(w) for w in (w1, b1, w2, b2)]
    for epoch in range(3):
        order, total = np.random.default_rng([7, epoch]).permutation(len(x)), 0.0
        for start in range(0, len(x), 8):
            rows = order[start : start + 8]
            h = np.tanh(x[rows] @ w1 + b1)
            scores = h @ w2 + b2
            p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            total -= np.log(p[np.arange(len(rows)), y[rows]]).sum()
            d = p.copy()
            d[np.arange(len(rows)), y[rows]] -= 1
            d /= len(rows)
            dh = (d @ w2.T) * (1 - h * h)
            for v, w, g in zip(moved, (w1, b1, w2, b2), (x[rows].T @ dh, dh.sum(0), h.T @ d, d.sum(0)), strict=True):
                v[...] = 0.9 * v + g
                w -= 0.1 * v
        assert wanted[0]["loss"][epoch] == pytest.approx(total / len(x), abs=1e-6)
    for found, weight in zip(wanted[1], (w1, b1, w2, b2), strict=True):
        np.testing.assert_allclose(found, weight, atol=1e-6)


def in_sync(server: Any, workers: int, text: Any) -> Any:
    with strategies.ParameterServer(server, dps.SyncReplicas(workers, workers)) as strategy:
        return text(strategy)


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_in_sync_report_the_losses_of_all_also_under_faults(workers: int, wanted: Any) -> None:
    network = dps.sim.Network(loss=0.05, double=0.05, reorder=0.05)
    run = dps.simulate(in_sync, workers, losses_of, workers=workers, ps=2, seed=workers, network=network)
    assert not run.errors, run.errors
    for losses in run.results:
        np.testing.assert_allclose(losses, plain_losses(), atol=1e-6)
    run = dps.simulate(in_sync, workers, curve_of, workers=workers, ps=2, seed=workers, network=network)
    assert not run.errors, run.errors
    for found in run.results:
        same_curve(found, wanted)


def by_all_reduce(server: Any, text: Any) -> Any:
    with strategies.MultiWorkerMirrored(server, ["/cpu:0"]) as strategy:
        return text(strategy)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_without_a_ps_report_the_losses_of_all_also_under_faults(workers: int, wanted: Any) -> None:
    network = dps.sim.Network(loss=0.02, double=0.05, reorder=0.05)
    run = dps.simulate(by_all_reduce, curve_of, workers=workers, ps=0, seed=workers, network=network)
    assert not run.errors, run.errors
    for found in run.results:
        same_curve(found, wanted)


def test_workers_that_do_not_wait_train_each_on_its_own_data() -> None:
    def work(server: Any) -> Any:
        x, y = data(120)
        with strategies.ParameterServer(server, "async") as strategy:
            with strategy.scope():
                model = two_layers()
            model.compile(dps.optim.SGD(0.1), "sparse_categorical_crossentropy", ["accuracy"])
            own = dps.data.from_arrays(x, y).shard(2, server.task).batch(10)
            model.fit(own, epochs=5, verbose=0)
            return model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"]

    run = dps.simulate(work, workers=2, seed=1)
    assert not run.errors and min(run.results) > 0.7, (run.errors, run.results)


def with_a_lost_ps(server: Any, compression: Any) -> Any:
    x, y = data()
    settings = {"checkpoint_dir": "run", "hooks": [dps.CheckpointSaver(steps=3)], "compression": compression}
    with strategies.ParameterServer(server, dps.SyncReplicas(2, 2), **settings) as strategy:
        with strategy.scope():
            model = two_layers()
        model.compile(dps.optim.SGD(0.1), "sparse_categorical_crossentropy", ["accuracy"])
        return model.fit(x, y, epochs=6, batch_size=8, verbose=0).history["loss"]


@pytest.mark.parametrize("seed", range(4))
def test_a_lost_ps_undoes_steps_and_the_training_goes_on(seed: int) -> None:
    run = dps.simulate(
        with_a_lost_ps, None, workers=2, ps=2, seed=seed, compute=dps.sim.Compute(0.05, jitter=0.5),
        faults=[dps.sim.Kill(f"ps:{seed % 2}", at=0.9 + 0.3 * seed, restart_after=0.2)],
    )  # fmt: skip
    assert not run.errors, run.errors
    assert all(losses[-1] < losses[0] and len(losses) == 6 for losses in run.results)


def test_compressed_gradients_have_no_sums_over_workers() -> None:
    run = dps.simulate(with_a_lost_ps, dps.compress.Float16(), workers=2)
    assert not run.errors and run.results[0] != run.results[1]  # each reports its own part


def ends_early(server: Any, epochs: int) -> Any:
    with strategies.ParameterServer(server, dps.SyncReplicas(2, 2)) as strategy:
        with strategy.scope():
            model = dps.nn.Sequential([dps.nn.Dense(1)])
        model.compile("sgd", "mse")
        batches = [(np.ones((4, 1)), np.ones((4, 1)))] * (5 - 2 * server.task)
        return model.fit(batches, epochs=epochs, verbose=0).history["loss"]


def test_a_dataset_that_ends_early_on_one_worker_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    run = dps.simulate(ends_early, 2, workers=2)
    assert "epoch 1 here: its dataset ended early; give all workers as many batches" in run.errors["worker:0"]
    run = dps.simulate(ends_early, 1, workers=2)
    assert not run.errors and "made of 8 parts of batches instead of 10" in caplog.text
