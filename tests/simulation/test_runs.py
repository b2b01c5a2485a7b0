"""How a run begins, goes on after losses and ends, on the virtual clock: what a training loop sees of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import TaskLost
from dps.launch.commands.simulate import SimulatedCluster
from dps.transport.sim import Compute, Kill, Network
from dps.transport.sim.world import DiskFull

WORLD: dict[str, Any] = {"compute": Compute(1.0), "network": Network(latency_s=1e-3)}
EXACT: dict[str, Any] = {**WORLD, "calibration": None}
"""A step takes a second, everything else next to nothing."""


def session(server: Any, **settings: Any) -> dps.Session:
    first = {"a": np.full(2, float(server.task)), "b": np.zeros(3)}
    return dps.Session(server, first, **{"optimizer": dps.optim.SGD(1.0), "timeout": 100, **settings})


def ones() -> dict[str, Any]:
    return {"a": np.full(2, -1.0), "b": np.full(3, -1.0)}


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What is logged; caplog does not see the simulator's tasks."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dps").addHandler(handler)
    yield texts
    logging.getLogger("dps").removeHandler(handler)


class Joining(SimulatedCluster):
    """Only the chief's address is given to the workers, and their number is not known."""

    def _serve(self, job: str, task: int, ps: int, workers: int, update: Any) -> int:
        return super()._serve(job, task, ps, 0, update)


def happened(run: Any, what: str) -> list[Any]:
    return [event for event in run.trace if event.what == what]


# -- beginning ----------------------------------------------------------------------------------------------------


def test_the_first_sessions_values_are_taken_and_those_of_later_ones_ignored() -> None:
    def train(server: Any) -> Any:
        if server.task == 0:
            server.runtime.sleep(5.0)
        with session(server) as s:
            return float(s.pull()["a"][0])

    assert dps.simulate(train, ps=2, workers=2, calibration=None).results == [1.0, 1.0]


def test_the_first_sync_step_waits_for_all_that_are_expected() -> None:
    def train(server: Any) -> Any:
        server.runtime.sleep(20.0 * server.task)
        with session(server) as s:
            before = server.runtime.now()
            push = s.push(ones())
            return push.step, server.runtime.now() - before

    run = dps.simulate(train, workers=3, update="sync", **EXACT)
    assert [step for step, _ in run.results] == [1, 1, 1]
    assert [waited > 38 for _, waited in run.results] == [True, False, False] and run.results[1][1] > 18


def test_an_expected_worker_that_never_comes_is_given_up_and_the_run_ends_without_it(said: list[str]) -> None:
    def train(server: Any) -> Any:
        with session(server, timeout=200) as s:
            return s.push(ones()).step

    run = dps.simulate(train, workers=2, update="async", faults=[Kill("worker:1", at=0.0)], **EXACT)
    assert run.results == [1, None] and not run.errors and 60 < run.seconds < 90
    assert any("worker:1 has not come for 60 s; the run may end without it" in text for text in said)


def test_a_worker_that_never_came_lowers_no_quota() -> None:
    def train(server: Any) -> Any:
        with session(server, timeout=100) as s:
            return s.push(ones()).step

    run = dps.simulate(train, workers=2, update="sync", faults=[Kill("worker:1", at=0.0)], **EXACT)
    assert not happened(run, "applied") and run.results == [None, None] and 100 < run.seconds < 130
    assert (
        "step 1 needs 2 gradients from 2 workers; this cluster has 1: step 1 waits for worker:1"
        in (run.errors["worker:0"])
    )


@pytest.mark.parametrize("killed_at", [0.0, 3.5])
def test_a_restarted_chief_knows_which_worker_never_came(killed_at: float) -> None:
    def train(server: Any) -> Any:
        with session(server, update=dps.SyncReplicas(3, 3), checkpoint_dir="run", timeout=150) as s:
            while s.global_step < 30:
                s.push(ones())

    faults = [Kill("worker:2", at=killed_at), Kill("chief", at=20.0, restart_after=1.0)]
    run = dps.simulate(train, workers=3, faults=faults, **EXACT)
    if killed_at:
        assert not run.errors and {len(e.detail["pushes"]) for e in happened(run, "applied")} == {2, 3}
    else:
        assert not happened(run, "applied")
        words = "step 1 needs 3 gradients from 3 workers; this cluster has 2: step 1 waits for worker:2"
        assert words in run.errors["worker:0"]


