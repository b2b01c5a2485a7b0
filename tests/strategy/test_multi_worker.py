"""MultiWorkerMirrored: the guide's losses with 1, 2 and 4 replicas without a ps, lost workers, checkpoints, bad use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.strategy import MultiWorkerMirrored
from tests.strategy.text import GUIDE, batches, guide_batches, guide_params, params, plain, train

ROUGH = dps.sim.Network(loss=0.05, double=0.05, reorder=0.05)

CPU = ["/cpu:0"]


def cpus(count: int) -> list[str]:
    return [f"/cpu:{index}" for index in range(count)]


def training(server: Any, replicas: int, first: Any, dataset: list[Any], settings: dict[str, Any]) -> Any:
    with MultiWorkerMirrored(server, cpus(replicas), **settings) as strategy:
        return train(strategy, first, dataset)


def simulated(workers: int, work: Any, *args: Any, **settings: Any) -> Any:
    return dps.simulate(work, *args, workers=workers, **{"ps": 0, **settings})


@pytest.mark.thinned
@pytest.mark.parametrize("algorithm", ["auto", "ring", "tree", "direct", "all", "ps", sum])
@pytest.mark.parametrize(("workers", "replicas"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
def test_the_guides_loop_gives_the_guides_losses(workers: int, replicas: int, algorithm: Any) -> None:
    dataset, settings = guide_batches(5 * workers * replicas), {"cross_device_ops": algorithm}
    ps = int(algorithm == "ps")
    run = simulated(workers, training, replicas, guide_params(), dataset, settings, ps=ps)
    assert not run.errors, run.errors
    assert run.exit_codes.pop("ps:0", 0) == 0
    for losses, _ in run.results:
        np.testing.assert_allclose(losses, GUIDE, atol=1e-6)
    assert run.exit_codes == {"chief": 0, **{f"worker:{task}": 0 for task in range(workers)}}


@pytest.mark.thinned
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [8, 7, 3])
def test_the_curve_is_that_of_plain_sgd_also_with_uneven_parts_and_lost_messages(size: int, seed: int) -> None:
    dataset, shared = batches(size, 8), bool(seed % 2)
    run = simulated(4, training, 1, params(), dataset, {}, seed=seed, network=ROUGH, shared_memory=shared)
    assert not run.errors, run.errors
    wanted, end = plain(params(), dataset)
    for losses, values in run.results:
        np.testing.assert_allclose(losses, wanted, atol=1e-6)
        np.testing.assert_allclose(values["kernel"], end["kernel"], atol=1e-6)
        assert values["kernel"].tobytes() == run.results[0][1]["kernel"].tobytes()


class Recorded:
    """An all-reduce of one's own, which notes what it gets."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def __call__(self, arrays: Any) -> Any:
        self.got.append([array.tolist() for array in arrays])
        return np.sum(arrays, axis=0)


def test_ones_own_gets_the_workers_arrays_in_their_order_and_only_sums() -> None:
    made = Recorded()

    def work(server: Any) -> Any:
        with MultiWorkerMirrored(server, CPU, cross_device_ops=made) as strategy:
            total = strategy.reduce("sum", np.array([1.0, server.task]))
            return total.tolist(), float(strategy.reduce("max", float(server.task)))

    run = simulated(2, work)
    assert run.results == [([2.0, 1.0], 1.0)] * 2 and made.got == [[[1.0, 0.0], [1.0, 1.0]]] * 2


# -- what all workers share ---------------------------------------------------------------------------------------


