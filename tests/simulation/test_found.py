"""What the simulator has found, each kept as the run that showed it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.client.membership import Joining
from dps.errors import DeadlineExceeded
from dps.launch.commands.simulate import SimulatedCluster
from dps.messages.sessions import Decide
from dps.ps.modes.sync import SyncMode
from dps.ps.serving.reading import ShardReads
from dps.transport.sim import Kill, Network, Partition, Pause
from tests.simulation.scenario import run, scenario, varied, varied_with_kills


def train(server: Any) -> int:
    with dps.Session(server, {"a": np.zeros(4)}, optimizer=dps.optim.SGD(1.0)) as session:
        for _ in range(5):
            assert session.push({"a": np.ones(4)}).accepted
    return session.global_step


@pytest.mark.parametrize("seed", range(30))
def test_a_chief_that_stood_still_reads_the_news_before_it_judges(seed: int) -> None:
    stall = Pause("chief", at=0.0001 * (seed % 10), seconds=2.0)
    run = dps.simulate(
        train,
        ps=1,
        workers=2,
        seed=seed,
        update="sync",
        faults=[stall],
        network=Network(latency_s=1e-4),
        calibration=None,
    )
    assert run.results == [5, 5] and not run.errors
    assert not [e for e in run.trace if e.what in ("worker lost", "ps lost")]


FOUND = [
    ("async", 376, "a ps died between two tries to write the last checkpoint"),
    ("async", 1036, "the disk was full when a restarted chief looked at it"),
    ("sync", 308, "the first step was made without a worker that was admitted and had not entered yet"),
    ("steps", 2577, "a ps was dead when the run ended, and was started again"),
    ("async", 20761, "the digests of different pushes were equal, and a checkpoint was said to be even"),
    ("at once", 21310, "values that were set in one shard were in no digest"),
    ("bounded", 811, "an incarnation was used twice after the journal could not be written"),
    ("tokens", 3085, "a session was let into a run epoch that ended before it took part, and forgot what it had lost"),
]


@pytest.mark.parametrize(("mode", "seed", "what"), FOUND, ids=[what for _, _, what in FOUND])
def test_what_seeds_have_found_stays_mended(mode: str, seed: int, what: str) -> None:
    assert not run(scenario(mode, seed, stops=False))


WITH_STOPS = [
    ("sync", 3273, "the run ended without a stopped worker, which found nobody when it went on"),
    ("sync", 479, "nobody finished: a worker was killed before it came, and the other one's push failed"),
    ("async", 308, "the chief was killed when one ps knew of the end, and the other one was started again"),
    ("bounded", 311, "the workers finished while the chief was stopped for 30 s"),
    ("at once", 2125, "a session that was lost before its run epoch ended had been told of more steps"),
    ("at once", 2220, "the workers finished between the deaths of the chief and of the only ps"),
    ("at once", 1175, "chief and ps were killed before the last step could be saved on a full disk"),
]


@pytest.mark.parametrize(("mode", "seed", "what"), WITH_STOPS, ids=[what for _, _, what in WITH_STOPS])
def test_what_seeds_with_stopped_processes_have_found_stays_mended(mode: str, seed: int, what: str) -> None:
    assert not run(scenario(mode, seed))


def test_a_chief_that_finds_only_a_ps_without_variables_after_the_end_may_fail() -> None:
    """It cannot know of the journal that says so."""
    assert not run(scenario("bounded", 303), variables=1)


def test_a_ps_without_variables_that_stood_still_while_the_run_ended_finds_nobody() -> None:
    """The chief was started again meanwhile, and had not heard of it."""
    assert not run(scenario("bounded", 3772), variables=1)


def pushes_each_number_until_it_is_accepted(server: Any) -> list[float]:
    with dps.Session(server, {"a": np.zeros((2, 8))}, optimizer=dps.optim.SGD(1.0)) as session:
        for number in range(8):
            gradient = np.zeros((2, 8))
            gradient[server.task, number] = -1.0
            while not session.push({"a": gradient}).accepted:
                pass  # the session was given up, and has joined again
            if server.task == 0:
                server.runtime.sleep(1.0)
        values: list[float] = session.pull()["a"][server.task].tolist()
        return values


@pytest.mark.parametrize("seed", range(12, 20))
def test_a_push_of_a_session_that_was_given_up_is_not_sent_again_as_one_of_the_next(seed: int) -> None:
    """It waits to enter, under its new incarnation, while the push is due to be sent again: both number from 1."""
    away = Partition("worker:1", at=0.5 + 0.1 * seed, seconds=8.0)
    run = dps.simulate(
        pushes_each_number_until_it_is_accepted, ps=1, workers=2, seed=seed, faults=[away],
        network=Network(latency_s=0.01, loss=0.3), calibration=None,
    )  # fmt: skip
    assert not run.errors and run.results[0] == [1.0] * 8
    assert sorted(run.results[1])[:-1] == [1.0] * 7, run.results  # the one that was cut off may have been applied


def test_a_session_that_closes_in_one_run_epoch_loses_no_steps_in_the_one_before() -> None:
    """It had been let in before, and never heard of it."""
    assert not run(scenario("bounded", 26))


def test_a_step_that_is_decided_has_what_was_pushed_though_its_session_has_begun_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session comes again after Ctrl-C in a push, and fills its gradients anew, while the decision is on its way."""
    tell, pushed, read = SyncMode._tell_until_done, set[int](), list[dict[str, set[float]]]()

    def slowly(self: SyncMode, ps: int, message: Any) -> None:
        self.shard.node.after(0.15 if isinstance(message, Decide) else 0.0, lambda: tell(self, ps, message))

    def rejoins(server: Any) -> None:
        params = {name: np.zeros(4096, np.float32) for name in "ab"}
        with dps.Session(server, params, optimizer=dps.optim.SGD(1.0), update="sync", timeout=60.0) as session:
            own, connection = session.gradients(), session._connection
            for gradient in own.values():
                gradient[...] = 1.0
            reply = session.push_async(own)
            pushed.add(server.task)
            while len(pushed) < 2:
                server.runtime.sleep(0.002)
            server.runtime.sleep(0.01)
            connection.aborted = server.task == 0
            reply.result()
            for gradient in own.values():
                gradient[...] = 1000.0
            server.runtime.sleep(0.3)
            if server.task == 0:
                read.append({name: set(values.tolist()) for name, values in session.pull().items()})

    monkeypatch.setattr(SyncMode, "_tell_until_done", slowly)
    cluster = SimulatedCluster(rejoins, ps=2, workers=2, seed=1, network=Network(latency_s=1e-3), shared_memory=True)
    with cluster:
        assert not cluster.run(30.0).errors
    assert read == [{"a": {-1.0}, "b": {-1.0}}]


