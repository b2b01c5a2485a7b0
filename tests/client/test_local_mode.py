"""dps.Local: workers train copies of their own, and average them in rounds; against a plain computation, under faults,
through losses and rollbacks, and with real processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import dps
from dps.checkpoint import MemoryStorage, newest_whole
from dps.errors import ConfigError
from dps.transport.sim import Compute, Kill, Network, Pause
from tests.in_process import cluster

TRUTH = np.array([1.0, -2.0, 0.5])


def gradient(w: Any, task: int, step: int) -> Any:
    """Of a linear regression, on the batch that a worker has at a step."""
    rng = np.random.default_rng([task, step])
    x = rng.normal(size=(4, 3))
    return 2 * x.T @ (x @ w - x @ TRUTH) / 4


def train(server: Any, steps: int, update: Any, inner: Any = None, **settings: Any) -> Any:
    """The worker's values after so many steps, and what its pushes returned."""
    params = {"w": np.zeros(3), "n": np.array(0)}
    with dps.Session(server, params, optimizer=inner or dps.optim.SGD(0.1), update=update, **settings) as session:
        pushes = []
        for step in range(steps):
            w = session.pull()["w"]
            pushes.append(session.push({"w": gradient(w, server.task, step)}))
        return session.pull()["w"], [push.step for push in pushes]


class Momentum:
    """The formula of dps.optim.Momentum."""

    def __init__(self, rate: float, momentum: float) -> None:
        self.rate, self.momentum, self.velocity = rate, momentum, np.zeros(3)

    def __call__(self, w: Any, g: Any) -> Any:
        self.velocity = self.momentum * self.velocity + g
        return w - self.rate * self.velocity


def plain(steps: int, every: int, workers: int, inner: Callable[[], Any], outer: Any) -> Any:
    """The same in one process, without dps: copies, and the mean of their differences every so many steps."""
    w, own = np.zeros(3), [inner() for _ in range(workers)]
    for first in range(0, steps, every):
        moved = []
        for task in range(workers):
            copy = w
            for step in range(first, min(first + every, steps)):
                copy = own[task](copy, gradient(copy, task, step))
            moved.append(w - copy)
        w = outer(w, sum(moved) / workers)
    return w


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize(("steps", "every"), [(12, 4), (5, 1)])
def test_the_values_are_those_of_a_plain_computation_in_one_process(steps: int, every: int, ps: int) -> None:
    update = dps.Local(every, outer=dps.optim.Momentum(0.7, momentum=0.9))
    run = dps.simulate(train, steps, update, dps.optim.Momentum(0.05, momentum=0.5), workers=3, ps=ps)
    assert not run.errors, run.errors
    wanted = plain(steps, every, 3, lambda: Momentum(0.05, 0.5), Momentum(0.7, 0.9))
    for values, counted in run.results:
        np.testing.assert_allclose(values, wanted, rtol=1e-12)
        assert counted == [(step + 1) // every for step in range(steps)], "the global step counts rounds"


def test_a_round_of_one_step_with_sgd_1_is_what_synchronous_steps_give() -> None:
    runs = [dps.simulate(train, 6, update, workers=2) for update in (dps.Local(1), dps.SyncReplicas())]
    for values, _ in runs[0].results:
        np.testing.assert_allclose(values, runs[1].results[0][0], rtol=1e-12)


FAULTS: list[Any] = [Pause("worker:2", at=0.4, seconds=0.5), Pause("ps:1", at=0.9, seconds=0.3)]


@pytest.mark.parametrize("seed", range(10))
def test_lost_doubled_and_late_messages_and_pauses_change_nothing(seed: int) -> None:
    run = dps.simulate(
        train, 12, dps.Local(4), workers=3, ps=2, seed=seed, faults=FAULTS, compute=Compute(0.05, jitter=0.5),
        network=Network(loss=0.05, double=0.05, reorder=0.05),
    )  # fmt: skip
    assert not run.errors, run.errors
    wanted = plain(12, 4, 3, lambda: Momentum(0.1, 0.0), Momentum(1.0, 0.0))
    for values, _ in run.results:
        np.testing.assert_allclose(values, wanted, rtol=1e-12)


def test_steps_since_the_last_round_count_when_the_session_is_closed() -> None:
    def work(server: Any) -> Any:
        return goes(server, 8 if server.task else 5, dps.Local(4))

    run = dps.simulate(work, workers=2)
    assert not run.errors, run.errors
    assert run.results[1][0] == -10.5, "a round of (4 + 8) / 2, then one of (1 + 8) / 2"


# -- who joins and who is lost ---------------------------------------------------------------------------------------


def goes(server: Any, steps: int, update: Any) -> Any:
    """Worker n goes n + 1 down at each step; its value, the global step when it came, and what its pushes returned."""
    params, sgd = {"w": np.zeros(1)}, dps.optim.SGD(1.0)
    with dps.Session(server, params, optimizer=sgd, update=update, timeout=100) as session:
        begun = session.global_step
        done = [session.push({"w": np.full(1, server.task + 1.0)}).step for _ in range(steps)]
        return float(session.pull()["w"][0]), begun, done


def test_a_worker_that_joins_late_begins_from_the_common_values_and_is_part_of_the_running_round() -> None:
    def work(server: Any) -> Any:
        if server.task:
            with dps.Session(server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0), update=dps.Local(2)):
                pass
            server.runtime.sleep(4.5)
        return goes(server, 6 if server.task else 12, dps.Local(2))

    run = dps.simulate(work, workers=2, compute=Compute(1.0), network=Network(latency_s=1e-4))
    assert not run.errors, run.errors
    (end, _, done), (other, begun, _) = run.results
    assert begun == 2 and done == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert other == -2 * (2 * 1.0 + 3 * 1.5), "two rounds of one, then three of both"
    assert end == other - 2 * 1.0