def calls(server: Any) -> Any:
    with MultiWorkerMirrored(server, cpus(2)) as strategy:
        task = server.task

        def step(x: Any) -> Any:
            context = dps.strategy.get_replica_context()
            assert context is not None
            sums = context.all_reduce("sum", {"x": x, "n": 1})
            return sums["x"], sums["n"], context.all_gather(np.full(context.replica_id + task, float(task)))

        x = dps.strategy.PerReplica([np.array([1.0, task]), np.array([2.0, task])])
        total, count, rows = strategy.run(step, (x,))
        assert total.values[0].tolist() == [6.0, 2.0] and count.values == (4, 4)
        assert rows.values[1].tolist() == [0, 1, 1, 1]
        assert strategy.num_replicas_in_sync == 4 and strategy.first_replica == 2 * task
        mean = strategy.reduce("mean", dps.strategy.PerReplica([np.arange(3.0), np.arange(1.0 + task)]), axis=0)
        largest = strategy.reduce("MAX", dps.strategy.PerReplica([task, 5 * task]))
        gathered = strategy.gather(dps.strategy.PerReplica([np.array([task]), np.array([10])]), 0)
        assert largest == 5 and gathered.tolist() == [0, 10, 1, 10]
        return mean


def test_replicas_of_all_workers_reduce_and_gather() -> None:
    run = simulated(2, calls)
    assert not run.errors, run.errors
    assert run.results == [pytest.approx(7 / 9)] * 2


def narrow(server: Any) -> Any:
    with MultiWorkerMirrored(server, cpus(2)) as strategy:

        def reduced(op: str, value: Any) -> Any:
            found = strategy.reduce(op, dps.strategy.PerReplica([value] * 2))
            return float(found), found.dtype.name

        half = np.float16(40_000)
        return [reduced("mean", each) for each in (np.True_, np.uint8(200), half)] + [
            reduced("sum", each) for each in (np.True_, np.uint8(200), np.float16(0.1))
        ]


def test_bools_small_integers_and_halves_of_all_workers_are_added_up_in_wider_dtypes() -> None:
    """The mean of four True was 0.25, that of four 200 in uint8 was 8, and that of halves overflowed."""
    run = simulated(2, narrow)
    assert not run.errors, run.errors
    of_four = float(np.float16(4 * np.float32(np.float16(0.1))))
    means = [(1.0, "float64"), (200.0, "float64"), (40_000.0, "float16")]
    assert run.results == [[*means, (4.0, "int64"), (800.0, "uint64"), (of_four, "float16")]] * 2


def uneven(server: Any) -> Any:
    """Worker n has n + 2 batches of two examples, and two replicas: it sums the examples of all."""
    with MultiWorkerMirrored(server, cpus(2)) as strategy:
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros(())}, optimizer=dps.optim.SGD(1.0))

        def dataset(context: Any) -> Any:
            return [{"x": np.full(2, 1.0)} for _ in range(context.input_pipeline_id + 2)]

        def step(batch: Any) -> None:
            variables.apply_gradients({"w": np.asarray(-batch["x"].sum())})

        steps = 0
        for batch in strategy.distribute_datasets_from_function(dataset):
            strategy.run(step, (batch,))
            steps += 1
        return steps, float(variables.read()["w"])


def test_an_uneven_end_of_datasets_of_each_worker_gives_empty_batches() -> None:
    run = simulated(3, uneven)
    assert run.results == [(2, 18.0)] * 3, run.errors  # 2 + 3 + 4 batches of two ones


def largest(server: Any, lengths: list[int], dtype: str) -> Any:
    """The largest element of all workers, of which each has so many."""
    with MultiWorkerMirrored(server, cpus(1), timeout=5) as strategy:
        return strategy.reduce("max", -np.arange(1, 1 + lengths[server.task]).astype(dtype), axis=0)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_worker_without_elements_does_not_hinder_the_largest_of_all(dtype: str) -> None:
    """At an uneven end one worker raised that no replica has an element, and the others waited for it."""
    run = simulated(2, largest, [0, 3], dtype)
    assert run.results == [-1, -1] and run.results[0].dtype == dtype, run.errors
    none = simulated(2, largest, [0, 0], dtype)
    assert all("no replica has an element along the axis" in none.errors[f"worker:{task}"] for task in range(2))


def pipelines_of_uneven_workers(server: Any) -> Any:
    """What a dataset is told in a worker that has as many replicas as its number says."""
    told: list[Any] = []

    def dataset(context: Any) -> Any:
        told.append(context)
        return [np.ones(1)]

    with MultiWorkerMirrored(server, cpus(server.task + 1)) as strategy:
        list(strategy.distribute_datasets_from_function(dataset))
    return told


