"""ParameterServer: the guide's losses with 1, 2 and 4 workers in sync, also under faults, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.strategy import ParameterServer
from tests.strategy.text import GUIDE, batches, guide_batches, guide_params, params, plain, train


def in_sync(server: Any, workers: int, first: Any, dataset: list[Any]) -> Any:
    with ParameterServer(server, dps.SyncReplicas(workers, workers)) as strategy:
        assert strategy.num_replicas_in_sync == workers
        return train(strategy, first, dataset)


def losses_of(run: Any) -> Any:
    assert not run.errors, run.errors
    return np.sum([losses for losses, _ in run.results], axis=0)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_guides_loop_gives_the_guides_losses(workers: int) -> None:
    run = dps.simulate(in_sync, workers, guide_params(), guide_batches(5 * workers), workers=workers)
    np.testing.assert_allclose(losses_of(run), GUIDE, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("workers", [2, 3])
def test_the_curve_is_that_of_plain_sgd_also_with_uneven_parts_and_lost_messages(workers: int, seed: int) -> None:
    dataset = batches(7, 8)
    faults = [dps.sim.Pause("worker:1", at=0.2, seconds=0.5)]
    network = dps.sim.Network(loss=0.05, double=0.05, reorder=0.05)
    run = dps.simulate(
        in_sync, workers, params(), dataset, workers=workers, ps=2, seed=seed, network=network, faults=faults,
        compute=dps.sim.Compute(seconds=0.05, jitter=0.5),
    )  # fmt: skip
    wanted, end = plain(params(), dataset)
    np.testing.assert_allclose(losses_of(run), wanted, atol=1e-6)
    for _, values in run.results:
        np.testing.assert_allclose(values["kernel"], end["kernel"], atol=1e-6)


@pytest.mark.parametrize("update", [None, "async", "bounded:1"])
def test_other_modes_have_one_replica_and_give_the_guides_losses(update: Any) -> None:
    with dps.Server.create_local_server() as server, ParameterServer(server, update) as strategy:
        assert strategy.num_replicas_in_sync == 1
        losses, _ = train(strategy, guide_params(), guide_batches(5))
    np.testing.assert_allclose(losses, GUIDE, atol=1e-6)


def test_what_a_ps_cannot_keep_is_refused_with_the_reason() -> None:
    with dps.Server.create_local_server() as server, ParameterServer(server) as strategy, strategy.scope():
        counted = {"n": dps.Variable(np.zeros(1), synchronization="on_read", aggregation="sum")}
        with pytest.raises(ConfigError, match="n: synchronization='on_read' is a value of each replica"):
            strategy.variables(counted, optimizer=dps.optim.SGD(0.1))
        variables = strategy.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(0.1))
        with pytest.raises(ConfigError, match=r"a second time; .*nest them"):
            strategy.variables({"v": np.zeros(2)}, optimizer=dps.optim.SGD(0.1))
        variables.assign({"w": np.ones(2)})
        assert variables.read()["w"].tolist() == [1, 1]


def test_gradients_that_a_synchronous_mean_would_change_are_refused() -> None:
    def work(server: Any) -> None:
        with ParameterServer(server, dps.SyncReplicas(2, 2)) as strategy:
            with strategy.scope():
                variables = strategy.variables({"w": np.zeros((2, 2))}, optimizer=dps.optim.SGD(0.1))
            for grads in ({"w": dps.Rows([0], np.ones((1, 2)))}, {"w": None}):
                with pytest.raises(ConfigError, match="of rows|no gradient for w"):
                    variables.apply_gradients(grads)
            context = dps.strategy.get_replica_context
            with pytest.raises(ConfigError, match="in other workers"):
                strategy.run(lambda: context().all_reduce("sum", 1.0))  # type: ignore[union-attr]

    assert not dps.simulate(work, workers=2).errors


@pytest.mark.parametrize("update", [dps.SyncReplicas(), dps.SyncReplicas(2, 3)])
def test_a_number_of_workers_that_is_not_known_is_asked_for(update: Any) -> None:
    with pytest.raises(ConfigError, match="is not known here|does not sum one gradient"):
        ParameterServer("127.0.0.1:1", update)