def test_what_a_worker_did_in_a_round_in_which_it_dies_is_lost_and_the_others_go_on() -> None:
    faults = [Kill("worker:2", at=5.5)]
    near = Network(latency_s=1e-4)
    run = dps.simulate(goes, 8, dps.Local(2), workers=3, compute=Compute(1.0), network=near, faults=faults)
    (end, _, done), (other, _, _) = run.results[:2]
    assert done == [0, 1, 1, 2, 2, 3, 3, 4] and end == other
    assert end == -2 * (2 * 2.0 + 2 * 1.5), "two rounds of three workers, then two rounds of two"


class Told(dps.Hook):
    def __init__(self) -> None:
        self.lost: list[tuple[int, int]] = []

    def rolled_back(self, session: Any, step: int, lost: int) -> None:
        self.lost.append((step, lost))


@pytest.mark.parametrize("steps", [4, 6, 8])
def test_accepted_steps_of_a_round_that_ended_without_a_paused_worker_are_told(
    steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    def work(server: Any) -> Any:
        told, pushes = Told(), []
        with dps.Session(
            server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0), update=dps.Local(4), hooks=[told], timeout=60
        ) as session:
            for step in range(steps if server.task else 40):
                if server.task == 0 or step == 3:
                    server.runtime.sleep(0.5)  # worker:1 stands still meanwhile
                pushes.append(session.push({"w": np.ones(1)}).accepted)
        return pushes, told.lost

    run = dps.simulate(work, ps=1, workers=2, faults=[Pause("worker:1", at=0.3, seconds=6.0)], seed=1)
    assert not run.errors, run.errors
    pushes, lost = run.results[1]
    assert run.results[0] == ([True] * 40, [])
    assert pushes == [True, True, True, False, *[True] * (steps - 4)]
    assert [count for _, count in lost] == [4]
    step = lost[0][0]
    assert "worker:1: its 4 steps of a round are lost: the run went on without this session" in caplog.text
    assert f"it begins anew from the common values of round {step}" in caplog.text


