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


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_guides_loop_prints_the_guides_losses_on_each_worker(workers: int) -> None:
    run = dps.simulate(in_sync, workers, guide_params(), guide_batches(5 * workers), workers=workers)
    assert not run.errors, run.errors
    for losses, _ in run.results:
        np.testing.assert_allclose(losses, GUIDE, atol=1e-6)


@pytest.mark.thinned
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
    assert not run.errors, run.errors
    wanted, end = plain(params(), dataset)
    for losses, values in run.results:
        np.testing.assert_allclose(losses, wanted, atol=1e-6)
        np.testing.assert_allclose(values["kernel"], end["kernel"], atol=1e-6)


def calls(server: Any) -> Any:
    """What each worker gets of values that differ."""
    with ParameterServer(server, dps.SyncReplicas(3, 3)) as strategy:
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
        task = float(server.task)
        found = [strategy.reduce("sum", {"a": task, "b": np.array([1, server.task])})]
        variables.apply_gradients({"w": np.ones(1)})
        found.append(strategy.reduce("MEAN", np.arange(1.0 + task), axis=0))
        found.append(strategy.reduce("max", task))
        found.append(strategy.gather(np.full(server.task, task), 0))
        variables.apply_gradients({"w": np.ones(1)})

        def step() -> Any:
            context = dps.strategy.get_replica_context()
            assert context is not None
            return context.all_reduce("sum", task), context.all_gather(np.full(1, task))

        found += strategy.run(step)
        assert strategy.local_results(task) == (task,)
        return found


@pytest.mark.parametrize("ps", [1, 2])
def test_values_are_reduced_and_gathered_over_all_workers(ps: int) -> None:
    run = dps.simulate(calls, workers=3, ps=ps)
    assert not run.errors, run.errors
    for sums, mean, largest, rows, total, ones in run.results:
        assert sums["a"] == 3 and sums["b"].tolist() == [3, 3]
        assert mean == pytest.approx(4 / 6) and largest == 2 and rows.tolist() == [1, 2, 2]
        assert total == 3 and ones.tolist() == [0, 1, 2]


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


def made_of(server: Any, grads: Any, workers: int) -> Any:
    """The values after one step under SGD(1), to which each worker brings what `grads` says of its task."""
    with ParameterServer(server, dps.SyncReplicas(workers, workers)) as strategy:
        with strategy.scope():
            first = {"w": np.zeros((2, 2)), "b": np.zeros(1)}
            variables = strategy.variables(first, optimizer=dps.optim.SGD(1.0))
        strategy.run(lambda: variables.apply_gradients(grads(server.task)))
        return variables.read()


@pytest.mark.parametrize("ps", [1, 2])
def test_rows_and_missing_gradients_are_summed_over_those_that_have_them(ps: int) -> None:
    grads = [
        {"w": dps.Rows([1], -np.ones((1, 2))), "b": -np.ones(1)},
        {"w": dps.Rows([0, 1], -2 * np.ones((2, 2))), "b": None},
        {"w": -4 * np.ones((2, 2))},
    ]
    run = dps.simulate(made_of, grads.__getitem__, 3, workers=3, ps=ps)
    assert not run.errors, run.errors
    for values in run.results:
        assert values["w"][:, 0].tolist() == [6, 7] and values["b"].tolist() == [1]


def summed(server: Any, parts: Any, steps: int) -> Any:
    """The sums of the workers' parts, step by step; each worker has its own size of gradients in float32."""
    with dps.Session(
        server, {"w": np.zeros(3, np.float32)}, optimizer=dps.optim.SGD(1.0), update=dps.SyncReplicas(reduction="sum"),
    ) as session:  # fmt: skip
        found = []
        for step in range(steps):
            before = session.pull()["w"]
            session.push({"w": before - parts[step][server.task]})  # the others' are minus their part
            found.append(session.pull()["w"].copy())
        return found


@pytest.mark.parametrize("seed", range(6))
def test_a_sum_has_the_bits_of_one_in_task_order_whatever_the_timing(seed: int) -> None:
    draw = np.random.default_rng(seed)
    parts = (draw.normal(size=(4, 3, 3)) * 10.0 ** draw.integers(-6, 6, (4, 3, 3))).astype(np.float32)
    run = dps.simulate(
        summed, parts, 4, workers=3, ps=1 + seed % 2, seed=seed, compute=dps.sim.Compute(0.05, jitter=0.9),
        network=dps.sim.Network(loss=0.05, double=0.05, reorder=0.1),
    )  # fmt: skip
    assert not run.errors, run.errors
    w = np.zeros(3, np.float32)
    for step in range(4):
        gradients = [w - part for part in parts[step]]
        w = w - ((gradients[0] + gradients[1]) + gradients[2])
        for found in run.results:
            assert found[step].tobytes() == w.tobytes()


def leaves(server: Any) -> Any:
    """Worker n brings n + 1 to each step; worker 2 leaves after two steps, the others after four."""
    with ParameterServer(server, dps.SyncReplicas(3, 3)) as strategy:
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
        for _ in range(2 if server.task == 2 else 4):
            variables.apply_gradients({"w": np.full(1, -server.task - 1.0)})
        return float(variables.read()["w"][0])


def test_a_worker_that_has_left_adds_nothing() -> None:
    run = dps.simulate(leaves, workers=3)
    assert not run.errors, run.errors
    assert run.results == [18.0, 18.0, 12.0]  # twice 1 + 2 + 3, and twice 1 + 2