def test_each_worker_reads_a_part_of_its_own_whatever_its_number_of_replicas() -> None:
    run = simulated(3, pipelines_of_uneven_workers)
    assert run.results == [[dps.strategy.InputContext(3, task, 6)] for task in range(3)], run.errors


def counting(server: Any) -> Any:
    with MultiWorkerMirrored(server, CPU) as strategy:
        seen = dps.Variable(np.array(0), synchronization="on_read", aggregation="sum")
        with strategy.scope():
            counts = strategy.variables({"seen": seen, "mean": dps.Variable(np.zeros(1), aggregation="mean",
                                                                              trainable=False)})  # fmt: skip

        def count(x: Any) -> None:
            counts.assign({"seen": counts.read()["seen"] + len(x), "mean": np.array([float(len(x))])})

        for batch in strategy.distribute_dataset([np.arange(5)] * 3):
            strategy.run(count, (batch,))
        return int(counts.read()["seen"]), float(counts.read()["mean"][0])


def test_metrics_and_statistics_are_those_of_all_workers() -> None:
    run = simulated(2, counting)
    assert not run.errors and run.results == [(15, 2.5)] * 2, run.errors


def assigned_outside(server: Any, same: bool) -> Any:
    """What each worker reads after it has set values of its own, outside of steps; `same`: of the same variables."""
    with MultiWorkerMirrored(server, cpus(2), timeout=5) as strategy:
        seen = dps.Variable(np.array(0), synchronization="on_read", aggregation="sum")
        with strategy.scope():
            variables = strategy.variables({"a": np.zeros(2), "b": np.zeros(2), "seen": seen}, dps.optim.SGD(1.0))
        name = "a" if same or not server.task else "b"
        variables.assign({name: np.full(2, 1.0 + server.task), "seen": 7})
        values = variables.read()
        return values["a"].tolist(), int(values["seen"])


def test_values_that_are_set_outside_of_steps_are_those_of_the_first_worker() -> None:
    run = simulated(3, assigned_outside, True)
    assert run.results == [([1.0, 1.0], 7)] * 3, run.errors


def test_workers_that_set_different_variables_are_told() -> None:
    run = simulated(2, assigned_outside, False)
    assert "assign: worker:0 sets a, seen, worker:1 sets b, seen; all workers must set the same" in str(run.errors)


def made_of(server: Any, grads: Any, dtype: str) -> Any:
    """The values after two steps under SGD(1), to which each worker brings what `grads` says of its task."""
    with MultiWorkerMirrored(server, CPU) as strategy:
        with strategy.scope():
            first = {"w": np.zeros((2, 2), dtype), "b": np.zeros(1, dtype), "c": np.zeros(1)}
            variables = strategy.variables(first, optimizer=dps.optim.Momentum(1.0, momentum=0.5))
        strategy.run(lambda: variables.apply_gradients(grads(server.task)))
        strategy.run(lambda: variables.apply_gradients({"c": np.ones(1) if server.task == 1 else None}))
        return variables.read()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_and_missing_gradients_are_summed_over_those_that_have_them(dtype: str) -> None:
    grads = [
        {"w": dps.Rows([1], -np.ones((1, 2), dtype)), "b": -np.ones(1, dtype)},
        {"w": dps.Rows([0, 1], -2 * np.ones((2, 2), dtype)), "b": None},
        {"w": -4 * np.ones((2, 2), dtype)},
    ]
    run = simulated(3, made_of, grads.__getitem__, dtype)
    assert not run.errors, run.errors
    for values in run.results:  # b and w had no gradient in the second step, so their velocity has not moved them
        assert values["w"][:, 0].tolist() == [6, 7] and values["b"].tolist() == [1] and values["c"].tolist() == [-1]


