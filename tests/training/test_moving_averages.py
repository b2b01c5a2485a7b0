"""Moving averages of variables: TensorFlow's formula, whatever the update mode, and through checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps import optim
from dps.ps.store.store import Store
from dps.training.averages import average_of, slots_of
from dps.transport.current import runtime
from dps.variables.plan import VariableSpec, make_plan
from tests.in_process import cluster, on_all

RNG = np.random.default_rng(5)
PARAMS = {"hidden": {"w": RNG.standard_normal((11, 3)), "b": RNG.standard_normal(3)}, "bias": np.array(0.5)}
MODES: list[Any] = [dps.Async(), dps.SyncReplicas(), dps.Bounded(2)]
Averages = dict[str, Any]


def gradients(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return {"hidden": {"w": rng.standard_normal((11, 3)), "b": rng.standard_normal(3)}, "bias": rng.standard_normal()}


def flat(tree: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([np.ravel(a) for a in (tree["hidden"]["w"], tree["hidden"]["b"], tree["bias"])])


class TensorFlows:
    """What tf.train.ExponentialMovingAverage does, in its words: apply() after each update, with num_updates or not."""

    def __init__(self, variable: Any, decay: float, num_updates: bool) -> None:
        self.shadow, self._decay, self._counts = variable.copy(), decay, num_updates

    def apply(self, variable: Any, step: int) -> Any:
        decay = min(self._decay, (1.0 + step) / (10.0 + step)) if self._counts else self._decay
        self.shadow -= (self.shadow - variable) * (1.0 - decay)
        return self.shadow


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.thinned
@pytest.mark.parametrize("num_updates", [False, True])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: type(mode).__name__)
@pytest.mark.parametrize("optimizer", [optim.SGD(0.1), optim.Adam(0.05)], ids=["sgd", "adam"])
def test_averages_equal_tensorflows_formula_after_every_update(optimizer: Any, mode: Any, num_updates: bool) -> None:
    average = optim.MovingAverage(0.9, num_updates=num_updates)
    theirs = TensorFlows(flat(PARAMS), 0.9, num_updates)
    with (
        cluster(update=mode) as (server,),
        dps.Session(server, PARAMS, optimizer=optimizer, moving_average=average) as session,
    ):
        near(flat(session.averages()), flat(PARAMS))
        for seed in range(12):
            push = session.push(gradients(seed))
            near(flat(session.averages()), theirs.apply(flat(session.pull()), push.step))


def test_synchronous_steps_of_several_workers_and_ps_move_the_averages_once_each() -> None:
    average, theirs = optim.MovingAverage(0.8, num_updates=True), TensorFlows(flat(PARAMS), 0.8, True)
    w = flat(PARAMS)
    for step in range(6):
        w = w - 0.5 * (flat(gradients(2 * step)) + flat(gradients(2 * step + 1))) / 2
        theirs.apply(w, step + 1)

    def work(server: dps.Server) -> Any:
        settings: dict[str, Any] = {"partitioner": dps.partition.Fixed(3), "moving_average": average}
        with dps.Session(server, PARAMS, optimizer=optim.SGD(0.5), **settings) as session:
            for step in range(6):
                session.push(gradients(2 * step + server.task))
            return flat(session.averages())

    with cluster(ps=2, workers=2, update=dps.SyncReplicas()) as servers:
        for found in on_all(servers, work):
            near(found, theirs.shadow)


def test_averages_are_restored_with_the_values_into_other_parts_and_other_ps(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "optimizer": optim.Momentum(0.1), "moving_average": optim.MovingAverage(0.7), "checkpoint_dir": str(tmp_path),
    }  # fmt: skip
    with (
        cluster(ps=2) as (server,),
        dps.Session(server, PARAMS, partitioner=dps.partition.Fixed(4), **settings) as session,
    ):
        for seed in range(3):
            session.push(gradients(seed))
        name, saved = session.save(), flat(session.averages())
        session.push(gradients(7))
        later = flat(session.averages())
        assert (later != saved).all()
        session.restore(name)
        assert flat(session.averages()).tobytes() == saved.tobytes()
        session.push(gradients(7))
        near(flat(session.averages()), later)
    with cluster() as (server,), dps.Session(server, PARAMS, **settings) as session:
        near(flat(session.averages()), later)
        theirs = TensorFlows(later, 0.7, False)
        session.push(gradients(8))
        near(flat(session.averages()), theirs.apply(flat(session.pull()), 5))


def test_averages_of_a_checkpoint_without_them_begin_at_its_values(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"optimizer": optim.SGD(0.1), "checkpoint_dir": str(tmp_path)}
    with cluster() as (server,), dps.Session(server, PARAMS, **settings) as session:
        session.push(gradients(1))
        values = flat(session.pull())
    settings["moving_average"] = optim.MovingAverage(0.9)
    with cluster() as (server,), dps.Session(server, PARAMS, **settings) as session:
        assert flat(session.averages()).tobytes() == values.tobytes()
        session.push(gradients(2))
    del settings["moving_average"]
    with cluster() as (server,), dps.Session(server, PARAMS, **settings) as session:
        assert session.global_step == 2


def test_an_update_of_rows_moves_the_averages_of_these_rows_alone() -> None:
    table = np.arange(12.0).reshape(6, 2)
    params = {"table": dps.Variable(table, sparse=True), "other": np.zeros(2), "fixed": np.array([1, 2])}
    with (
        cluster() as (server,),
        dps.Session(server, params, optimizer=optim.SGD(1.0), moving_average=optim.MovingAverage(0.75)) as session,
    ):
        session.push({"table": dps.Rows([4, 1, 4], np.ones((3, 2)))})
        wanted = table.copy()
        wanted[1] -= 0.25
        wanted[4] -= 0.5
        found = session.averages()
        near(found["table"], wanted)
        assert found["other"].tolist() == [0, 0] and found["fixed"].tolist() == [1, 2]
        found["table"][:] = 0  # it is the caller's
        near(session.averages(["table"])["table"], wanted)


@pytest.mark.parametrize(
    "settings",
    [
        {"shared_memory": False},
        {"compression": dps.compress.Float16(), "pull_compression": dps.compress.Float16(), "pull_deltas": True},
    ],
)
def test_a_reader_gets_the_averages_whatever_way_it_reads_values(settings: dict[str, Any]) -> None:
    large = {"w": np.zeros(400_000), "b": np.zeros(7)}
    with cluster(ps=2, workers=2) as servers:
        average = optim.MovingAverage(0.5)
        with dps.Session(servers[0], large, optimizer=optim.SGD(1.0), moving_average=average) as session:
            session.push({"w": -np.ones(400_000), "b": -np.ones(7)})
            settings = {k: v for k, v in settings.items() if k != "compression"}
            with dps.Session(servers[1].target, **settings) as reader:
                reader.pull()
                found = reader.averages()
                assert (found["w"] == 0.5).all() and (found["b"] == 0.5).all()
                assert (reader.pull()["w"] == 1).all()


@pytest.mark.parametrize("rowwise", [False, True])
def test_every_memory_of_values_keeps_averages(rowwise: bool) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.dtype(ml_dtypes.bfloat16)
    params = {"wide": np.ones((4, 3)), "narrow": np.ones((4, 3), half), "single": np.ones((4, 3), np.float32)}
    optimizer = optim.Adagrad(1.0, initial_accumulator=1.0, rowwise=rowwise)
    with (
        cluster() as (server,),
        dps.Session(server, params, optimizer=optimizer, moving_average=optim.MovingAverage(0.5)) as session,
    ):
        session.push({name: np.ones((4, 3), array.dtype) for name, array in params.items()})
        values, averages = session.pull(), session.averages()
        for name, array in params.items():
            assert averages[name].dtype == array.dtype
            wanted = (1 + values[name].astype(np.float64)) / 2
            np.testing.assert_allclose(
                averages[name].astype(np.float64), wanted, rtol=1e-2 if name == "narrow" else 1e-7
            )


def test_a_shard_on_a_gpu_keeps_the_averages_of_one_on_the_cpu() -> None:
    from dps.ps.store.gradients import Gradient, RowGradient

    wire = optim.Momentum(0.5).to_wire() | {"moving_average": optim.MovingAverage(0.75).to_wire()}
    specs = [VariableSpec("a", (4, 3), "<f4", wire), VariableSpec("table", (6, 2), "<f4", wire, sparse=True)]
    found = []
    for where in ("/job:ps/task:0/cpu:0", "/job:ps/task:0/gpu:0"):
        plan = make_plan(specs, (0,), lambda *_, where=where: dps.Device(where), None)
        store = Store(plan.layouts[0], runtime())
        for arena in store.layout.arenas:
            store.fill_values(arena.offset, np.arange(arena.size, dtype=arena.dtype).view(np.uint8))
        run = [np.full(arena.size, 0.5, arena.dtype) for arena in store.layout.arenas]
        rows = RowGradient(np.array([1, 5]), np.ones((2, 2), np.float32))
        for step, update in enumerate((Gradient(run, {}), Gradient(None, {1: rows}), Gradient(run, {})), 1):
            assert store.apply_update(update, step) == ""
        found.append([array.tobytes() for array in store.averages().arrays])
        store.close()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optim.MovingAverage(1.0), "decay is 1.0, it must be at least 0 and below 1; try decay=0.999"),
        (lambda: optim.MovingAverage("0.9"), "decay is '0.9' of type str, it must be a number"),  # type: ignore[arg-type]
        (lambda: optim.MovingAverage(0.9, num_updates=7), "num_updates is 7, it must be True or False"),  # type: ignore[arg-type]
        (lambda: dps.Session("127.0.0.1:1", {"w": np.ones(1)}, moving_average=0.9), "moving_average: got 0.9, wanted"),  # type: ignore[arg-type]
        (lambda: dps.Session("127.0.0.1:1", moving_average=optim.MovingAverage()), "is a reader, which takes the"),
    ],
)
def test_what_is_no_average_is_told_in_one_line(make: Any, words: str) -> None:
    with pytest.raises(dps.ConfigError, match=words) as told:
        make()
    assert "\n" not in str(told.value)


def test_a_run_without_averages_and_a_session_that_wants_others_are_told() -> None:
    with cluster() as (server,), dps.Session(server, {"w": np.ones(1)}, optimizer=optim.SGD(0.1)) as session:
        with pytest.raises(dps.ConfigError, match="this run keeps no moving averages; give ") as told:
            session.averages()
        assert "\n" not in str(told.value)
        with pytest.raises(dps.ConfigError, match="its optimizer of w is .*moving_average.*0.9") as told:
            dps.Session(
                server.target, {"w": np.ones(1)}, optimizer=optim.SGD(0.1),
                moving_average=optim.MovingAverage(0.9),
            )  # fmt: skip
        assert "\n" not in str(told.value)


def test_without_averages_a_plan_says_nothing_of_them_and_a_shard_keeps_none() -> None:
    plain = optim.SGD(0.1).to_wire()
    assert "moving_average" not in plain and average_of(plain) is None and average_of(None) is None
    assert slots_of(plain) == () and slots_of(None) == ()
    assert slots_of(plain | {"moving_average": optim.MovingAverage(0.5).to_wire()}) == ("average",)


def test_an_assigned_value_leaves_the_average_until_the_next_update() -> None:
    with (
        cluster() as (server,),
        dps.Session(server, {"w": np.zeros(2)}, optimizer=optim.SGD(1.0), moving_average=optim.MovingAverage(0.5)) as s,
    ):
        s.assign({"w": np.full(2, 8.0)})
        assert s.averages()["w"].tolist() == [0, 0]
        s.push({"w": np.zeros(2)})
        assert s.averages()["w"].tolist() == [4, 4]