def merged(server: Any) -> Any:
    """A step that applies its gradients in a merge_call, as an optimizer of TensorFlow does."""
    with ParameterServer(server, dps.SyncReplicas(2, 2)) as strategy:
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
        seen: list[Any] = []

        def merge(strategy: Any, gradient: Any) -> Any:
            assert dps.strategy.in_cross_replica_context()
            seen.append(float(strategy.reduce("sum", gradient)[0]))
            return variables.apply_gradients({"w": gradient}).step

        def step() -> Any:
            context = dps.strategy.get_replica_context()
            assert context is not None
            return context.merge_call(merge, (np.full(1, -1.0 - server.task),))

        return strategy.run(step), seen, float(variables.read()["w"][0])


def test_in_a_merge_call_values_and_gradients_are_summed_over_all() -> None:
    run = dps.simulate(merged, workers=2)
    assert run.results == [(1, [-3.0], 3.0), (1, [-3.0], 3.0)], run.errors


@pytest.mark.parametrize("mode", ["sync", "sync:sum"])
def test_a_strategy_without_update_mode_is_refused_in_a_synchronous_run(mode: str) -> None:
    def work(server: Any) -> None:
        words = "the run has SyncReplicas.*say update='sync' here"
        with ParameterServer(server) as strategy, strategy.scope(), pytest.raises(ConfigError, match=words):
            strategy.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(0.1))

    assert not dps.simulate(work, workers=1, update=mode).errors


def test_a_ps_that_takes_the_mean_does_not_agree_with_a_strategy() -> None:
    run = dps.simulate(made_of, lambda task: {}, 1, workers=1, update="sync")
    error = run.errors["worker:0"]
    assert "wants SyncReplicas(replicas_to_aggregate=1, total_num_replicas=1, reduction=sum)" in error
    assert "has SyncReplicas()" in error


def test_a_session_refuses_a_value_of_each_replica() -> None:
    params = {"seen": [dps.Variable(np.zeros(1), synchronization="on_read", aggregation="sum")]}
    words = r"^seen/0: synchronization='on_read' is a value of each replica"
    with dps.Server.create_local_server() as server, pytest.raises(ConfigError, match=words):
        dps.Session(server, params)


@pytest.mark.parametrize("update", [dps.SyncReplicas(), dps.SyncReplicas(2, 3)])
def test_a_number_of_workers_that_is_not_known_is_asked_for(update: Any) -> None:
    with pytest.raises(ConfigError, match="is not known from an address|does not sum one gradient"):
        ParameterServer("127.0.0.1:1", update)


def by_name(server: Any, update: str = "sync") -> Any:
    with ParameterServer(server, update) as strategy:
        return strategy.num_replicas_in_sync, strategy.first_replica, train(strategy, guide_params(), guide_batches(6))


@pytest.mark.parametrize("told", [None, "sync:sum"])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_chief_says_how_many_workers_are_in_sync(workers: int, told: Any) -> None:
    run = dps.simulate(by_name, workers=workers, update=told)
    assert not run.errors, run.errors
    for task, (replicas, first, (losses, _)) in enumerate(run.results):
        assert (replicas, first) == (workers, task)
        np.testing.assert_allclose(losses, GUIDE, atol=1e-6)


def test_a_local_server_is_one_worker_in_sync() -> None:
    with dps.Server.create_local_server() as server, ParameterServer(server, "sync") as strategy:
        assert strategy.num_replicas_in_sync == 1 and strategy.reduce("sum", 3.0) == 3.0


def test_a_run_that_takes_the_mean_says_what_both_sides_are_called() -> None:
    run = dps.simulate(by_name, workers=1, update="sync")
    words = "wants SyncReplicas(reduction=sum) ('sync:sum'), the chief has SyncReplicas() ('sync'); leave one of them"
    assert words in run.errors["worker:0"], run.errors


def test_an_address_does_not_say_which_worker_this_is() -> None:
    strategy = ParameterServer("127.0.0.1:1", dps.SyncReplicas(2, 2))
    with pytest.raises(ConfigError, match="does not say which of the 2 workers this is; give this process's"):
        next(iter(strategy.distribute_dataset([np.ones(4)])))


def test_a_chief_that_takes_any_number_of_workers_says_so() -> None:
    chief = dps.Server(None, "chief", 0, bind="127.0.0.1:0", ps=1, owned=True)
    with chief, dps.Server(None, "worker", 0, chief=chief.address) as worker:
        words = rf"not known to the chief at {chief.address}; start it with --workers N, or say update="
        with pytest.raises(ConfigError, match=words):
            ParameterServer(worker, "sync")


def reads_in_each_step(server: Any) -> Any:
    """What steps that only read find, while another session pushes between them."""
    first, sgd = {"w": np.zeros(1)}, dps.optim.SGD(1.0)
    with ParameterServer(server) as strategy, dps.Session(server, first, optimizer=sgd) as other:
        with strategy.scope():
            variables = strategy.variables(first, optimizer=sgd)
        found = []
        for _ in range(3):
            found.append(strategy.run(lambda: (variables.read()["w"][0], variables.read()["w"][0])))
            other.push({"w": -np.ones(1)})
        return found


def test_a_step_that_only_reads_sees_the_values_of_its_time() -> None:
    assert dps.simulate(reads_in_each_step, workers=1).results == [[(0, 0), (1, 1), (2, 2)]]