def test_a_rollback_brings_the_values_of_the_checkpoint_and_slots_begin_anew() -> None:
    def work(server: Any) -> Any:
        with dps.Session(
            server, {"w": np.zeros(1)}, optimizer=dps.optim.Momentum(1.0, momentum=0.5), update=dps.Local(2),
            checkpoint_dir="run",
        ) as session:  # fmt: skip
            for _ in range(2):
                session.push({"w": np.ones(1)})  # -1, then -1.5 more
            session.save()
            for _ in range(3):
                session.push({"w": np.ones(1)})
            before = float(session.pull()["w"][0])
            session.restore()
            restored = float(session.pull()["w"][0]), session.global_step
            session.push({"w": np.ones(1)})
            return before, restored, float(session.pull()["w"][0])

    run = dps.simulate(work, workers=1)
    assert not run.errors, run.errors
    before, restored, after = run.results[0]
    assert before < -6 and restored == (-2.5, 1) and after == -3.5, "one step of 1, without velocity"


def test_a_lost_ps_rolls_back_to_the_checkpoint_and_the_push_says_so() -> None:
    def work(server: Any) -> Any:
        with dps.Session(
            server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0), update=dps.Local(2), checkpoint_dir="run",
            hooks=[dps.CheckpointSaver(steps=2)],
        ) as session:  # fmt: skip
            pushes = [session.push({"w": np.ones(1)}) for _ in range(20)]
            return pushes, float(session.pull()["w"][0])

    faults = [Kill("ps:0", at=7.5, restart_after=1.0)]
    run = dps.simulate(work, workers=2, compute=Compute(1.0), faults=faults)
    assert not run.errors, run.errors
    for pushes, value in run.results:
        undone = [push for push in pushes if not push.accepted]
        assert len(undone) == 1 and undone[0].step == 2
        assert value == -2.0 * pushes[-1].step


@pytest.mark.parametrize("seed", range(8))
def test_whenever_a_ps_is_lost_the_values_are_those_of_whole_rounds_of_both_workers(seed: int) -> None:
    def work(server: Any) -> float:
        with dps.Session(
            server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0), update=dps.Local(3), checkpoint_dir="run",
            hooks=[dps.CheckpointSaver(steps=1 + seed % 3)],
        ) as session:  # fmt: skip
            while session.global_step < 8:
                session.push({"w": np.full(1, server.task + 1.0)})
            return float(session.pull()["w"][0])

    at = np.random.default_rng(seed).uniform(0.2, 20.0)
    run = dps.simulate(
        work, workers=2, ps=2, seed=seed, faults=[Kill(f"ps:{seed % 2}", at=at, restart_after=1.0)],
        compute=Compute(1.0, jitter=0.5), network=Network(loss=0.02, double=0.02, reorder=0.02),
    )  # fmt: skip
    assert not run.errors, run.errors
    assert run.results == [-3 * 1.5 * 8] * 2


# -- checkpoints ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_holds_the_common_values_and_the_outer_slots_and_is_taken_up_again() -> None:
    storage = MemoryStorage()
    update, inner = dps.Local(2, outer=dps.optim.Momentum(1.0, momentum=0.5)), dps.optim.Adam(0.1)

    def work(server: Any, steps: int) -> Any:
        with dps.Session(server, {"w": np.zeros(3)}, optimizer=inner, update=update, checkpoint_dir="run") as session:
            begun = session.global_step, session.pull()["w"]
            for step in range(steps):
                session.push({"w": gradient(session.pull()["w"], 0, step)})
            return begun, session.pull()["w"]

    first = dps.simulate(work, 4, workers=1, storage=storage)
    assert not first.errors, first.errors
    manifest = newest_whole(storage, "run", print)
    assert manifest is not None and manifest.step == 2
    (variable,) = manifest.variables
    assert variable.slots == ("velocity",)
    assert variable.optimizer is not None and variable.optimizer["name"] == "momentum"
    assert variable.optimizer["inner"]["name"] == "adam"
    again = dps.simulate(work, 0, workers=1, storage=storage)
    (step, values), _ = again.results[0]
    assert step == 2 and values.tolist() == first.results[0][1].tolist()


# -- the same text ---------------------------------------------------------------------------------------------------