def test_counters_are_asked_of_the_next_epoch_where_a_ps_is_lost_meanwhile() -> None:
    found = run(varied_with_kills("async", 7))  # a worker ended with Aborted out of session.stats()
    assert not found, "\n".join(found)


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_session_that_came_too_late_to_take_part_joins_again_in_its_next_call(
    monkeypatch: pytest.MonkeyPatch, update: str
) -> None:
    """It was let into the run epoch, and its call ended before it took part: its loop is told of the rollback later."""
    enter, entered = Joining._enter, list[float]()
    seen: list[tuple[int, int]] = []

    def late_once(self: Joining, deadline: float) -> None:
        entered.append(deadline)
        if len(entered) == 2:
            raise DeadlineExceeded("too late")
        enter(self, deadline)

    class Rollbacks(dps.Hook):
        def rolled_back(self, session: Any, step: int, lost: int) -> None:
            seen.append((step, lost))

    def pushes(server: Any) -> list[bool | None]:
        made: list[bool | None] = []
        params = {"a": np.zeros(4), "b": np.zeros(4)}
        with dps.Session(
            server, params, optimizer=dps.optim.SGD(1.0), update=update, checkpoint_dir="run", hooks=[Rollbacks()]
        ) as session:
            for _ in range(12):
                try:
                    made.append(session.push({"a": np.ones(4), "b": np.ones(4)}).accepted)
                except DeadlineExceeded:
                    made.append(None)
                server.runtime.sleep(0.1)
            kept = made[made.index(False) :].count(True)
            assert session.global_step == kept
            assert all((values == -kept).all() for values in session.pull().values())
        return made

    monkeypatch.setattr(Joining, "_enter", late_once)
    run = dps.simulate(
        pushes,
        ps=2,
        workers=1,
        seed=1,
        faults=[Kill("ps:1", 0.9, 0.5)],
        network=Network(latency_s=0.01),
        calibration=None,
    )
    assert not run.errors
    (made,), ((step, lost),) = run.results, seen
    before = made.index(None)
    assert made == [True] * before + [None, False] + [True] * (10 - before)
    assert step == 0 and lost >= before > 0


def test_a_refused_push_brings_nobody_nearer_in_bounded_mode() -> None:
    found = run(varied("bounded", 3061))  # a worker read while another one, whose push was refused, was 2 behind
    assert not found, "\n".join(found)


def test_a_result_that_was_lost_is_still_there_after_many_more_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that waited for the results of later pushes alone sent more than a ps remembers results of."""
    answer: Any = ShardReads.answer_push
    lost: list[Any] = []

    def answered(self: ShardReads, sender: Any, result: Any, *more: Any, **settings: Any) -> None:
        if result.number == 2 and not lost:
            lost.append(result)
        else:
            answer(self, sender, result, *more, **settings)

    def program(server: Any) -> list[bool]:
        given = {"a": np.ones(4)}
        with dps.Session(server, {"a": np.zeros(4)}, optimizer=dps.optim.SGD(1.0), timeout=20) as session:
            session.push(given)
            early = session.push_async(given)
            later = [session.push_async(given).result().accepted for _ in range(20)]
            return [early.result().accepted, *later]

    monkeypatch.setattr(ShardReads, "answer_push", answered)
    done = dps.simulate(program, update="async", network=Network(latency_s=1e-3), calibration=None)
    assert lost and not done.errors and done.results == [[True] * 21]
