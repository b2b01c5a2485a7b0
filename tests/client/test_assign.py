"""`session.assign`: values are set once, in every update mode, and nothing else changes; bad input changes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from tests.in_process import cluster, on_all
from tests.launch.programs import assigns

MODES = [dps.Async(), dps.SyncReplicas(), dps.Bounded(1)]


def params() -> dict[str, Any]:
    return {
        "w": np.zeros((5, 2), np.float32),
        "bn": {"mean": dps.Variable(np.zeros(3, np.float32), trainable=False), "n": dps.Variable(np.int64(0))},
        "rate": np.zeros((), np.float64),
    }


def gradients(value: float = -1.0) -> dict[str, Any]:
    return {"w": np.full((5, 2), value, np.float32), "rate": np.array(value)}


VALUES = {
    "w": np.arange(10, dtype=np.float32).reshape(5, 2),
    "bn": {"mean": np.array([1, 2, 3], np.float32), "n": np.int64(7)},
    "rate": np.float64(0.5),
}


def session(server: Any, start: Any = None, **settings: Any) -> dps.Session:
    return dps.Session(server, start or params(), **{"optimizer": dps.optim.SGD(1.0), "timeout": 60, **settings})


def same(values: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(values["w"], wanted["w"])
    np.testing.assert_array_equal(values["bn"]["mean"], wanted["bn"]["mean"])
    assert values["bn"]["n"] == wanted["bn"]["n"] and values["rate"] == wanted["rate"]


@pytest.mark.thinned
@pytest.mark.parametrize("update", [dps.Async(), dps.Bounded(0)], ids=str)
@pytest.mark.parametrize("ps", [1, 2, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_values_are_set_when_the_call_returns_and_the_step_stays(ps: int, update: Any, shared: bool) -> None:
    with (
        cluster(ps=ps, update=update, transport="ipc" if shared else "tcp", folder=Path("/tmp")) as (worker,),
        session(worker, partitioner=dps.partition.Fixed(3), shared_memory=shared) as s,
    ):
        assert s.push(gradients()).step == 1
        s.assign(VALUES)
        same(s.pull(), VALUES)
        assert s.global_step == 1
        assert s.push(gradients()).step == 2
        np.testing.assert_array_equal(s.pull()["w"], VALUES["w"] + 1)


@pytest.mark.parametrize("ps", [1, 2, 3])
def test_in_sync_values_are_set_by_the_next_push_after_its_gradients(ps: int) -> None:
    with (
        cluster(ps=ps, update=dps.SyncReplicas()) as (worker,),
        session(worker, partitioner=dps.partition.Fixed(3)) as s,
    ):
        s.assign(VALUES)
        assert not s.pull()["w"].any()
        values = s.step(gradients())
        assert s.global_step == 1
        same(values, VALUES)
        np.testing.assert_array_equal(s.step(gradients())["w"], VALUES["w"] + 1)


@pytest.mark.parametrize("update", MODES, ids=str)
def test_a_large_variable_is_set_too(update: Any) -> None:
    start = {"w": np.zeros((1000, 1000), np.float32), "m": dps.Variable(np.zeros(300_000), trainable=False)}
    new = {"w": np.arange(10**6, dtype=np.float32).reshape(1000, 1000), "m": np.arange(300_000.0)}
    with cluster(ps=2, update=update) as (worker,), session(worker, start) as s:
        s.assign(new)
        s.push({"w": np.ones((1000, 1000), np.float32)})
        found = s.pull()
        np.testing.assert_array_equal(found["m"], new["m"])
        np.testing.assert_array_equal(found["w"], new["w"] - (0 if isinstance(update, dps.SyncReplicas) else 1))


def test_a_reader_that_asks_for_newer_values_gets_them() -> None:
    with cluster(workers=2) as (worker, other), session(worker) as s, dps.Session(other, timeout=60) as reader:
        reader.pull()
        seen = reader.version
        assert reader.pull(if_newer_than=seen) is None
        s.assign({"bn": {"n": np.int64(3)}})
        assert reader.pull(if_newer_than=seen)["bn"]["n"] == 3


def test_trained_variables_keep_their_slots() -> None:
    def train(assigns: bool) -> Any:
        with cluster() as (worker,), session(worker, optimizer=dps.optim.Momentum(1.0, momentum=0.5)) as s:
            s.push(gradients())
            if assigns:
                s.assign({"w": np.zeros((5, 2), np.float32)})
            s.push(gradients())
            return s.pull()["w"][0, 0]

    assert train(assigns=False) == 2.5 and train(assigns=True) == 1.5


def test_a_bounded_worker_does_not_get_ahead_by_values() -> None:
    def work(server: dps.Server) -> int:
        with session(server) as s:
            if server.task == 0:
                for n in range(5):
                    s.assign({"bn": {"n": np.int64(n)}})
                    s.pull()
            return s.pull()["bn"]["n"].shape == ()

    with cluster(workers=2, update=dps.Bounded(0)) as servers:
        assert on_all(servers, work) == [True, True]


@pytest.mark.parametrize("lowest_assigns", [True, False])
def test_in_sync_the_lowest_task_wins(lowest_assigns: bool) -> None:
    def work(server: dps.Server) -> Any:
        with session(server) as s:
            mine = {"bn": {"n": np.int64(10 + server.task)}}
            s.assign(mine if server.task or lowest_assigns else {"rate": np.float64(4)})
            s.push(gradients())
            values = s.pull()
            return int(values["bn"]["n"]), float(values["rate"])

    with cluster(ps=2, workers=3, update=dps.SyncReplicas()) as servers:
        assert on_all(servers, work) == [(10, 1.0) if lowest_assigns else (11, 4.0)] * 3


@pytest.mark.parametrize("update", MODES, ids=str)
def test_the_last_value_counts_and_the_arrays_stay_the_callers(update: Any) -> None:
    with cluster(update=update) as (worker,), session(worker) as s:
        first, second = np.full(3, 5, np.float32), np.full(3, 6, np.float32)
        s.assign({"bn": {"mean": first, "n": np.int64(1)}})
        s.assign({"bn": {"mean": second, "n": None}})
        second[:] = 9
        s.push(gradients())
        values = s.pull()
        assert values["bn"]["mean"].tolist() == [6.0] * 3 and values["bn"]["n"] == 1


def test_in_sync_values_of_a_push_that_comes_too_late_go_with_the_next_one() -> None:
    with cluster(workers=2, update=dps.SyncReplicas(1, 2)) as (fast, slow), session(fast) as s:

        def work(server: dps.Server) -> list[Any]:
            with session(server) as late:
                late.pull()
                s.push(gradients())
                s.push(gradients())
                late.assign({"bn": {"n": np.int64(4)}, "rate": np.float64(1)})
                first = late.push(gradients())
                late.assign({"rate": np.float64(2)})
                between = int(late.pull()["bn"]["n"])
                second = late.push(gradients())
                values = late.pull()
                return [first.accepted, between, second.accepted, int(values["bn"]["n"]), float(values["rate"])]

        assert on_all([slow], work) == [[False, 0, True, 4, 2.0]]


def test_in_sync_values_of_a_push_that_is_refused_go_with_the_next_one() -> None:
    with cluster(update=dps.SyncReplicas()) as (worker,), session(worker) as s:
        s.assign({"bn": {"n": np.int64(4)}})
        with pytest.raises(ValueError, match="NaN"):
            s.push(gradients(np.nan))
        assert s.pull()["bn"]["n"] == 0
        s.push(gradients())
        assert s.pull()["bn"]["n"] == 4


def test_a_later_value_is_not_undone_by_a_push_that_came_too_late() -> None:
    from dps.client.loading import Assigned

    assigned, one, two = Assigned(), np.ones(1), np.ones(2)
    assigned.keep({0: one, 1: one})
    first = assigned.waiting
    assigned.waiting = {}
    assigned.keep({0: two})
    second = assigned.waiting
    assigned.waiting = {}
    assigned.record_outcome(second, True)
    assigned.record_outcome(first, False)
    assert assigned.waiting == {1: one}
    third = assigned.waiting
    assigned.waiting = {}
    assigned.record_outcome(third, True)
    assert not assigned.waiting and not assigned._newest


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("update", [dps.Async(), dps.Bounded(1)])
def test_values_that_are_assigned_after_the_last_step_was_saved_are_in_the_last_checkpoint(
    update: Any, ps: int, tmp_path: Path
) -> None:
    with cluster(ps=ps, update=update) as (worker,), session(worker, checkpoint_dir=tmp_path) as s:
        s.push(gradients())
        first = s.save()
        assert s.save() == first
        s.assign(VALUES)
    names = sorted(path.name for path in tmp_path.glob("step-*"))
    assert names == ["step-000000000000-epoch-000001", first, f"{first}-values-000001"]
    with cluster(ps=ps, update=update) as (worker,), session(worker, checkpoint_dir=tmp_path) as s:
        restored = s.pull()
    assert restored["bn"]["n"] == 7 and restored["rate"] == 0.5
    np.testing.assert_array_equal(restored["w"], VALUES["w"])


@pytest.mark.parametrize("update", MODES, ids=str)
def test_values_are_part_of_checkpoints_and_a_rollback_takes_them_back(update: Any, tmp_path: Path) -> None:
    with cluster(ps=2, update=update) as (worker,), session(worker, checkpoint_dir=tmp_path) as s:
        s.assign(VALUES)
        s.push(gradients())
        name, kept = s.save(), s.pull()
        s.assign({"bn": {"n": np.int64(1)}})
        s.push(gradients())
        assert s.pull()["bn"]["n"] == 1
        s.restore(name)
        same(s.pull(), kept)
        assert kept["bn"]["n"] == 7
    with cluster(ps=1, update=update) as (worker,), session(worker, checkpoint_dir=tmp_path) as s:
        same(s.pull(), kept)


@pytest.mark.parametrize("update", MODES, ids=str)
@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({"means": np.zeros(3)}, ValueError, "came for 'means', which is no variable; there are w, bn/mean, bn/n"),
        ({"bn": {"mean": np.zeros(4, np.float32)}}, ValueError, "bn/mean has shape (4,); the variable has (3,)"),
        ({"bn": {"mean": np.zeros(3)}}, ValueError, "bn/mean is float64; the variable is float32: cast with .astype("),
        ({"bn": {"mean": np.array([0, np.nan, 0], np.float32)}}, ValueError, "bn/mean has NaN or infinite values"),
        ({"w": dps.Rows([1], np.zeros((1, 2), np.float32))}, TypeError, "sets whole variables; got dps.Rows for w"),
        ({"w": "text"}, TypeError, "w is str of dtype"),
        (np.zeros(3), ValueError, "assign wants values for {'w', 'bn/mean', 'bn/n', 'rate'}; got one array"),
        ([np.zeros(3)], ValueError, "assign wants values for {'w', 'bn/mean', 'bn/n', 'rate'}; got a list of 1"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error_and_sets_nothing(update: Any, values: Any, kind: Any, words: str) -> None:
    with cluster(update=update) as (worker,), session(worker) as s:
        before = s.version
        with pytest.raises(kind, match=re.escape(words)):
            s.assign(values)
        s.push(gradients())
        found = s.pull()
        assert found["bn"]["n"] == 0 and not found["bn"]["mean"].any() and s.version != before


def test_nothing_is_nothing() -> None:
    with cluster() as (worker,), session(worker) as s:
        s.pull()
        before = s.version
        for nothing in ({}, None, {"w": None}, {"bn": {}}):
            s.assign(nothing)
        assert s.pull(if_newer_than=before) is None
    with pytest.raises(ValueError, match="the session is closed"):
        s.assign({})


def test_nan_may_be_set_where_nobody_looks() -> None:
    with cluster() as (worker,), session(worker, check_finite=False) as s:
        s.assign({"rate": np.float64("nan")})
        assert np.isnan(s.pull()["rate"])


def test_values_count_neither_as_pushes_nor_as_staleness() -> None:
    seen: list[int] = []

    class Count(dps.Hook):
        def after_run(self, session: Any, push: dps.Push, loss: Any) -> None:
            seen.append(push.step)

    with cluster(update=dps.Async(max_staleness=0)) as (worker,), session(worker, hooks=[Count()]) as s:
        s.pull()
        s.assign({"rate": np.float64(3)})
        assert s.push(gradients()) == dps.Push(1, True, 0)
        assert seen == [1] and s.stats()["ps:0"]["applied"] == 1


@pytest.mark.parametrize("update", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_values_are_set_between_processes(update: str) -> None:
    with dps.LocalCluster(ps=2, workers=2) as local:
        found = local.run(assigns, update).results
    if update == "sync":
        assert found == [[0.0, 12.0], [0.0, 12.0]]
    assert {n for n, _ in found} <= {0.0, 1.0} and {total for _, total in found} == {12.0}
