"""Traces of whole runs: one file for all tasks, on one clock; and afterwards nothing is as it was not before."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps import cli
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import ConfigError, DeadlineExceeded, DpsError, ProtocolError, Unavailable
from dps.messages.runs import OPERATORS, TRACE_BEGIN, TRACE_LOOK, TRACE_READ, AskTrace, TraceState
from dps.task.served_task import serving
from dps.tracing import gathering, recording
from dps.tracing.gathering import TraceClient, Traced, TraceWish, check_wish
from dps.transport.current import keys_for, runtime
from tests.hooks.loops import EXACT, loop
from tests.in_process import cluster, on_all
from tests.tracing.checks import check

PARAMS = {"a": np.zeros(100), "b": np.zeros(100)}
GRADS = {"a": np.ones(100), "b": np.ones(100)}
ALL = ["chief", "ps:0", "ps:1", "worker:0", "worker:1"]


@contextmanager
def training(mode: Any = "async") -> Iterator[tuple[list[dps.Server], list[dps.Session]]]:
    """Two ps and two workers that train, until the block ends."""
    over, begun, sessions = threading.Event(), threading.Barrier(3), list[dps.Session]()

    def work(server: dps.Server) -> None:
        with dps.Session(server, PARAMS, optimizer=dps.optim.SGD(1.0)) as session:
            sessions.append(session)
            session.push(GRADS)
            begun.wait(30)
            for turn in itertools.count():
                if over.is_set() or session.should_stop():
                    break
                session.pull()
                runtime().sleep(0.001)
                session.step(GRADS) if turn % 2 else session.push(GRADS, loss=0.5)

    with cluster(2, 2, update=mode) as servers:
        failed: list[BaseException] = []

        def both() -> None:
            try:
                on_all(servers, work)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=both, daemon=True)
        thread.start()
        try:
            begun.wait(60)
            yield servers, sessions
        finally:
            for session in sessions:
                session.request_stop()
            over.set()
            thread.join(60)
            assert not failed and not thread.is_alive(), failed


@contextmanager
def asking(chief: str) -> Iterator[Caller]:
    caller = Caller(runtime(), "a test", keys_for(chief, "operator"))
    try:
        yield caller
    finally:
        caller.close()


def take(chief: str, steps: int = 20, change: Callable[[TraceClient], None] = lambda made: None) -> Traced:
    with asking(chief) as caller:
        made = TraceClient(runtime(), caller, chief, TraceWish(steps, 30))
        change(made)
        return made.take_trace()


def names(trace: dict[str, Any], kind: str, task: str) -> Counter[str]:
    """How many events of a kind a task has, by their names."""
    pids = {e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name" and e["args"]["name"] == task}
    return Counter(e["name"] for e in trace["traceEvents"] if e["ph"] == kind and e["pid"] in pids)


def untouched(servers: list[dps.Server], sessions: list[dps.Session]) -> bool:
    """Whether nothing of a trace is left on the workers."""
    return not any("push" in vars(session) or "view" in vars(session) for session in sessions) and not any(
        server.home().hooks for server in servers
    )


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_trace_has_all_tasks_and_links_the_pushes_of_each_worker_to_the_updates_of_each_ps(mode: str) -> None:
    with training(mode) as (servers, sessions):
        for _ in range(2):
            made = take(servers[0].target, 40)
            check(made.trace)
            assert made.tasks == ALL and not made.left_out and made.steps >= 40
            for ps in ("ps:0", "ps:1"):
                assert names(made.trace, "X", ps)["apply"] >= 10 and names(made.trace, "f", ps)["push"] >= 10
            for worker in ("worker:0", "worker:1"):
                slices = names(made.trace, "X", worker)
                assert slices["push"] and slices["pull"] and slices["program"] and slices["step"]
                assert names(made.trace, "s", worker)["push"] and names(made.trace, "C", worker)["global step"]
            wrong = made.trace["otherData"]["clocks may differ by us"]
            assert wrong.keys() == set(ALL) and all(error < 1e6 for error in wrong.values())
        assert untouched(servers, sessions)


def test_ctrl_c_ends_a_trace_and_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order = TraceClient._order

    def interrupted(self: TraceClient, tasks: Any, what: str, *more: Any) -> dict[str, TraceState]:
        if what == TRACE_LOOK and len(more) == 2:  # of the wait for steps
            raise KeyboardInterrupt
        return order(self, tasks, what, *more)

    monkeypatch.setattr(TraceClient, "_order", interrupted)
    path = tmp_path / "new" / "trace.json"
    with training() as (servers, sessions):
        given = ["trace", servers[0].target, "--steps", "100000", "--out", str(path)]
        assert cli.main(given) == 0
        assert untouched(servers, sessions)
    assert "slices; open it in https://ui.perfetto.dev" in capsys.readouterr().out
    check(json.loads(path.read_text()))
    assert [each.name for each in path.parent.iterdir()] == ["trace.json"]


@pytest.mark.slow
def test_a_task_that_does_not_answer_is_named_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "ANSWER_S", 2.5)
    held = threading.Event()
    with training() as (servers, _):
        servers[1]._node.post(lambda: held.wait(20))  # type: ignore[arg-type, return-value]
        try:
            made = take(servers[0].target, 5)
        finally:
            held.set()
        assert made.left_out == {"worker:1": "worker:1 did not answer within 2.5 s"}
        check(made.trace)
        assert made.tasks == [name for name in ALL if name != "worker:1"]
        assert made.trace["otherData"]["left out"] == made.left_out


def test_what_a_task_sends_is_checked_and_costs_only_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = recording.TaskTrace.parts

    def other(self: recording.TaskTrace, name: str) -> Any:
        return [np.frombuffer(b'{"lanes": 5}', np.uint8)] if name == "ps:1" else parts(self, name)

    monkeypatch.setattr(recording.TaskTrace, "parts", other)
    with training() as (servers, _):
        made = take(servers[0].target, 5)
    check(made.trace)
    assert list(made.left_out) == ["ps:1"] and "got no trace from ps:1" in made.left_out["ps:1"]


def test_one_trace_at_a_time_and_one_for_which_nobody_asks_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with training() as (servers, sessions), asking(servers[0].target) as caller:
        to = Ref(servers[0].target, OPERATORS)

        def order(task: str, trace: int, what: str, value: int = 0) -> TraceState:
            answer = caller.ask(to, AskTrace(task, trace, what, value), 5.0)
            assert isinstance(answer, TraceState)
            return answer

        for task in ALL:
            assert not order(task, 7, TRACE_BEGIN, 60).over
        with pytest.raises(Unavailable, match="is traced already"):
            take(servers[0].target)
        assert not order("worker:0", 7, TRACE_LOOK).over
        with pytest.raises(Unavailable, match="has no such trace"):
            order("ps:0", 8, TRACE_LOOK)
        with pytest.raises(ProtocolError, match="part 99 of a trace"):
            order("ps:0", 7, TRACE_READ, 99)
        with pytest.raises(ProtocolError, match="order 'fly'"):
            order("ps:0", 7, "fly")
        for wrong in ("ps:9", "ps:x", "reader:0", "", "x" * 1000):
            with pytest.raises(ConfigError, match="no task of this run"):
                order(wrong, 7, TRACE_LOOK)
        monkeypatch.setattr(recording, "SILENT_S", 0.1)
        deadline = runtime().now() + 10
        while not untouched(servers, sessions):
            assert runtime().now() < deadline
            runtime().sleep(0.05)
        with pytest.raises(ProtocolError, match="a trace of 0 s, wanted 1 to 600"):
            order("ps:0", 9, TRACE_BEGIN)
        monkeypatch.setattr(recording, "SILENT_S", 5.0)
        check(take(servers[0].target, 5).trace)


def test_all_of_it_works_in_the_simulator_and_the_profiler_writes_one_file_for_all_tasks() -> None:
    found: list[Any] = []

    def work(server: Any) -> None:
        hooks = [dps.Profiler("traces", length=6, all_tasks=True)] if server.task == 0 else []
        loop(server, 12, hooks)
        storage = server.runtime.storage
        if server.task == 0:
            found.extend(json.loads(bytes(storage.read(f"traces/{name}"))) for name in storage.names("traces"))

    assert dps.simulate(work, ps=2, workers=3, update="sync", **EXACT).errors == {}
    (trace,) = found
    check(trace)
    assert trace["otherData"]["left out"] == {} and trace["otherData"]["steps"] >= 6
    for worker in range(3):
        assert names(trace, "X", f"worker:{worker}")["push"] >= 4
    lengths = [e["dur"] / 1e6 for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == "push"]
    assert sum(0.99 < length < 1.1 for length in lengths) >= 12, "a step takes a virtual second"


def test_the_profiler_of_all_tasks_writes_what_there_is_when_its_loop_ends(tmp_path: Path) -> None:
    with cluster() as (server,):
        loop(server, 300, [dps.Profiler(str(tmp_path), length=10**6, all_tasks=True)])
        assert not server.home().hooks
    (path,) = tmp_path.iterdir()
    check(json.loads(path.read_text()))


def test_a_second_trace_costs_the_profiler_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with cluster() as (server,), asking(server.target) as caller, caplog.at_level(logging.WARNING, "dps"):
        loop(server, 1)
        for task in ("chief", "ps:0", "worker:0"):
            caller.ask(Ref(server.target, OPERATORS), AskTrace(task, 7, TRACE_BEGIN, 60), 5.0)
        loop(server, 100, [dps.Profiler(str(tmp_path), all_tasks=True)])
    told = [record.getMessage() for record in caplog.records if "no trace of all tasks" in record.getMessage()]
    assert len(told) == 1 and "is traced already" in told[0] and not list(tmp_path.iterdir())


def test_a_run_that_ends_while_it_is_traced_is_one_line() -> None:
    with cluster() as (server,), asking(server.target) as caller:
        (chief,) = (each for each in serving if each.address == server.target)
        loop(server, 1)
        made = TraceClient(runtime(), caller, server.target, TraceWish(10, 30))
        with pytest.raises(Unavailable, match="the run has ended while it was traced, or has lost its chief at"):
            made.take_trace(lambda tasks: chief.stop())


@pytest.mark.parametrize(("steps", "seconds"), [(0, 60), (-1, 60), (True, 60), (1.5, 60), (10, 0), (10, 601)])
def test_a_wish_that_cannot_be_is_refused(steps: Any, seconds: float) -> None:
    with pytest.raises(ConfigError, match="for a trace, wanted"):
        check_wish(steps, seconds)


def test_without_a_chief_it_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gathering, "ANSWER_S", 0.2)
    assert cli.main(["trace", "127.0.0.1:9"]) == DeadlineExceeded.exit_code
    told = capsys.readouterr().err
    assert told.startswith("dps: no chief answered at 127.0.0.1:9 for 0.2 s") and told.count("\n") == 1
    assert issubclass(DeadlineExceeded, DpsError)