def test_a_step_that_lacks_a_worker_is_made_with_one_that_comes_later() -> None:
    def train(server: Any) -> list[dps.Push]:
        server.runtime.sleep(20.0 * server.task)
        with session(server, update=dps.SyncReplicas(2, 2)) as s:
            return [s.push(ones()) for _ in range(2)]

    with Joining(train, workers=2, **WORLD) as cluster:
        run = cluster.run()
    assert run.results == [[dps.Push(1, True), dps.Push(2, True)]] * 2
    assert [len(event.detail["pushes"]) for event in happened(run, "applied")] == [2, 2]


def test_a_later_joiner_enters_at_the_next_step() -> None:
    """It was not waited for."""

    def train(server: Any) -> Any:
        server.runtime.sleep(10.5 * server.task)
        with session(server, update=dps.SyncReplicas()) as s:
            steps = []
            while s.global_step < 20:
                steps.append(s.push(ones()).step)
            return steps

    with Joining(train, workers=2, **WORLD) as cluster:
        run = cluster.run()
    assert not run.errors and run.results[0] == list(range(1, 21))
    late = run.results[1]
    assert 10 <= late[0] <= 13 and late == list(range(late[0], 21))
    alone, both = [[e for e in happened(run, "applied") if len(e.detail["pushes"]) == n] for n in (1, 2)]
    assert max(e.detail["step"] for e in alone) == late[0] - 1 and len(both) == 21 - late[0]


def test_who_waits_for_the_first_values_is_told_from_whom_they_are_to_come() -> None:
    def train(server: Any) -> Any:
        try:
            with dps.Session(server, timeout=3.0):
                return "opened"
        except dps.DeadlineExceeded as error:
            return str(error)

    (said,) = dps.simulate(train, calibration=None).results
    assert said.startswith("worker:0: could not join the run at chief:")
    assert "the chief waits for a session that brings variables" in said


def test_the_session_of_the_lowest_living_worker_is_chief_among_them() -> None:
    def train(server: Any) -> Any:
        found = []
        with session(server) as s:
            server.runtime.sleep(5.0)
            found.append(s.is_chief)
            server.runtime.sleep(5.0 if server.task == 0 else 10.0)
            if server.task:
                found.append(s.is_chief)
        return found

    assert dps.simulate(train, workers=3, calibration=None).results == [[True], [False, True], [False, False]]


# -- losses -------------------------------------------------------------------------------------------------------


class Rollbacks(dps.Hook):
    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def rolled_back(self, session: Any, step: int, lost: int) -> None:
        self.seen.append((step, lost))


def roll_back(server: Any, update: Any) -> Any:
    """Ten accepted steps with a save after the fourth; ps:1 is killed in the middle of the seventh."""
    rollbacks = Rollbacks()
    refused: list[dps.Push] = []
    incarnations: list[int] = []
    with session(server, update=update, checkpoint_dir="run", hooks=[rollbacks, dps.CheckpointSaver(steps=1000)]) as s:
        while s.global_step < 10:
            incarnation = s._connection.caller.incarnation
            if incarnation not in incarnations:
                incarnations.append(incarnation)
            push = s.push(ones())
            if not push.accepted:
                refused.append(push)
            if push.step == 4 and push.accepted and not rollbacks.seen:
                s.save()
        values = s.pull()
        a, b = float(values["a"][0]), float(values["b"][0])
        return {"rolled": rollbacks.seen, "refused": refused, "a": a, "b": b, "incarnations": len(incarnations)}


