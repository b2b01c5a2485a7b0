"""`session.run`: a function runs on the worker that is named, and what goes wrong is said in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.transport.sim import Kill
from tests.coordinator import functions
from tests.coordinator.world import simulated

W = {"w": np.zeros(3)}


def open_session(server: dps.Server, timeout: float = 60.0) -> dps.Session:
    return dps.Session(server, W, optimizer=dps.optim.SGD(1.0), timeout=timeout)


def test_a_function_runs_on_the_worker_that_the_scope_names() -> None:
    def program(server: dps.Server) -> Any:
        with open_session(server) as session:
            found = []
            for task in (1, 0):
                with dps.device(f"/job:worker/task:{task}"):
                    found.append((session.run(functions.who), session.run("tests.coordinator.functions:add", 1, 2)))
            return found

    assert simulated(program) == [("worker:1", 3), ("worker:0", 3)]


def test_a_session_arrives_as_the_workers_own() -> None:
    def program(server: dps.Server) -> Any:
        with open_session(server) as session, dps.device("/job:worker/task:1"):
            return [session.run(functions.gradients, session, x) for x in (0.5, 1.5)], session.pull()["w"].tolist()

    assert simulated(program) == ([0.5, -1.5], [-2.0, -2.0, -2.0])


def test_in_sync_mode_the_workers_session_counts_as_one_that_trains() -> None:
    def program(server: dps.Server) -> Any:
        settings: Any = {"optimizer": dps.optim.SGD(1.0), "update": dps.SyncReplicas(1, 1)}
        with dps.Session(server, W, **settings) as session, dps.device("/job:worker/task:0"):
            return [session.run(functions.gradients, session, 0.0) for _ in range(3)], session.pull()["w"].tolist()

    assert simulated(program, workers=1) == ([0.0, -3.0, -6.0], [-3.0, -3.0, -3.0])


def test_arrays_and_nested_values_go_there_and_back() -> None:
    def program(server: dps.Server) -> Any:
        with open_session(server) as session, dps.device("/job:worker/task:0"):
            return session.run(functions.add, ({"x": np.arange(3)}, [1.5, "a", None]), (b"b", np.float32(2.5)))

    nested, plain, data, number = simulated(program)
    assert nested["x"].tolist() == [0, 1, 2] and plain == [1.5, "a", None] and data == b"b"
    assert number == 2.5 and isinstance(number, np.float32)


def test_a_functions_error_has_its_class_and_the_workers_traceback() -> None:
    def program(server: dps.Server) -> Any:
        with open_session(server) as session, dps.device("/job:worker/task:1"), pytest.raises(KeyError) as caught:
            session.run(functions.fail, "no such key")
        return caught.value

    error = simulated(program)
    assert isinstance(error, dps.RemoteError) and error.task == "worker:1"
    assert str(error) == "KeyError: 'no such key' (in tests.coordinator.functions:fail on worker:1)"
    assert "raise KeyError(text)" in error.remote_traceback and "dps/coordinator" not in error.remote_traceback
    assert error.remote_traceback in error.__notes__[0]


@pytest.mark.parametrize(
    ("function", "args", "kind", "text"),
    [
        ("os:system", ("true",), ValueError, r"serves tests\.coordinator\.functions only; start it with --serve os"),
        (
            "tests.coordinator.functions:addd",
            (1, 2),
            ValueError,
            "has no function 'addd' of its own; did you mean 'add'",
        ),
        ("tests.coordinator.functions:runtime", (), ValueError, "has no function 'runtime' of its own"),
        ("add", (1, 2), ValueError, "got the function 'add'; wanted package.module:function"),
        (lambda x: x, (1,), ValueError, "has no path by which a worker could import it"),
        (functions.add, (1, object()), TypeError, "functions:add: an argument: a object cannot travel"),
        (
            functions.add,
            (1, np.ones(2, np.longdouble)),
            TypeError,
            "functions:add: an argument: array 0 is ndarray of dtype float128; wanted an array of numbers",
        ),
        (functions.give_what_cannot_travel, (), TypeError, "value that it returned: a object cannot travel"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(function: Any, args: Any, kind: type[Exception], text: str) -> None:
    def program(server: dps.Server) -> Any:
        with (
            open_session(server) as session,
            dps.device("/job:worker/task:0"),
            pytest.raises(kind, match=text) as caught,
        ):
            session.run(function, *args)
        return str(caught.value)

    assert "\n" not in simulated(program, workers=1)


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        (None, "run: which worker.*chief runs no functions"),
        ("/job:worker", "run: which worker"),
        ("/job:ps/task:0", "run: the scope names /job:ps/task:0, and only workers run functions"),
    ],
)
def test_without_a_worker_the_error_says_how_one_is_named(scope: str | None, text: str) -> None:
    def program(server: dps.Server) -> Any:
        with open_session(server) as session, dps.device(scope), pytest.raises(ValueError, match=text):
            session.run(functions.who)
        return True

    assert simulated(program)


def test_a_worker_that_never_came_is_named_at_the_deadline() -> None:
    def program(server: dps.Server) -> Any:
        late = pytest.raises(dps.DeadlineExceeded)
        with open_session(server) as session, dps.device("/job:worker/task:7"), late as caught:
            session.run(functions.who, timeout=3.0)
        return str(caught.value)

    text = "client:0: worker:7 has not joined the run, which has worker:0, worker:1; start it with --serve MODULE"
    assert simulated(program) == text


def test_a_worker_that_is_gone_is_named_at_the_deadline() -> None:
    def program(server: dps.Server) -> Any:
        with open_session(server) as session, dps.device("/job:worker/task:1"):
            session.run(functions.who)
            with pytest.raises(dps.DeadlineExceeded) as caught:
                session.run(functions.who, 100.0, timeout=20.0)
        return str(caught.value)

    text = simulated(program, faults=[Kill("worker:1", 5.0)])
    assert "run tests.coordinator.functions:who: worker:1 is away for " in text, text


def test_a_function_that_takes_too_long_is_named_at_the_deadline_and_its_late_value_is_dropped() -> None:
    def program(server: dps.Server) -> Any:
        with open_session(server) as session, dps.device("/job:worker/task:1"):
            with pytest.raises(dps.DeadlineExceeded, match="worker:1 runs tests.coordinator.functions:who since 4 s"):
                session.run(functions.who, 6.0, timeout=4.5)
            return session.run(functions.add, 1, 2)

    assert simulated(program) == 3


def test_a_session_that_was_given_a_workers_address_runs_there() -> None:
    def program(server: dps.Server) -> Any:
        server.runtime.sleep(1.0)
        mine = dps.Server(None, "client", None, chief="worker1:2301", bind="client:0")
        with mine, open_session(mine) as session:
            return session.run(functions.who), session.push({"w": np.ones(3)}).step

    assert simulated(program) == ("worker:1", 1)


def test_a_worker_that_runs_a_program_says_that_it_serves_nothing() -> None:
    def train(server: dps.Server) -> str:
        with open_session(server) as session:
            if server.task == 0:
                server.runtime.sleep(10.0)
                return ""
            with dps.device("/job:worker/task:0"), pytest.raises(ValueError, match="worker:0 runs a program") as caught:
                session.run(functions.who)
            return str(caught.value)

    assert "--serve MODULE" in dps.simulate(train, workers=2).results[1]


def test_a_worker_that_comes_back_elsewhere_is_found_there() -> None:
    def program(server: dps.Server) -> Any:
        with open_session(server) as session, dps.device("/job:worker/task:1"):
            first = session.run(functions.who)
            server.runtime.sleep(7.0)
            return first, session.run(functions.who, 3.0, timeout=50.0)

    assert simulated(program, faults=[Kill("worker:1", 6.0, restart_after=20.0)], moves=True) == (
        "worker:1",
        "worker:1",
    )


def test_in_local_mode_a_program_that_drives_is_not_waited_for_and_reads_the_common_values() -> None:
    """Two workers average in rounds of two steps; the program would be a third one whose steps never come."""

    def program(server: dps.Server) -> Any:
        settings: Any = {"optimizer": dps.optim.SGD(1.0), "update": dps.Local(2), "timeout": 20.0}
        with dps.Session(server, W, **settings) as session, dps.Coordinator(server) as coordinator:
            for _ in range(8):
                coordinator.schedule(functions.gradients, args=(session, 0.0))
            coordinator.join(timeout=20.0)
            return session.pull()["w"].tolist(), session.global_step

    assert simulated(program) == ([-4.0, -4.0, -4.0], 2)


def test_in_local_mode_a_program_that_pushes_takes_part_from_then_on() -> None:
    def program(server: dps.Server) -> Any:
        settings: Any = {"optimizer": dps.optim.SGD(1.0), "update": dps.Local(2), "timeout": 20.0}
        with dps.Session(server, W, **settings) as session:
            with dps.device("/job:worker/task:0"):
                session.run(functions.gradients, session, 0.0)  # the worker has entered, with one step
            calls = dps.Coordinator(server)
            own = [session.push({"w": np.full(3, 3.0)}).step, session.pull()["w"][0]]
            call = calls.schedule(functions.gradients, args=(session, 0.0))  # ends the worker's round
            own += [session.push({"w": np.full(3, 3.0)}).step, session.pull()["w"][0]]
            return own, call.fetch(20.0)

    assert simulated(program, workers=1) == ([0, -3.0, 1, -4.0], -3.0)
