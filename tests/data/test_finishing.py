"""When an accepted push finishes the batch in use, and when that waits for the next one."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import dps
from dps.data.remote_dataset import Finishing

ACCEPTED, DROPPED = dps.Push(1, True), dps.Push(1, False)


class Pass:
    """Stands for a pass: counts the batches that were confirmed."""

    confirmed = 0

    def confirm(self) -> None:
        self.confirmed += 1


class Session:
    """Stands for the sessions of a task, whose pushes hooks hear of."""

    def __init__(self) -> None:
        self.hooks: list[Finishing] = []
        self._in_flight = 0

    def open_pass(self) -> tuple[Pass, Finishing]:
        """A pass and its hook."""
        of = Pass()
        self.hooks.append(Finishing(of.confirm, lambda: self._in_flight))
        return of, self.hooks[-1]

    def begin(self) -> None:
        """A push begins."""
        for hook in self.hooks:
            hook.before_run(None)
        self._in_flight += 1

    def finish(self, push: dps.Push) -> None:
        """A push has its result."""
        self._in_flight -= 1
        for hook in self.hooks:
            hook.after_run(None, push, None)


def after(*events: str) -> int:
    """How many batches are confirmed after these events: taken, begin, accepted, dropped."""
    session = Session()
    of, hook = session.open_pass()
    for event in events:
        if event == "taken":
            hook.record_batch()
        elif event == "begin":
            session.begin()
        else:
            session.finish(ACCEPTED if event == "accepted" else DROPPED)
    return of.confirmed


@pytest.mark.parametrize(
    ("events", "confirmed"),
    [
        ("taken begin accepted", 1),
        ("taken begin dropped", 0),
        ("taken begin dropped begin accepted", 1),
        ("begin accepted taken", 0),
        ("taken begin accepted taken begin accepted", 2),
        ("taken begin taken begin accepted accepted", 0),  # the first result may be that of the batch before
        ("taken begin taken begin accepted accepted taken begin accepted", 1),
        ("taken begin begin accepted accepted", 1),
        ("taken begin taken begin accepted taken begin accepted", 0),  # a push that was refused has no result
        ("accepted taken begin accepted", 0),  # a session that was there before, with a push in flight
    ],
)
def test_a_push_finishes_a_batch_only_if_it_is_certainly_one_of_it(events: str, confirmed: int) -> None:
    assert after(*events.split()) == confirmed


def test_a_push_of_another_thread_than_that_of_the_loop_finishes_nothing() -> None:
    session = Session()
    of, hook = session.open_pass()
    thread = threading.Thread(target=hook.record_batch)
    thread.start()
    thread.join()
    session.begin()
    session.finish(ACCEPTED)
    assert of.confirmed == 0


def test_the_batch_of_an_accepted_push_is_finished_when_push_returns() -> None:
    with dps.Server.create_local_server() as server:
        serving = dps.data.serve(dps.data.from_arrays(np.arange(8.0)).batch(2), server)

        def finished() -> Any:
            return serving.stats()["finished"]

        with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0)) as session:
            batches = iter(dps.data.remote(server))
            session.push({"w": next(batches)})
            assert finished() == 1
            session.push({"w": np.ones(2)})  # another push of the same batch
            assert finished() == 1
            session.step({"w": next(batches)})
            assert finished() == 2
            reply = session.push_async({"w": next(batches)})
            assert reply.result().accepted and finished() == 3
            reply = session.push_async({"w": next(batches)})
            assert serving.stats() == {"epoch": 0, "finished": 3, "ready": 0, "given": {"worker:0": 1}}
            assert reply.result().accepted
            assert next(batches, None) is None
            assert finished() == 4
        assert server.home().hooks == []


@pytest.mark.parametrize("wrapped", [False, True])
def test_batches_that_are_placed_on_a_device_are_finished_by_their_own_push(wrapped: bool) -> None:
    """The next batch was asked for one step ahead, which finished the one that the loop was about to push."""
    strategy = dps.strategy.Mirrored(["/cpu:0"])
    with dps.Server.create_local_server() as server:
        serving = dps.data.serve(dps.data.from_arrays(np.arange(6.0)).batch(2), server)
        with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0)) as session:
            remote = dps.data.remote(server)
            dataset = (batch + 1 for batch in remote) if wrapped else remote
            found = []
            for number, batch in enumerate(strategy.distribute_dataset(dataset, to_device=True)):
                assert serving.stats()["finished"] == number
                assert session.push({"w": batch}).accepted
                assert serving.stats()["finished"] == number + 1
                found.append(batch.tolist())
            assert np.sum(found) == 15 + 6 * wrapped and len(found) == 3


def test_a_push_from_before_the_pass_finishes_no_batch_of_it_while_another_one_is_in_flight() -> None:
    with dps.Server.create_local_server() as server:
        serving = dps.data.serve(dps.data.from_arrays(np.arange(8.0)).batch(2), server)
        with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0)) as session:
            before = session.push_async({"w": np.ones(2)})  # of the last batch of an epoch before, say
            batches = iter(dps.data.remote(server))
            own = session.push_async({"w": next(batches)})
            assert before.result().accepted and serving.stats()["finished"] == 0
            assert own.result().accepted
            session.push({"w": next(batches)})
            assert serving.stats()["finished"] == 2
            with pytest.raises(ValueError, match="w"):
                session.push({"w": next(batches) * np.nan})  # refused: it has no result
            session.push({"w": next(batches)})
            assert serving.stats()["finished"] == 4


def test_a_pass_whose_loop_was_left_is_no_hook_any_more() -> None:
    with dps.Server.create_local_server() as server:
        dps.data.serve(dps.data.from_arrays(np.arange(8)), server)
        for _ in dps.data.remote(server):
            assert len(server.home().hooks) == 1
            break
        assert server.home().hooks == []


def test_a_dataset_task_that_is_gone_holds_no_push_up(caplog: pytest.LogCaptureFixture) -> None:
    with dps.Server.create_local_server() as server:
        feeder = dps.Server(None, "dataset", 0, chief=server.target)
        dps.data.serve(dps.data.from_arrays(np.arange(8.0)).batch(2), feeder)
        with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0)) as session:
            batches = iter(dps.data.remote(server))
            batch = next(batches)
            feeder.stop()
            assert session.push({"w": batch}).accepted
            del batches  # `close` would wait for the task to hear of it
    assert "dataset:0 (" in caplog.text and "has not confirmed that a batch is finished; it may be given" in caplog.text


class Passes:
    """Two passes of one thread, "a" and "b". Each hook hears of all pushes."""

    def __init__(self) -> None:
        self.session = Session()
        passes = {name: self.session.open_pass() for name in "ab"}
        self.counts = {name: of for name, (of, _) in passes.items()}
        self.hooks = {name: hook for name, (_, hook) in passes.items()}

    def play(self, events: str) -> str:
        """The passes whose batches are confirmed after these events, in no order but that of their names: a taken batch
        is the name of its pass, the end of a pass or `done()` the same with a minus."""
        for event in events.split():
            if event in self.hooks:
                self.hooks[event].record_batch()
            elif event[0] == "-":
                self.hooks[event[1]].release_batch()
            elif event == "begin":
                self.session.begin()
            else:
                self.session.finish(ACCEPTED)
        return "".join(name * of.confirmed for name, of in self.counts.items())


@pytest.mark.parametrize(
    ("events", "confirmed"),
    [
        ("a b begin accepted", ""),  # zip: the push may be of either
        ("a b begin accepted begin accepted", ""),
        ("a begin accepted b begin accepted", "a"),  # the second push may be another one of the first batch
        ("a begin b accepted", "a"),  # it began when the thread had that batch alone
        ("a b -b begin accepted", "a"),  # an evaluation that is over
        ("a begin accepted -a b begin accepted", "ab"),  # one pass after the other
        ("a b begin -b accepted", ""),  # a push that began with both
        ("a b begin -b accepted a begin accepted", "a"),
    ],
)
def test_a_push_of_a_thread_with_batches_of_two_passes_finishes_none(events: str, confirmed: str) -> None:
    assert Passes().play(events) == confirmed


def test_two_loops_at_once_finish_their_batches_when_they_ask_for_the_next() -> None:
    with dps.Server.create_local_server() as server:
        numbers = dps.data.from_arrays(np.arange(6.0)).batch(2)
        serving = [dps.data.serve(numbers, server, name) for name in ("first", "second")]

        def finished() -> list[Any]:
            return [each.stats()["finished"] for each in serving]

        with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0)) as session:
            first, second = iter(dps.data.remote(server, "first")), iter(dps.data.remote(server, "second"))
            batch = next(first)
            next(second)
            session.push({"w": batch})  # of the first, which the second must not take for its own
            assert finished() == [0, 0]
            second.done()
            session.push({"w": next(first)})
            assert finished()[0] == 2
            second.close()
            session.push({"w": next(first)})
            assert next(first, None) is None and finished()[0] == 3


def test_a_loop_that_waits_for_another_loop_of_its_own_thread_says_so() -> None:
    with dps.Server.create_local_server() as server:
        dps.data.serve(dps.data.from_arrays(np.arange(3)), server)
        remote = dps.data.remote(server, prefetch=0, timeout=0.5)
        first, second = iter(remote), iter(remote)
        assert [int(next(batches)) for batches in (first, second, first)] == [0, 1, 2]
        with pytest.raises(dps.DeadlineExceeded, match="this thread has a batch of another loop in use") as told:
            next(first)
        assert "worker:0 waits for worker:0 to finish the last batches" in str(told.value)
        second.done()
        assert next(first, None) is None and next(second, None) is None


ENDS = """
import builtins, sys, threading
import numpy as np, dps
server = dps.Server.create_local_server()
dps.data.serve(dps.data.from_arrays(np.arange(80.0)).batch(2), server)
batches = iter(dps.data.remote(server))
{}
"""


@pytest.mark.parametrize(
    "ending",
    [
        "builtins.batches = batches; next(batches)",
        "server.me = server, batches; next(batches)",
        "rest = (batch for batch in batches); next(rest)",
        "sys.modules['kept'] = batches; next(batches)",
        "threading.Thread(target=lambda: next(batches)).start()",
        "for batch in batches: sys.exit()",
    ],
)
def test_a_program_that_ends_amid_a_pass_ends_without_a_word(ending: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS.format(ending)], check=False, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