@pytest.mark.parametrize("update", [dps.Async(), dps.SyncReplicas(), dps.Bounded(2)])
def test_a_lost_ps_rolls_everybody_back_and_nothing_is_raised_in_the_loop(update: Any, said: list[str]) -> None:
    run = dps.simulate(roll_back, update, ps=2, workers=1, faults=[Kill("ps:1", at=7.5, restart_after=1.0)], **EXACT)
    assert not run.errors and set(run.exit_codes.values()) == {0}
    (found,) = run.results
    ((step, lost),) = found["rolled"]
    assert step == 4 and lost in (2, 3, 4)
    assert found["refused"] == [dps.Push(4, False)] and found["incarnations"] == 2
    assert (found["a"], found["b"]) == (10.0, 10.0)
    least = "at least " if isinstance(update, dps.Async) else ""  # the lost ps may have counted more
    assert any(f"rolled back to step 4 in run epoch 2, {least}{lost} steps lost" in text for text in said)


def test_a_push_that_waits_for_its_token_and_a_pull_that_waits_come_back_from_a_rollback() -> None:
    """Worker 1 sleeps, so worker 0 waits when the ps dies: for its token in sync, for its pull in bounded."""

    def train(server: Any, update: Any) -> list[Any]:
        found: list[Any] = []
        with session(server, update=update, checkpoint_dir="run") as s:
            if server.task:
                server.runtime.sleep(30.0)
            for _ in range(2):
                push = s.push(ones())
                found.append((push.step, push.accepted, float(s.pull()["b"][0])))
        return found

    fault = Kill("ps:0", at=5.0, restart_after=1.0)
    run = dps.simulate(train, dps.SyncReplicas(), workers=2, faults=[fault], **EXACT)
    assert not run.errors and run.results == [[(0, False, 0.0), (1, True, 1.0)]] * 2
    run = dps.simulate(train, dps.Bounded(0), workers=2, faults=[fault], **EXACT)
    assert not run.errors and run.results[0][0] == (1, True, 0.0)  # its push is lost, and said so by the rollback


def test_without_a_checkpoint_dir_a_lost_ps_ends_the_run_with_task_lost_and_exit_code_3() -> None:
    def train(server: Any) -> Any:
        with session(server) as s:
            while True:
                s.push(ones())

    run = dps.simulate(train, ps=2, workers=2, faults=[Kill("ps:1", at=3.5)], **EXACT)
    assert run.exit_codes["chief"] == 3 and run.exit_codes["ps:0"] == 3
    for text in (run.errors["worker:0"], run.errors["worker:1"]):
        assert text.startswith("TaskLost: ps:1 ") and "give the session a checkpoint_dir" in text
    assert TaskLost("").exit_code == 3


def ten_steps(server: Any, update: Any, checkpoint_dir: str | None, holder: int) -> Any:
    """Ten steps of a model that lies on one ps of two or three; how many rollbacks, and the values."""
    rollbacks = Rollbacks()
    settings = {"placement": lambda *_: holder, "update": update, "checkpoint_dir": checkpoint_dir}
    with session(server, hooks=[rollbacks], **settings) as s:
        accepted = [s.push(ones()).accepted for _ in range(10)]
        return len(rollbacks.seen), sum(accepted), float(s.pull()["b"][0])


@pytest.mark.parametrize("update", [dps.Async(), dps.SyncReplicas(), dps.Bounded(2)])
@pytest.mark.parametrize(("holder", "back"), [(0, None), (1, None), (0, 1.0), (1, 1.0)])
def test_a_lost_ps_that_holds_no_variables_does_not_touch_the_run(
    update: Any, holder: int, back: float | None, said: list[str]
) -> None:
    """Whether it was the first of the cluster or the last, whether it comes back or not, and with nothing saved."""
    empty = 1 - holder
    fault = Kill(f"ps:{empty}", at=4.5, restart_after=back)
    run = dps.simulate(ten_steps, update, None, holder, ps=2, workers=1, faults=[fault], restarts=0, **EXACT)
    assert not run.errors and run.results == [(0, 10, 10.0)] and run.exit_codes["chief"] == 0
    assert any(f"ps:{empty} " in text and "it holds no variables, the run goes on" in text for text in said)
    assert run.exit_codes.get(f"ps:{empty}") == (None if back is None else 0)