def rows_alone(server: Any) -> Any:
    with MultiWorkerMirrored(server, CPU) as strategy:
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros((4, 1))}, optimizer=dps.optim.Adagrad(1.0))
        strategy.run(lambda: variables.apply_gradients({"w": dps.Rows([server.task, 2], np.ones((2, 1)))}))
        return variables.read()["w"][:, 0].tolist()


def test_rows_of_a_table_leave_other_rows_alone() -> None:
    run = simulated(2, rows_alone)
    assert not run.errors and run.results[0] == run.results[1] and run.results[0][3] == 0
    assert run.results[0][2] == pytest.approx(-2 / np.sqrt(4.1))


def first_values(server: Any) -> Any:
    with MultiWorkerMirrored(server, CPU) as strategy, strategy.scope():
        return strategy.variables({"w": np.full(3, float(server.task))}, optimizer=dps.optim.SGD(1.0)).read()["w"]


def test_values_begin_as_the_first_worker_has_them() -> None:
    run = simulated(3, first_values)
    assert not run.errors and all(found.tolist() == [0, 0, 0] for found in run.results)


# -- lost workers ---------------------------------------------------------------------------------------------------


def long_training(server: Any, on_loss: str) -> Any:
    with MultiWorkerMirrored(server, CPU, on_loss=on_loss) as strategy:
        losses, values = train(strategy, params(), batches(6, 40))
        return len(losses), values["kernel"].tobytes(), strategy.num_replicas_in_sync


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_worker_is_named_and_the_others_go_on(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    faults = [dps.sim.Kill("worker:1", at=0.08)]
    network = dps.sim.Network(latency_s=1e-3)
    run = simulated(3, long_training, "continue", seed=seed, faults=faults, network=network)
    assert not run.errors, run.errors
    assert run.results[0] == run.results[2] and run.results[0][::2] == (40, 2)
    assert "worker:1 was silent for" in caplog.text and "goes on with worker:0, worker:2" in caplog.text
    assert run.exit_codes["worker:0"] == run.exit_codes["chief"] == 0


def test_a_killed_worker_ends_the_group_if_it_is_to() -> None:
    faults, network = [dps.sim.Kill("worker:1", at=0.08)], dps.sim.Network(latency_s=1e-3)
    run = simulated(3, long_training, "end", faults=faults, network=network)
    for name in ("worker:0", "worker:2"):
        assert "TaskLost: worker:1 was silent for" in run.errors[name] and "on_loss='end'" in run.errors[name]


@pytest.mark.parametrize("restart_after", [0.5, None])
def test_a_ps_that_sums_and_is_killed_is_waited_for_by_name(restart_after: Any) -> None:
    """It goes on with the ps that comes back: nothing of the sums is kept there."""

    def work(server: Any) -> Any:
        with MultiWorkerMirrored(server, CPU, cross_device_ops="ps", timeout=10.0) as strategy:
            losses, values = train(strategy, params(), batches(6, 40))
            return values["kernel"].tobytes(), np.allclose(losses, plain(params(), batches(6, 40))[0])

    faults, network = [dps.sim.Kill("ps:0", 0.08, restart_after)], dps.sim.Network(latency_s=1e-3)
    run = simulated(2, work, ps=1, faults=faults, network=network, restarts=0)
    if restart_after:
        assert not run.errors and run.results[0] == run.results[1] and run.results[0][1]
    for error in run.errors.values():
        assert "DeadlineExceeded" in error and "the group sums through a ps, and waits for ps:0 (" in error
    assert len(run.errors) == (0 if restart_after else 2)


def hangs(server: Any) -> Any:
    with MultiWorkerMirrored(server, CPU, timeout=5.0) as strategy:
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
        if server.task == 1:
            server.runtime.sleep(30.0)
        variables.apply_gradients({"w": np.ones(1)})


def test_a_worker_that_hangs_is_named_at_the_deadline() -> None:
    run = simulated(3, hangs)
    for name in ("worker:0", "worker:2"):
        assert "DeadlineExceeded" in run.errors[name] and "worker:1 has not come to it" in run.errors[name]


# -- checkpoints ----------------------------------------------------------------------------------------------------

ADAM = dps.optim.Adam(0.1)


def steps(server: Any, count: int, folder: str) -> Any:
    with MultiWorkerMirrored(server, CPU, checkpoint_dir=folder, save_steps=2) as strategy:
        with strategy.scope():
            variables = strategy.variables({"w": np.ones((2, 2)), "b": np.zeros(())}, optimizer=ADAM)
        for _ in range(count):
            variables.apply_gradients({"w": np.full((2, 2), 0.1), "b": np.ones(())})
        return variables.step, variables.read()


def steps_on_ps(server: Any, count: int, folder: str) -> Any:
    first, mode = {"w": np.ones((2, 2)), "b": np.zeros(())}, dps.SyncReplicas(reduction="sum")
    with dps.Session(server, first, optimizer=ADAM, update=mode, checkpoint_dir=folder) as session:
        for _ in range(count):
            session.push({"w": np.full((2, 2), 0.1), "b": np.ones(())})
        return session.global_step, session.pull()


def same(found: Any, wanted: Any) -> None:
    assert found[0] == wanted[0]
    for name in ("w", "b"):
        np.testing.assert_allclose(found[1][name], wanted[1][name], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("first", "second"), [(steps, steps), (steps, steps_on_ps), (steps_on_ps, steps)])
def test_checkpoints_restore_under_all_reduce_and_on_ps(first: Any, second: Any, tmp_path: Any) -> None:
    whole, disk = str(tmp_path / "whole"), str(tmp_path / "run")
    wanted = dps.simulate(steps_on_ps, 7, whole, workers=2, storage=real())
    storage = real()
    for work, count in ((first, 3), (second, 4)):
        run = dps.simulate(work, count, disk, ps=int(work is steps_on_ps), workers=2, storage=storage)
        assert not run.errors, run.errors
    for found in run.results:
        same(found, wanted.results[0])


def counted(server: Any, replicas: int, batches: int, folder: str) -> Any:
    """Counts the examples of all replicas in every step, and the mean of the replicas' numbers."""
    with MultiWorkerMirrored(server, cpus(replicas), checkpoint_dir=folder, save_steps=1, timeout=5) as strategy:
        settings = {"synchronization": "on_read"}
        seen = {name: dps.Variable(np.array(0.0), aggregation=name, **settings) for name in ("sum", "mean")}
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros(1), **seen}, dps.optim.SGD(1.0))
        first = {name: float(variables.read()[name]) for name in seen}

        def step(x: Any) -> None:
            values = variables.read()
            variables.assign({"sum": values["sum"] + len(x), "mean": values["mean"] + len(x)})
            variables.apply_gradients({"w": np.ones(1)})

        for batch in strategy.distribute_dataset([np.arange(10)] * batches):
            strategy.run(step, (batch,))
        return first, {name: float(variables.read()[name]) for name in seen}