def test_all_calls_of_a_session_are_there() -> None:
    params = {"table": np.arange(6.0).reshape(3, 2), "b": {"v": np.zeros(2)}, "seen": np.zeros(1)}
    params["seen"] = dps.Variable(params["seen"], trainable=False)
    with (
        dps.Server.create_local_server() as server,
        dps.Session(server, params, optimizer=dps.optim.SGD(1.0), update="local:3") as session,
    ):
        session.pull()
        assert session.pull(if_newer_than=session.version) is None
        assert session.step({"table": dps.Rows([1, 1], np.ones((2, 2)))})["table"].tolist() == [[0, 1], [0, 1], [4, 5]]
        assert session.lookup("table", [[2, 1]]).tolist() == [[[4, 5], [0, 1]]]
        assert session.lookup({"table": [0], "seen": [0]})["table"].tolist() == [[0, 1]]
        assert session.lookup_async("table", [0], out=np.empty((1, 2))).result().tolist() == [[0, 1]]
        session.assign({"seen": np.full(1, 7.0)})
        assert session.pull(names=["seen"]) == {"seen": [7.0]}
        with session.view() as values:
            assert values["b"]["v"].tolist() == [0, 0] and not values["b"]["v"].flags.writeable
        reply = session.push_async({"b": {"v": np.ones(2)}})
        assert reply.done() and reply.accepted and reply.result().step == 0
        with session.view() as values:
            assert values["b"]["v"].tolist() == session.pull()["b"]["v"].tolist() == [-1, -1], (
                "the session's own values"
            )
            assert not values["b"]["v"].flags.writeable and values["table"].tolist() == [[0, 1], [0, 1], [4, 5]]
        with dps.Session(server) as reader:
            assert reader.pull()["b"]["v"].tolist() == [0, 0], "a reader sees the common values"
            grads = session.gradients()
            for array in (grads["table"], grads["b"]["v"]):
                array[:] = 1
            assert session.push({"table": grads["table"], "b": grads["b"]}).step == 1
            assert reader.pull()["b"]["v"].tolist() == [-2, -2] and reader.pull()["seen"].tolist() == [7]
        out = {"table": np.empty((3, 2)), "b": {"v": np.empty(2)}, "seen": np.empty(1)}
        assert session.pull(out=out)["table"].tolist() == [[-1, 0], [-1, 0], [3, 4]]
        assert session.pull_async(["b/v"]).result()["b"]["v"].tolist() == [-2, -2]
        with pytest.raises(ConfigError, match="local mode"):
            next(iter(session.prefetch()))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.push({"w": np.array([np.nan])}), "the gradient of w has NaN"),
        (lambda s: s.push({"v": np.ones(1)}), "no variable"),
        (lambda s: s.pull(names=["v"]), "no variables .'v'."),
        (lambda s: s.lookup("w", [3]), "row 3 of w is out of range"),
        (lambda s: s.lookup("w", [0], out=np.empty(3)), "wanted an array of float64 .1,."),
        (lambda s: s.lookup("w", [0], out=[1.0]), "wanted an array of float64 .1,."),
        (lambda s: s.lookup({"w": [0]}, out={"v": np.empty(1)}), "out has .'v'., wanted some of .'w'."),
        (lambda s: s.lookup("w", [0, 0], out=np.broadcast_to(np.empty(1), 2)), "lookup: out is read-only"),
        (lambda s: s.lookup("w", [0, 0], out=as_strided(np.empty(1), (2,), (0,))), "one memory for several"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(call: Any, words: str) -> None:
    with (
        dps.Server.create_local_server() as server,
        dps.Session(server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0), update=dps.Local(2)) as session,
    ):
        with pytest.raises(ValueError, match=words):
            call(session)
        assert session.push({"w": np.ones(1)}).step == 0 and session.pull()["w"].tolist() == [-1]