def test_a_rollback_does_not_wait_for_a_lost_ps_that_holds_no_variables() -> None:
    faults = [Kill("ps:0", at=3.5), Kill("ps:1", at=6.5, restart_after=1.0)]
    run = dps.simulate(ten_steps, dps.SyncReplicas(), "run", 1, ps=3, workers=1, faults=faults, restarts=0, **EXACT)
    ((rolled, accepted, _),) = run.results
    assert not run.errors and (rolled, accepted) == (1, 9) and run.seconds < 30


def test_a_session_may_join_while_a_ps_that_holds_no_variables_is_away() -> None:
    def train(server: Any) -> Any:
        server.runtime.sleep(10.0 * server.task)
        return ten_steps(server, None, None, 0)

    run = dps.simulate(train, ps=2, workers=2, faults=[Kill("ps:1", at=4.5)], restarts=0, **EXACT)
    assert not run.errors and [accepted for _, accepted, _ in run.results] == [10, 10]


def test_a_ps_that_does_not_come_back_ends_the_waits_with_its_name_and_how_long_it_was_silent() -> None:
    def train(server: Any) -> Any:
        try:
            with session(server, checkpoint_dir="run", timeout=20.0) as s:
                while True:
                    s.push(ones())
        except dps.DeadlineExceeded as error:
            return str(error)

    fault = Kill("ps:1", at=3.5, restart_after=1000.0)
    run = dps.simulate(train, ps=2, faults=[fault], until_s=300.0, **EXACT)
    assert run.results[0] is not None
    assert "ps:1 (" in run.results[0] and " s)" in run.results[0]


def test_a_new_epoch_begins_from_whole_checkpoints_only() -> None:
    """The disk is full when the second save is due: the first one is what the run goes back to."""

    def train(server: Any) -> Any:
        rollbacks = Rollbacks()
        with session(server, checkpoint_dir="run", hooks=[rollbacks, dps.CheckpointSaver(steps=3)]) as s:
            while s.global_step < 10:
                s.push(ones())
            return rollbacks.seen, float(s.pull()["b"][0])

    faults = [DiskFull(at=5.0, seconds=2.5), Kill("ps:0", at=7.9, restart_after=1.0)]
    run = dps.simulate(train, ps=2, faults=faults, **EXACT)
    ((step, _),), value = run.results[0]
    assert not run.errors and step == 3 and value == 10.0


# -- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint_dir", [None, "run"])
def test_when_all_workers_have_finished_everything_ends_within_two_seconds(checkpoint_dir: str | None) -> None:
    def train(server: Any) -> Any:
        with session(server, checkpoint_dir=checkpoint_dir) as s:
            for _ in range(2 + server.task):
                s.push(ones())
        return server.runtime.now()

    run = dps.simulate(train, ps=2, workers=3, clock_offsets=False, **EXACT)
    assert set(run.exit_codes.values()) == {0} and not run.errors
    ends = {e.process: e.time_s for e in happened(run, "exit")}
    last = max(run.results)
    assert all(ends[name] - last < 2.0 for name in ("chief", "ps:0", "ps:1"))


def test_nobody_ends_while_an_expected_worker_is_still_to_come() -> None:
    def train(server: Any) -> Any:
        server.runtime.sleep(30.0 * server.task)
        with session(server) as s:
            return s.push(ones()).step

    assert dps.simulate(train, workers=2, **EXACT).results == [1, 2]


# -- readers ------------------------------------------------------------------------------------------------------


def test_only_the_shards_that_changed_move() -> None:
    def train(server: Any) -> Any:
        with session(server) as s:
            s.pull(if_newer_than=s.version)
            version = s.version
            s.push({"b": np.ones(3)})
            server.runtime.record("asks")
            values = s.pull(if_newer_than=version)
            assert s.pull(if_newer_than=s.version) is None
            return [float(values["a"][0]), float(values["b"][0])]

    # with two pushes at the step ps nothing moved there; the other one holds b
    run = dps.simulate(train, ps=2, calibration=None)
    assert run.results == [[0.0, -1.0]]
    asked = next(i for i, e in enumerate(run.trace) if e.what == "asks")
    assert [e.process for e in run.trace[asked:] if e.what == "pulled"] == ["ps:1"]