@pytest.mark.parametrize(("workers", "replicas"), [(1, 1), (1, 2), (3, 1), (2, 2)])
def test_a_restored_sum_is_what_was_saved_on_any_number_of_replicas(workers: int, replicas: int, tmp_path: Any) -> None:
    """The value of the first replica was saved, and every replica got it."""
    storage = real()
    run = simulated(2, counted, 2, 3, str(tmp_path), storage=storage)
    assert run.results == [({"sum": 0.0, "mean": 0.0}, {"sum": 30.0, "mean": 7.5})] * 2, run.errors
    run = simulated(workers, counted, replicas, 1, str(tmp_path), storage=storage)
    end = pytest.approx({"sum": 40.0, "mean": 7.5 + 10 / (workers * replicas)})
    assert run.results == [({"sum": 30.0, "mean": 7.5}, end)] * workers, run.errors


def fails_in_one(server: Any, folder: str) -> Any:
    """Worker 1 fails between two steps; the others go on without it."""
    with MultiWorkerMirrored(server, CPU, checkpoint_dir=folder, timeout=5) as strategy, strategy.scope():
        seen = dps.Variable(np.array(1), synchronization="on_read", aggregation="sum")
        variables = strategy.variables({"w": np.zeros(1), "seen": seen}, dps.optim.SGD(1.0))
        for step in range(4):
            if step == 2 and server.task == 1:
                raise KeyError("broken")
            variables.apply_gradients({"w": np.ones(1)})
        return int(variables.read()["seen"])


