"""The update modes through real sessions: what each promises about values, steps, staleness, tokens and waits.

Sessions of several workers are driven from one thread, in the order that a test wants; where one would wait, its
call is an asynchronous one. `SGD(1.0)` makes a gradient the difference of the values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError, DeadlineExceeded
from tests.in_process import cluster, on_all
from tests.tuned import tune

TABLE = np.zeros((6, 2))


def params() -> dict[str, Any]:
    """With two ps in turn: `a` and `table` on the step ps, `b` and `scalar` on the other."""
    return {"a": np.zeros(2), "b": np.zeros(3), "table": dps.Variable(TABLE, sparse=True), "scalar": np.zeros(())}


def grads(value: float) -> dict[str, Any]:
    """To be subtracted: `value` everywhere."""
    return {"a": np.full(2, value), "b": np.full(3, value), "table": TABLE + value, "scalar": np.full((), value)}


@contextmanager
def sessions(count: int, update: Any, ps: int = 1, **settings: Any) -> Iterator[list[dps.Session]]:
    """A session on each of `count` workers; all are open before the first does anything."""
    wanted = {"optimizer": dps.optim.SGD(1.0), "update": update, "timeout": 60, **settings}
    with cluster(ps, count, "inproc") as servers, ExitStack() as stack:
        yield [stack.enter_context(dps.Session(server, params(), **wanted)) for server in servers]


def done_soon(reply: dps.Reply[Any], by: dps.Session) -> bool:
    """Whether a reply is there once everything that was sent before has been handled."""
    by.stats()
    return reply.done()


def everywhere(session: dps.Session) -> float:
    """The value that all elements of all variables have."""
    found = {float(v) for array in session.pull().values() for v in np.ravel(array)}
    assert len(found) == 1, found
    return found.pop()


# -- asynchronous -------------------------------------------------------------------------------------------------


def test_async_applies_on_arrival_and_nobody_waits() -> None:
    with sessions(2, dps.Async(), ps=2) as (one, two):
        assert [one.push(grads(1.0)).step for _ in range(3)] == [1, 2, 3]
        assert two.push(grads(1.0)).step == 4
        assert everywhere(one) == -4.0


def test_staleness_is_what_was_applied_between_the_pull_and_the_push() -> None:
    with sessions(2, dps.Async()) as (one, two):
        one.pull(), two.pull()
        assert [one.push(grads(1.0)).staleness for _ in range(2)] == [0, 1]
        assert two.push(grads(1.0)).staleness == 2
        two.pull()
        assert two.push(grads(1.0)).staleness == 0
        told = one.stats()["ps:0"]["sessions"] | two.stats()["ps:0"]["sessions"]
        assert {name: session["staleness"] for name, session in told.items()} == {"worker:0": 1, "worker:1": 0}


def test_a_push_above_the_bound_is_dropped_reported_and_counted() -> None:
    with sessions(2, dps.Async(max_staleness=1)) as (one, two):
        one.pull(), two.pull()
        one.push(grads(1.0))
        at_the_bound = two.push(grads(1.0))
        assert (at_the_bound.accepted, at_the_bound.staleness, at_the_bound.step) == (True, 1, 2)
        above = two.push(grads(100.0))
        assert (above.accepted, above.staleness, above.step) == (False, 2, 2)
        assert everywhere(one) == -2.0
        assert one.stats()["ps:0"]["dropped"] == 1


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("begins_with_a_pull", [True, False])
@pytest.mark.parametrize("what", ["rows", "rows in the background", "rows of two", "names"])
def test_rows_and_variables_that_are_read_alone_count_as_pulled(
    what: str, begins_with_a_pull: bool, shared: bool
) -> None:
    def read(session: dps.Session) -> None:
        if what == "rows":
            session.lookup("table", [1, 4])
        elif what == "rows in the background":
            session.lookup_async("table", [1, 4]).result()
        elif what == "rows of two":
            session.lookup({"table": [1], "a": [0]})
        else:
            session.pull(["table"])

    with sessions(2, dps.Async(max_staleness=2), ps=2, shared_memory=shared) as (one, two):
        if begins_with_a_pull:
            one.pull(), two.pull()
        version = one.version
        rows = {"table": dps.Rows([1, 4], np.ones((2, 2)))}
        for _ in range(4):
            read(one)
            assert one.push(rows) == dps.Push(one.global_step, True, 0)
        assert one.version == version
        if begins_with_a_pull:
            assert one.pull(if_newer_than=version) is not None
        read(two)
        for _ in range(3):
            read(one)
            one.push(rows)
        above = two.push(rows)
        assert (above.accepted, above.staleness) == (False, 3)


def test_on_a_ps_that_has_none_of_its_rows_a_push_is_never_stale() -> None:
    keyed = dps.Variable(keys="int64", dim=2, capacity=100, dtype="float64", init=dps.init.Zeros())
    settings: Any = {"optimizer": dps.optim.Adam(1.0), "partitioner": dps.partition.Fixed(2), "timeout": 60}
    with (
        cluster(2, 1, "inproc", update=dps.Async(max_staleness=1)) as (server,),
        dps.Session(server, {"table": dps.Variable(TABLE, sparse=True), "keyed": keyed}, **settings) as session,
    ):
        session.pull()  # of both ps; what follows reads from one of them
        for name in ("table", "keyed") * 4:
            session.lookup(name, [1])
            push = session.push({name: dps.Rows([1], np.ones((1, 2)))})
            assert (push.accepted, push.staleness) == (True, 0)
        assert np.allclose(session.lookup("table", [1]), -4.0)


@pytest.mark.parametrize(("damping", "scale"), [(None, 1.0), (1.0, 1 / 4), (2.0, 1 / 16)])
def test_damping_scales_the_rate_by_one_over_one_plus_staleness(damping: float | None, scale: float) -> None:
    with sessions(2, dps.Async(damping=damping), ps=2) as (one, two):
        two.pull()
        for _ in range(3):
            one.step(grads(1.0))
        assert two.push(grads(1.0)).staleness == 3
        np.testing.assert_allclose(everywhere(one), -(3 + scale), rtol=1e-15)


def test_delay_compensation_adds_lambda_g_squared_times_the_way_since_the_pull() -> None:
    with sessions(2, dps.Async(compensation=0.5)) as (one, two):
        one.pull(), two.pull()
        one.push(grads(-3.0))  # from 0 to 3, with nothing to compensate
        two.push(grads(2.0))  # 2 + 0.5 * 2 * 2 * (3 - 0) = 8
        assert everywhere(two) == -5.0
        two.push(grads(2.0))  # pulled at -5: nothing in between
        assert everywhere(two) == -7.0


def test_delay_compensation_of_a_push_in_pieces_beside_a_variable_without_elements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tune(monkeypatch, piece_nbytes=4096)
    params = {"w": np.zeros(5000), "e": np.zeros(0, np.float32)}
    settings: Any = {"optimizer": dps.optim.SGD(1.0), "update": dps.Async(compensation=0.5), "shared_memory": False}
    with (
        cluster(1, 2) as servers,
        dps.Session(servers[0], params, **settings) as one,
        dps.Session(servers[1], params, **settings) as two,
    ):
        one.pull(), two.pull()
        two.push({"w": np.full(5000, -1.0)})
        one.push({"w": np.full(5000, -2.0), "e": np.zeros(0, np.float32)})
        assert set(one.pull()["w"]) == {1.0 - (-2.0 + 0.5 * 4.0 * 1.0)}


def test_delay_compensation_of_single_variables_and_rows() -> None:
    with sessions(2, dps.Async(compensation=0.5), ps=2) as (one, two):
        two.pull()
        one.push(grads(-3.0))
        rows = dps.Rows([4, 1, 4], np.ones((3, 2)))
        two.push({"table": rows, "scalar": np.full((), 2.0)})  # row 4: g = 2 and 8; row 1: g = 1 and 1 + 0.5 * 3
        values = two.pull()
    assert values["table"].tolist() == [[3, 3], [0.5, 0.5], [3, 3], [3, 3], [-5, -5], [3, 3]]
    assert values["scalar"] == -5.0 and values["b"].tolist() == [3, 3, 3]


@pytest.mark.parametrize("begins_with_a_pull", [True, False])
def test_delay_compensation_looks_at_what_was_read_last_of_each_row_and_variable(begins_with_a_pull: bool) -> None:
    with sessions(2, dps.Async(compensation=0.5), ps=2) as (one, two):
        if begins_with_a_pull:
            two.pull()
        one.push(grads(-3.0))
        two.pull(["scalar"])
        two.lookup("table", [4])
        one.push(grads(-1.0))  # from 3 to 4
        rows = dps.Rows([4, 1], np.ones((2, 2)))
        two.push({"table": rows, "scalar": np.ones(()), "a": np.ones(2), "b": np.ones(3)})
        values = two.pull()
    way = 4.0 if begins_with_a_pull else 1.0  # of what was read once, with all of its shard, or before it by itself
    assert values["table"][[4, 1], 0].tolist() == [4 - 1.5, 4 - (1 + 0.5 * way)]
    assert values["scalar"] == 4 - 1.5
    assert values["a"].tolist() == [4 - (1 + 0.5 * way)] * 2 and values["b"].tolist() == [4 - (1 + 0.5 * way)] * 3


def test_every_async_push_counts_once_whatever_ps_its_variables_are_on() -> None:
    with sessions(1, dps.Async(), ps=2) as (one,):
        steps = [one.push(g).step for g in (grads(1.0), {"a": np.ones(2)}, {"b": np.ones(3)}, {})]
        assert steps == [1, 2, 3, 4]
        deadline = time.monotonic() + 20
        while one.stats()["ps:0"]["step"] < 4:  # until ps:1 has told it of the third
            assert time.monotonic() < deadline
        assert one.stats()["ps:1"]["step"] == 3  # it has heard of three


@pytest.mark.parametrize("mode", [dps.Async(), dps.SyncReplicas()])
def test_a_schedule_knows_the_step_on_a_ps_that_saw_no_push_before(mode: Any) -> None:
    late = dps.optim.SGD(dps.optim.Piecewise([3], [1.0, 0.125]))
    with sessions(1, mode, ps=2, optimizer=late) as (one,):
        for _ in range(5):
            one.push({"a": np.ones(2)})
        one.push({"b": np.ones(3)})
        assert one.pull()["b"].tolist() == [-0.125] * 3


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_schedule_knows_the_steps_that_the_pushing_session_knows_on_every_ps(first: str) -> None:
    """On the ps of the global step it was up to 20 ms behind: there the rate was that of an earlier step."""
    late = dps.optim.SGD(dps.optim.Piecewise([3], [1.0, 0.125]))
    shapes = {"a": 2, "b": 3}
    with sessions(1, dps.Async(), ps=2, optimizer=late) as (one,):
        for _ in range(5):
            one.push({first: np.ones(shapes[first])})
        (second,) = shapes.keys() - {first}
        one.push({second: np.ones(shapes[second])})
        assert one.pull()[second].tolist() == [-0.125] * shapes[second]


# -- synchronous --------------------------------------------------------------------------------------------------


def pushes(of: Sequence[dps.Session], values: Sequence[float]) -> list[dps.Push]:
    """All push, then all wait for their tokens."""
    replies = [session.push_async(grads(value)) for session, value in zip(of, values, strict=True)]
    return [reply.result() for reply in replies]


@pytest.mark.parametrize("ps", [1, 2])
def test_sync_averages_applies_once_and_releases_with_the_new_step(ps: int) -> None:
    with sessions(2, dps.SyncReplicas(), ps=ps) as both:
        assert pushes(both, [1.0, 2.0]) == [dps.Push(1, True), dps.Push(1, True)]
        assert everywhere(both[0]) == -1.5
        assert pushes(both, [4.0, 0.0]) == [dps.Push(2, True), dps.Push(2, True)]
        assert everywhere(both[1]) == -3.5


def test_a_sync_push_waits_for_the_others_and_for_its_token() -> None:
    with sessions(2, dps.SyncReplicas()) as (one, two):
        waiting = one.push_async(grads(1.0))
        assert not done_soon(waiting, one) and waiting.accepted is None
        two.push(grads(3.0))
        assert waiting.result() == dps.Push(1, True) and everywhere(one) == -2.0


def test_with_a_backup_worker_the_first_make_the_step_and_the_last_is_dropped_counted_and_told() -> None:
    with sessions(3, dps.SyncReplicas(2, 3), ps=2) as (one, two, three):
        assert pushes([one, three], [1.0, 2.0]) == [dps.Push(1, True), dps.Push(1, True)]
        assert two.push(grads(100.0)) == dps.Push(1, False)
        assert everywhere(two) == -1.5
        assert [one.stats()[f"ps:{i}"]["dropped"] for i in range(2)] == [1, 1]
        assert pushes([two, one], [1.0, 0.0]) == [dps.Push(2, True), dps.Push(2, True)]
        assert everywhere(one) == -2.0


def test_fewer_workers_than_gradients_compute_several_batches_for_a_step() -> None:
    with sessions(2, dps.SyncReplicas(4, 2), ps=2) as both:
        assert pushes(both, [1.0, 2.0]) == [dps.Push(0, True), dps.Push(0, True)]  # by the initial tokens, 4 - 2
        assert everywhere(both[0]) == 0.0
        assert pushes(both, [3.0, 6.0]) == [dps.Push(1, True), dps.Push(1, True)]
        assert everywhere(both[1]) == -3.0
        again = pushes(both, [1.0, 1.0]) + pushes(both, [1.0, 1.0])
        assert [push.step for push in again] == [1, 1, 2, 2] and everywhere(both[0]) == -4.0


def test_as_many_initial_tokens_as_tensorflow_gives_waste_what_is_computed_during_the_first_update() -> None:
    with sessions(2, dps.SyncReplicas(2, 2, initial_tokens=2)) as (one, two):
        assert one.push(grads(1.0)) == dps.Push(0, True)  # released at once, with the values of step 0
        assert two.push(grads(3.0)) == dps.Push(0, True)  # by the second of the two first tokens
        assert everywhere(two) == -2.0
        assert pushes([one, two], [100.0, 100.0]) == [dps.Push(1, False), dps.Push(1, False)]
        assert pushes([one, two], [1.0, 1.0]) == [dps.Push(2, True), dps.Push(2, True)]
        assert everywhere(one) == -3.0


@pytest.mark.parametrize("ps", [1, 2])
def test_with_initial_tokens_old_tokens_are_taken_first_as_in_tensorflow(ps: int) -> None:
    with sessions(3, dps.SyncReplicas(2, 3, initial_tokens=3), ps=ps) as workers:
        told = [
            workers[of].push(grads(value)) for of, value in ((0, 0.2), (2, 1.0), (1, 3.0), (0, 1.0), (1, 2.0), (2, 0.6))
        ]
        assert [(push.step, push.accepted) for push in told] == [
            (0, True), (0, True), (0, False), (1, False), (1, False), (1, False),
        ]  # fmt: skip
        assert everywhere(workers[0]) == -0.6 and workers[0].global_step == 1


def test_a_worker_that_enters_late_takes_an_old_token_and_its_next_gradient_is_dropped() -> None:
    settings: dict[str, Any] = {"optimizer": dps.optim.SGD(1.0), "timeout": 60}
    settings["update"] = dps.SyncReplicas(1, 2, initial_tokens=2)
    with cluster(1, 2, "inproc") as servers, ExitStack() as stack:
        one = stack.enter_context(dps.Session(servers[0], params(), **settings))
        assert one.push(grads(1.0)) == dps.Push(0, True)
        late = stack.enter_context(dps.Session(servers[1], params(), **settings))
        assert late.push(grads(1.0)) == dps.Push(0, True)  # it entered at step 1, and its token is one of step 0
        assert late.push(grads(1.0)) == dps.Push(1, False)
        assert everywhere(one) == -2.0


def test_whether_a_push_is_in_its_set_is_known_before_its_token_comes() -> None:
    """One of two gradients makes a step, and two tokens are given for it: two late pushes before it take both."""
    with sessions(2, dps.SyncReplicas(1, 2)) as (late, quick):
        assert quick.push(grads(1.0)) == dps.Push(1, True)
        dropped = [late.push_async(grads(100.0)) for _ in range(3)]
        assert late.stats()["ps:0"]["dropped"] == 3
        reply = quick.push_async(grads(1.0))
        assert not done_soon(reply, quick) and reply.accepted is True
        assert [r.result() for r in dropped] == [dps.Push(1, False), dps.Push(2, False), dps.Push(2, False)]
        assert late.push(grads(1.0)) == dps.Push(3, True) and reply.result() == dps.Push(3, True)
        assert everywhere(quick) == -3.0


@pytest.mark.parametrize("partitioner", [None, dps.partition.Fixed(3)])
def test_a_sparse_row_is_divided_by_the_pushes_that_touched_it(partitioner: Any) -> None:
    rows = {
        0: dps.Rows([0, 1, 0], np.array([[1.0, 1], [2, 2], [3, 3]])),
        1: dps.Rows([5, 1], np.array([[7.0, 7], [4, 4]])),
        2: dps.Rows([1], np.array([[6.0, 6]])),
    }
    with sessions(3, dps.SyncReplicas(), ps=2, partitioner=partitioner) as workers:
        for reply in [worker.push_async({"table": rows[i]}) for i, worker in enumerate(workers)]:
            assert reply.result() == dps.Push(1, True)
        table = workers[0].pull()["table"]
    assert table[:, 0].tolist() == [-4.0, -4.0, 0, 0, 0, -7.0]  # (1 + 3) / 1, (2 + 4 + 6) / 3, 7 / 1


def test_a_variable_is_divided_by_the_pushes_that_have_a_gradient_for_it() -> None:
    with sessions(2, dps.SyncReplicas(), ps=2) as (one, two):
        reply = one.push_async({"a": np.full(2, 4.0), "table": dps.Rows([2], np.full((1, 2), 3.0))})
        assert two.push({"b": np.full(3, 6.0), "table": TABLE + 1.0}).accepted and reply.result().accepted
        values = one.pull()
    assert values["a"].tolist() == [-4.0] * 2 and values["b"].tolist() == [-6.0] * 3 and values["scalar"] == 0
    assert values["table"][:, 0].tolist() == [-1.0, -1.0, -2.0, -1.0, -1.0, -1.0]


@pytest.mark.parametrize("update", [dps.SyncReplicas(), dps.SyncReplicas(2, 2)])
def test_a_worker_that_finishes_lowers_the_quota(update: Any) -> None:
    with sessions(2, update, ps=2) as (one, two):
        pushes([one, two], [1.0, 3.0])
        waiting = one.push_async(grads(1.0))
        assert not done_soon(waiting, one)
        two.close()
        assert waiting.result() == dps.Push(2, True)
        assert one.push(grads(1.0)) == dps.Push(3, True) and everywhere(one) == -4.0


def test_a_worker_that_dies_lowers_the_quota() -> None:
    def train(server: Any) -> Any:
        with dps.Session(server, params(), optimizer=dps.optim.SGD(1.0), timeout=60) as session:
            while session.global_step < 6:
                assert session.push(grads(1.0)).accepted
            return everywhere(session)

    run = dps.simulate(
        train, ps=2, workers=3, update="sync", compute=dps.sim.Compute(seconds=1.0),
        faults=[dps.sim.Kill("worker:1", at=3.5)],
    )  # fmt: skip
    assert run.results == [-6.0, None, -6.0]
    assert not run.errors and run.seconds < 20


def test_one_worker_makes_no_step_that_takes_two_and_the_error_says_what_is_missing() -> None:
    def train(_: Any) -> None:
        settings: dict[str, Any] = {"optimizer": dps.optim.SGD(1.0), "update": dps.SyncReplicas(2, 2), "timeout": 5}
        with dps.Server.create_local_server() as server, dps.Session(server, params(), **settings) as session:
            session.push(grads(1.0))

    missing = "step 1 needs 2 gradients from 2 workers; this cluster has 1"
    (error,) = dps.simulate(train, workers=1).errors.values()
    assert error == f"DeadlineExceeded: worker:0: a push took more than 5.0 s at step 0: {missing}"


def test_a_local_server_makes_a_step_of_several_batches_of_its_one_worker() -> None:
    update = dps.SyncReplicas(2, 1)
    with (
        dps.Server.create_local_server() as server,
        dps.Session(server, params(), optimizer=dps.optim.SGD(1.0), update=update, timeout=60) as session,
    ):
        assert [session.push(grads(value)) for value in (1.0, 2.0)] == [dps.Push(0, True), dps.Push(1, True)]
        assert everywhere(session) == -1.5


@pytest.mark.parametrize("ps", [1, 2])
def test_two_workers_make_no_step_that_takes_four(ps: int) -> None:
    def train(server: Any) -> None:
        update = dps.SyncReplicas(4, 4)
        with dps.Session(server, params(), optimizer=dps.optim.SGD(1.0), update=update, timeout=30) as session:
            session.push(grads(1.0))

    run = dps.simulate(train, ps=ps, workers=2)
    assert len(run.errors) == 2 and not [e for e in run.trace if e.what == "applied"]
    words = "step 1 needs 4 gradients from 4 workers; this cluster has 2"
    assert all(words in text for text in run.errors.values()), run.errors


@pytest.mark.parametrize("bad", ["a", "b"])
def test_a_gradient_that_one_ps_refuses_is_refused_on_all_and_the_step_goes_on_without_it(bad: str) -> None:
    with sessions(2, dps.SyncReplicas(), ps=2) as (good, other):
        reply = good.push_async(grads(2.0))
        poisoned = grads(100.0)
        poisoned[bad][1] = np.nan
        with pytest.raises(ValueError, match=f"gradient of {bad} has NaN"):
            other.push(poisoned)
        assert reply.result() == dps.Push(1, True)
        assert everywhere(good) == -2.0
        assert [good.stats()[f"ps:{i}"]["refused"] for i in range(2)] == [1, 1]
        assert pushes([good, other], [1.0, 3.0]) == [dps.Push(2, True), dps.Push(2, True)]  # it had its token
        assert everywhere(other) == -4.0


@pytest.mark.parametrize("mode", [dps.Async(), dps.Bounded(3)])
def test_with_two_ps_a_bad_gradient_is_found_before_any_part_of_it_is_sent(mode: Any) -> None:
    with sessions(1, mode, ps=2) as (one,):
        poisoned = grads(1.0)
        poisoned["b"][0] = np.inf
        with pytest.raises(ValueError, match="gradient of b has NaN or infinite"):
            one.push(poisoned)
        assert [one.stats()[f"ps:{i}"]["applied"] for i in range(2)] == [0, 0]
        assert one.push(grads(1.0)).accepted and everywhere(one) == -1.0


# -- bounded ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("bound", [0, 2])
def test_a_worker_reads_only_while_it_is_at_most_the_bound_ahead(ps: int, bound: int) -> None:
    with sessions(2, dps.Bounded(bound), ps=ps) as (quick, slow):
        for _ in range(bound):
            quick.push(grads(1.0))
        assert everywhere(quick) == -bound
        assert quick.push(grads(1.0)).accepted  # applied and acknowledged at once; only the read waits
        waiting = quick.pull_async()
        assert not done_soon(waiting, slow) and not waiting.done()
        assert everywhere(slow) == -(bound + 1)
        slow.push(grads(1.0))
        slow.pull()
        assert waiting.result()["a"].tolist() == [-(bound + 2.0)] * 2


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("what", ["rows", "rows in the background", "rows of two", "names", "keys"])
def test_a_lookup_and_a_pull_of_some_variables_wait_for_the_slowest_too(what: str, ps: int) -> None:
    keyed = dps.Variable(keys="int64", dim=2, capacity=100, dtype="float64", init=dps.init.Zeros())
    values = {**params(), "keyed": keyed}  # with two ps `b` is not on the step ps

    def read_async(session: dps.Session) -> dps.Reply[Any]:
        if what == "names":
            return session.pull_async(["b"])
        return session.lookup_async(
            {"rows of two": {"b": [0], "table": [1]}, "keys": {"keyed": [7]}}.get(what, {"b": [2]})
        )

    with cluster(ps, 2, "inproc") as servers, ExitStack() as stack:
        settings: Any = {"optimizer": dps.optim.SGD(1.0), "update": dps.Bounded(1), "timeout": 60}
        quick, slow = [stack.enter_context(dps.Session(server, values, **settings)) for server in servers]
        for _ in range(2):
            read_async(quick).result()
            quick.push(grads(1.0))
        if what == "rows":
            with pytest.raises(DeadlineExceeded, match="waits for worker:1 to come within 1 steps"):
                quick.lookup("b", [2], timeout=0.5)
        waiting = read_async(quick)
        assert not done_soon(waiting, slow) and not waiting.done()
        read_async(slow).result()
        slow.push(grads(1.0))
        read_async(slow).result()
        found = waiting.result()
        if what != "keys":
            assert found["b"][0] == -3.0


def test_the_answer_of_a_bounded_step_waits_as_a_pull_does_and_the_error_names_the_slowest() -> None:
    def train(server: Any) -> None:
        with dps.Session(server, params(), optimizer=dps.optim.SGD(1.0), update=dps.Bounded(0), timeout=60) as session:
            server.runtime.sleep(1.0)  # until both are open
            if server.task == 1:
                server.runtime.sleep(5.0)
                session.push(grads(1.0))
                server.runtime.sleep(5.0)
            else:
                with pytest.raises(DeadlineExceeded, match="waits for worker:1 to come within 0 steps"):
                    session.step(grads(1.0), timeout=2.0)
                session.pull()
                assert everywhere(session) == -2.0

    run = dps.simulate(train, workers=2)
    assert not run.errors


@pytest.mark.parametrize("ps", [1, 2])
def test_a_refused_push_moves_no_clock(ps: int) -> None:
    with sessions(2, dps.Bounded(0), ps=ps) as (quick, slow):
        for refused in (quick.push, quick.step):
            with pytest.raises(ValueError, match="NaN"):
                refused(grads(np.nan))
        assert everywhere(quick) == 0.0  # it is not ahead
        quick.push(grads(1.0))
        waiting = quick.pull_async()
        for refused in (slow.push, slow.step):
            with pytest.raises(ValueError, match="NaN"):
                refused(grads(np.nan))
        assert everywhere(slow) == -1.0
        assert not done_soon(waiting, quick)  # the other one has not come nearer
        slow.push(grads(1.0))
        slow.pull()
        assert waiting.result()["a"].tolist() == [-2.0, -2.0]


def test_a_worker_that_leaves_no_longer_counts() -> None:
    with sessions(2, dps.Bounded(0)) as (quick, slow):
        quick.push(grads(1.0))
        waiting = quick.pull_async()
        assert not done_soon(waiting, quick)
        slow.close()
        assert waiting.result()["a"].tolist() == [-1.0, -1.0]


def test_a_worker_that_joins_starts_at_the_lowest_clock() -> None:
    settings: dict[str, Any] = {"optimizer": dps.optim.SGD(1.0), "update": dps.Bounded(1), "timeout": 60}
    with cluster(1, 3, "inproc") as servers, ExitStack() as stack:
        one, two = [stack.enter_context(dps.Session(s, params(), **settings)) for s in servers[:2]]
        for session in (one, two, one, two):
            session.step(grads(1.0))
        late = stack.enter_context(dps.Session(servers[2], params(), **settings))  # at clock 2, as the others
        one.push(grads(1.0))
        assert everywhere(one) == -5.0  # 3 is one ahead of 2
        one.push(grads(1.0))
        two.push(grads(1.0))
        two.pull()
        waiting = one.pull_async()
        assert not done_soon(waiting, one)  # 4 is two ahead of the late one
        late.push(grads(1.0))
        late.pull()
        assert waiting.result()["a"].tolist() == [-8.0, -8.0]


# -- the switch ---------------------------------------------------------------------------------------------------


def test_a_session_that_says_nothing_takes_what_the_ps_has() -> None:
    def work(server: dps.Server) -> Any:
        with dps.Session(server, params(), optimizer=dps.optim.SGD(1.0), timeout=60) as session:
            return [session.push(grads(1.0)) for _ in range(2)]

    with cluster(1, 2, "inproc", update="sync") as servers:
        assert on_all(servers, work) == [[dps.Push(1, True), dps.Push(2, True)]] * 2


@pytest.mark.parametrize(
    ("flag", "wanted", "words"),
    [
        ("sync", dps.Async(), r"worker:0 wants Async\(\), the chief has SyncReplicas\(\)"),
        ("bounded:2", dps.Bounded(3), r"worker:0 wants Bounded\(staleness=3\), the chief has Bounded\(staleness=2\)"),
        ("async", dps.Async(max_staleness=4), r"Async\(max_staleness=4\), the chief has Async\(\)"),
    ],
)
def test_a_session_that_wants_another_mode_than_the_flag_is_told_both(flag: str, wanted: Any, words: str) -> None:
    with cluster(1, 1, "inproc", update=flag) as (server,):
        with pytest.raises(ConfigError, match=words):
            dps.Session(server, params(), optimizer=dps.optim.SGD(1.0), update=wanted, timeout=60)
        with dps.Session(server, params(), optimizer=dps.optim.SGD(1.0), timeout=60) as session:
            assert session.push(grads(1.0)).accepted


def test_two_ps_with_two_flags_are_told_both() -> None:
    chief = dps.Server(None, "chief", 0, bind="127.0.0.1:0", ps=2, workers=1)
    made = [chief, dps.Server(None, "ps", 0, chief=chief.address, update="sync")]
    try:
        made[1].wait_joined(chief.runtime.now() + 10)
        made.append(dps.Server(None, "ps", 1, chief=chief.address, update="async"))
        assert made[2].join(60) == 2
        assert "ps:1 wants Async(), ps:0 has SyncReplicas()" in made[2].reason
    finally:
        for server in made:
            server.stop()


def test_a_workers_clock_rises_with_its_pushes_whether_it_pulls_or_not() -> None:
    with cluster(1, 2, "inproc") as servers:
        one, two = [
            dps.Session(s, {"a": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), update=dps.Bounded(0), timeout=60)
            for s in servers
        ]
        for session in (one, two):
            session.push({"a": np.ones(2)})
        assert one.pull()["a"].tolist() == [-2.0, -2.0]
        one.close()
        two.close()


def test_with_several_ps_a_push_tells_of_those_before_it() -> None:
    values = {"a": np.zeros(2), "b": np.zeros(2)}
    with cluster(2, 2, "inproc") as servers:
        one, two = [
            dps.Session(s, values, optimizer=dps.optim.SGD(1.0), update=dps.Bounded(1), timeout=60) for s in servers
        ]
        for session in (one, two):
            for _ in range(3):
                session.push({name: np.ones(2) for name in values})
        assert one.pull()["a"].tolist() == [-6.0, -6.0]  # two has told of two of its three pushes
        one.close()
        two.close()


@pytest.mark.parametrize("mode", [dps.Async(), dps.SyncReplicas()])
def test_the_first_update_takes_a_schedules_rate_at_step_0(mode: Any) -> None:
    rate = dps.optim.Exponential(1.0, 0.5, 1)
    values = {"a": np.zeros(2), "b": np.zeros(2)}
    with (
        cluster(2, 1, "inproc") as (server,),
        dps.Session(server, values, optimizer=dps.optim.SGD(rate), update=mode, timeout=60) as session,
    ):
        for expected in (-1.0, -1.5):
            session.push({name: np.ones(2) for name in values})
            pulled = session.pull()
            assert pulled["a"].tolist() == pulled["b"].tolist() == [expected, expected]
