"""A hook that raises: who is told what, and how the others fare. When hooks hear of pushes."""

from __future__ import annotations

from typing import Any

import pytest

import dps
from dps.errors import ConfigError, HookError
from dps.hooks.hook import Chain
from tests.hooks.loops import EXACT, loop, ones, session
from tests.in_process import cluster

METHODS = ("begin", "after_create_session", "before_run", "after_run", "end")


class Fails(dps.Hook):
    """Raises in one of its methods; in those around a push only the second time."""

    def __init__(self, method: str, error: Exception) -> None:
        self.calls = 0
        setattr(self, method, self._fail)
        self._error, self._at = error, 2 if method.endswith("_run") else 1

    def _fail(self, *_: Any) -> None:
        self.calls += 1
        if self.calls == self._at:
            raise self._error


class Noted(dps.Hook):
    def __init__(self) -> None:
        self.notes: list[Any] = []

    def after_run(self, session: Any, push: dps.Push, loss: Any) -> None:
        self.notes.append((loss, push.accepted))

    def end(self, session: Any) -> None:
        self.notes.append("end")


@pytest.mark.parametrize("update", ["async", "sync", "bounded:1"])
@pytest.mark.parametrize("method", METHODS)
def test_a_hook_that_raises_is_named_with_its_method_and_the_other_worker_goes_on(method: str, update: str) -> None:
    def train(server: Any) -> int:
        hooks = [Fails(method, OSError("no such\n   thing"))] if server.task == 0 else []
        return loop(server, 6, hooks)

    run = dps.simulate(train, workers=2, update=update, **EXACT)
    told = f"HookError: worker:0: hook Fails.{method} raised OSError: no such thing"
    assert run.errors == {"worker:0": told}
    assert run.results[1] is not None and run.results[1] >= 6
    assert {code for name, code in run.exit_codes.items() if name != "worker:0"} == {0}


def test_the_session_is_closed_also_where_there_is_no_with_block_and_the_cause_is_kept() -> None:
    with cluster(1, 1, "inproc") as (server,):
        s = session(server, [Fails("after_run", OSError("lamp is out"))])
        s.push(ones())
        with pytest.raises(HookError, match=r"hook Fails\.after_run raised OSError: lamp is out") as caught:
            s.push(ones())
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(ValueError, match="closed"):
            s.pull()
        with session(server) as again:
            assert again.push(ones()).step == 3


def test_end_is_not_called_after_a_hook_has_raised() -> None:
    noted = Noted()
    with cluster(1, 1, "inproc") as (server,), pytest.raises(HookError):
        loop(server, 5, [noted, Fails("after_run", KeyError("x"))])
    assert noted.notes == [(0.5, True), (0.5, True)]


def test_an_error_of_dps_keeps_its_class_and_gets_the_hooks_name() -> None:
    told = r"^worker:0: hook Fails\.before_run: ps:7 is gone$"
    with cluster(1, 1, "inproc") as (server,), pytest.raises(dps.TaskLost, match=told):
        loop(server, 5, [Fails("before_run", dps.TaskLost("ps:7 is gone"))])


def test_stop_iteration_in_a_hook_is_the_end_of_the_data() -> None:
    noted = Noted()
    with cluster(1, 1, "inproc") as (server,):
        with session(server, [Fails("before_run", StopIteration()), noted]) as s:
            while True:
                s.push(ones())
        assert noted.notes == [(None, True), "end"]


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ([dps.NanGuard], "got the class NanGuard, wanted an instance"),
        (dps.NanGuard(), "wanted a list"),
        (7, "wanted a list"),
        ([print], "wanted an instance"),
    ],
)
def test_what_is_no_hook_is_refused_before_anybody_is_asked(hooks: Any, words: str) -> None:
    with cluster(1, 1, "inproc") as (server,), pytest.raises(ConfigError, match=words):
        session(server, hooks)


# -- pushes -------------------------------------------------------------------------------------------------------


def test_hooks_hear_of_every_asynchronous_push_once_and_in_order_before_the_end() -> None:
    noted = Noted()
    with cluster(2, 1, "inproc") as (server,), session(server, [noted]) as s:
        replies = [s.push_async(ones(), loss=index) for index in range(9)]
        assert replies[4].result().accepted
        assert replies[4].result().accepted
        assert [note[0] for note in noted.notes] == list(range(len(noted.notes)))
    assert noted.notes == [*((index, True) for index in range(9)), "end"]


def test_a_loop_of_asynchronous_pushes_whose_results_nobody_asks_for_is_stopped_at_its_step() -> None:
    with cluster(1, 1, "inproc") as (server,), session(server, [dps.StopAtStep(last_step=5)]) as s:
        count = 0
        while not s.should_stop():
            s.push_async(ones())
            count += 1
            assert count < 5 + 100
    assert count >= 5


def test_a_refused_push_is_no_run() -> None:
    noted = Noted()
    with cluster(1, 1, "inproc") as (server,), session(server, [noted]) as s:
        with pytest.raises(ValueError, match="NaN"):
            s.push({"a": ones()["a"] * float("nan")}, loss=1)
        s.push(ones(), loss=2)
    assert noted.notes == [(2, True), "end"]


def test_closing_without_a_block_is_a_good_end_and_a_second_time_nothing() -> None:
    noted = Noted()
    with cluster(1, 1, "inproc") as (server,):
        s = session(server, [noted])
        s.push_async(ones())
        s.close()
        s.close()
        assert noted.notes == [(None, True), "end"]
        with pytest.raises(ValueError, match="closed"):
            s.push(ones())


def test_what_hooks_of_a_program_call_batch_and_last_step_is_their_own() -> None:
    class Own(dps.Hook):
        def __init__(self) -> None:
            self.batch: Any = [1, 2]
            self.last_step: Any = "never"

    chain = Chain([Own(), dps.StopAtStep(last_step=7), dps.LogMetrics(batch=32)], lambda: "worker:0", print)
    assert chain.loop_settings() == {"last_step": 7, "batch": 32}