def test_a_worker_that_fails_does_not_sum_up_with_the_others(tmp_path: Any) -> None:
    run = simulated(3, fails_in_one, str(tmp_path), storage=real())
    assert [run.results[0], run.results[2]] == [2, 2] and list(run.errors) == ["worker:1"], run.errors


def real() -> Any:
    from dps.checkpoint import LocalStorage

    return LocalStorage()


# -- bad use --------------------------------------------------------------------------------------------------------


def differs(server: Any, what: str, way: str = "auto") -> None:
    with MultiWorkerMirrored(server, CPU, cross_device_ops=way) as strategy, strategy.scope():
        shape = 2 + server.task if what == "variables" else 2
        variables = strategy.variables({"w": np.zeros(shape)}, optimizer=dps.optim.SGD(1.0))
        if what == "calls":
            strategy.reduce("sum", np.zeros(1 + server.task))
        if what == "nan":
            variables.apply_gradients({"w": np.full(2, np.nan if server.task else 0.0)})
        if what == "twice":
            MultiWorkerMirrored(server, CPU)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            "variables",
            r"variables: worker:\d has w .*\[\d\].*, worker:\d has w .*; all workers must make the same ones",
        ),
        ("calls", "worker:. is in all_reduce 'sum' of . float64, worker:. in all_reduce .* make the same calls"),
        ("nan", "ValueError: the gradient of w has NaN"),
        ("twice", "worker:. has one MultiWorkerMirrored open already; close that first"),
    ],
)
def test_bad_use_is_one_line_on_each_worker(what: str, text: str) -> None:
    import re

    run = simulated(2, differs, what)
    assert set(run.errors) == {"worker:0", "worker:1"}
    for error in run.errors.values():
        assert re.search(text, error) and "\n" not in error, error


def sums_in_its_own_way(server: Any) -> None:
    with MultiWorkerMirrored(server, CPU, cross_device_ops="ring" if server.task else "ps", timeout=8.0) as strategy:
        strategy.reduce("sum", np.ones(4))


def test_workers_that_sum_in_different_ways_are_told() -> None:
    run = simulated(3, sums_in_its_own_way, ps=1)
    assert len(run.errors) == 3
    for error in run.errors.values():
        assert "by 'ps'" in error and "by 'ring'" in error and "make the same calls" in error, error


@pytest.mark.parametrize("way", ["ps", "ring"])
def test_different_calls_are_told_whoever_takes_the_sum(way: str) -> None:
    run = simulated(2, differs, "calls", way, ps=1)
    wanted = f"is in all_reduce 'sum' of 1 float64 by {way!r}, worker"
    assert len(run.errors) == 2 and all("make the same calls" in error for error in run.errors.values()), run.errors
    assert any(wanted in error for error in run.errors.values()), run.errors


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"cross_device_ops": "nccl"}, "cross_device_ops: got 'nccl', wanted 'auto', 'ring', 'tree'"),
        ({"on_loss": "restart"}, "on_loss: got 'restart', wanted 'continue' or 'end'"),
        ({"save_steps": 0}, "save_steps: got 0"),
    ],
)
def test_unknown_settings_are_refused(settings: Any, text: str) -> None:
    with dps.Server.create_local_server() as server, pytest.raises(ConfigError, match=text):
        MultiWorkerMirrored(server, CPU, **settings)


def test_it_takes_the_server_of_a_worker() -> None:
    with pytest.raises(ConfigError, match="got '127.0.0.1:1', wanted the dps.Server of a worker"):
        MultiWorkerMirrored("127.0.0.1:1")  # type: ignore[arg-type]