def test_a_lookup_of_the_own_copy_sorts_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup at the ps was prepared and dropped, only to check the arguments."""
    rows = np.arange(2000)[::-1].copy()
    with (
        dps.Server.create_local_server() as server,
        dps.Session(server, {"w": np.arange(2000.0)}, optimizer=dps.optim.SGD(1.0), update=dps.Local(2)) as session,
    ):
        session.pull()
        monkeypatch.setattr("dps.variables.rowlists._sorted", None)
        assert session.lookup("w", rows).tolist() == rows.tolist()
        assert session.lookup({"w": rows}, out={"w": np.empty(2000)})["w"].tolist() == rows.tolist()
        with pytest.raises(ValueError, match="row 2000 of w is out of range"):
            session.lookup("w", rows + 1)


def test_a_schedule_of_the_own_optimizer_counts_the_workers_steps_and_one_of_the_outer_counts_rounds() -> None:
    inner, outer = dps.optim.Piecewise([1, 4], [1.0, 10.0, 100.0]), dps.optim.Piecewise([0], [1.0, 0.5])
    with (
        dps.Server.create_local_server() as server,
        dps.Session(
            server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(inner), update=dps.Local(3, dps.optim.SGD(outer))
        ) as session,
    ):
        found = [float(session.step({"w": -np.ones(1)})["w"][0]) for _ in range(6)]
    assert found == [1, 2, 12, 22, 32, 72]  # 1 1 10 | 10 10 100, of which half counts


def test_tasks_that_want_another_mode_are_named() -> None:
    def work(server: Any) -> None:
        update = dps.Local(4 if server.task else 8)
        with dps.Session(server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0), update=update, timeout=5):
            server.runtime.sleep(1.0)

    errors = list(dps.simulate(work, workers=2).errors.values())
    assert any("Local(steps=4" in text and "Local(steps=8" in text for text in errors), errors


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: dps.Local(0), "steps is an int of at least 1"), (lambda: dps.Local(None), "got None"),
        (lambda: dps.Local(2, outer="sgd"), "got 'sgd', wanted one of dps.optim"),
        (lambda: dps.LocalCluster(update="local:0"), "steps is an int of at least 1"),
    ],
)  # fmt: skip
def test_a_mode_that_makes_no_sense_is_refused(made: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made()


def trains_in_a_process(server: dps.Server) -> Any:
    return train(server, 8, dps.Local(4))


@pytest.mark.slow
class Counted(dps.Session):
    """A user's own session, which counts its pushes."""

    pushed = 0

    def push(self, grads: Any, loss: Any = None, timeout: float | None = None) -> dps.Push:
        self.pushed += 1
        return super().push(grads, loss, timeout)


@pytest.mark.parametrize("update", ["async", "bounded:1", "sync", "local:2"])
def test_a_session_of_a_users_own_class_stays_one_in_every_mode(update: str) -> None:
    def work(server: Any) -> Any:
        with Counted(server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(0.5), update=update) as session:
            for _ in range(4):
                session.push({"w": np.ones(1)})
            return type(session) is Counted, session.pushed, session.pull()["w"].tolist()

    run = dps.simulate(work, workers=1, ps=1, update=update)
    assert run.errors == {} and run.results == [(True, 4, [-2.0])]


@pytest.mark.slow
def test_real_processes_give_the_same() -> None:
    with dps.LocalCluster(ps=1, workers=2) as local:
        found = local.run(trains_in_a_process).results
    wanted = plain(8, 4, 2, lambda: Momentum(0.1, 0.0), Momentum(1.0, 0.0))
    for values, _ in found:
        np.testing.assert_allclose(values, wanted, rtol=1e-12)


@pytest.mark.parametrize("inner", [dps.optim.AdamW(0.1), dps.optim.SGD(0.1)])
def test_slots_that_a_restart_loses_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, inner: Any) -> None:
    """A checkpoint has no slots of workers' own copies: AdamW began anew without a word."""
    caplog.set_level(logging.INFO, "dps")
    for start in range(2):
        with cluster(ps=1) as (worker,):
            train(worker, 4, dps.Local(2), inner, checkpoint_dir=str(tmp_path), timeout=60)
        told = [text for text in caplog.messages if "begin as new" in text]
        assert len(told) == (start if isinstance(inner, dps.optim.AdamW) else 0)
    for text in told:
        assert text == (
            "worker:0: the slots of its own copy (first_moment, second_moment) begin as new at round 2: in local mode "
            "each worker has its own, and no checkpoint holds them"
        )
