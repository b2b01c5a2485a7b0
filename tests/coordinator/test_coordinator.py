"""The coordinator: calls, values, errors, what workers keep, and waits that name who is waited for."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import dps
from dps.transport.sim import Kill, Partition
from tests.coordinator import functions
from tests.coordinator.world import simulated


def test_any_free_worker_runs_a_call_and_the_values_come_back_in_their_nesting() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            values = {"sums": [coordinator.schedule(functions.add, (n, 1)) for n in range(3)]}
            who = [coordinator.schedule(functions.who, kwargs={"pause_s": 1.0}) for _ in range(4)]
            coordinator.join()
            return coordinator.fetch(values), coordinator.done(), sorted(coordinator.fetch(tuple(who)))

    assert simulated(program) == ({"sums": [1, 2, 3]}, True, ["worker:0", "worker:0", "worker:1", "worker:1"])


def test_a_remote_value_is_an_argument_of_later_calls_which_need_no_fetch() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            total = coordinator.schedule(functions.add, (np.arange(3), np.ones(3)))
            for n in range(4):
                total = coordinator.schedule(functions.add, (total, n))
            pair = coordinator.schedule(functions.add, ([total, {"x": (total, 1)}], []))
            return pair.fetch(), total.done()

    (first, nested), done = simulated(program)
    assert first.tolist() == [7.0, 8.0, 9.0] == nested["x"][0].tolist() and nested["x"][1] == 1 and done


def test_training_by_calls_that_pull_and_push() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(1.0)) as session:
            with dps.Coordinator(server) as coordinator:
                for _ in range(10):
                    coordinator.schedule(functions.gradients, (session, 0.0))
                coordinator.join()
            return session.pull()["w"].tolist()

    assert simulated(program, workers=3) == [-10.0, -10.0, -10.0]


def test_synchronous_workers_make_steps_together() -> None:
    def program(server: dps.Server) -> Any:
        params, sync = {"w": np.zeros(3)}, dps.SyncReplicas(2, 2)
        with dps.Session(server, params, optimizer=dps.optim.SGD(1.0), update=sync) as session:
            with dps.Coordinator(server) as coordinator:
                for _ in range(10):
                    coordinator.schedule(functions.gradients, (session, 0.0))
                coordinator.join()
            return session.pull()["w"].tolist()

    assert simulated(program, workers=2) == [-5.0, -5.0, -5.0]


def test_join_raises_the_first_error_once_and_later_calls_work_again() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            coordinator.schedule(functions.add, (1, 1)).fetch()
            bad = coordinator.schedule(functions.fail, ("first",))
            queued = [coordinator.schedule(functions.who, (1.0,)) for _ in range(20)]
            with pytest.raises(KeyError, match="first"):
                coordinator.join()
            with pytest.raises(KeyError, match="first") as caught:
                bad.fetch()
            assert "raise KeyError(text)" in caught.value.remote_traceback  # type: ignore[attr-defined]
            with pytest.raises(dps.Cancelled, match="who was cancelled before it ran, for .*fail had failed: KeyError"):
                queued[-1].fetch()
            later = coordinator.schedule(functions.add, (1, 2))
            coordinator.join()
            return later.fetch(), coordinator.done()

    assert simulated(program) == (3, True)


@pytest.mark.parametrize(
    ("name", "text"),
    [("exit", "SystemExit: 3"), ("cancelled", "CancelledError"), ("untold", "Untold"), ("file", r"data \udcff")],
)
def test_no_error_of_a_function_ends_its_worker(name: str, text: str) -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            with pytest.raises(dps.RemoteError) as caught:
                coordinator.schedule(functions.end_by, (name,)).fetch()
            with pytest.raises(dps.RemoteError):
                coordinator.join()
            assert "raise ENDS[name]" in caught.value.remote_traceback
            return str(caught.value), coordinator.schedule(functions.add, (1, 2)).fetch()

    said, later = simulated(program)
    assert text in said and later == 3


def test_a_function_that_makes_a_value_may_exit_without_ending_its_worker() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            made = coordinator.create_per_worker_value(functions.make_by_exiting)
            with pytest.raises(dps.RemoteError, match=r"SystemExit: 4 \(in .*add on worker"):
                coordinator.schedule(functions.add, (made, 1)).fetch()
            with pytest.raises(dps.RemoteError):
                coordinator.join()
            return coordinator.schedule(functions.add, (1, 2)).fetch()

    assert simulated(program) == 3


def test_done_raises_the_first_error_once() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            coordinator.schedule(functions.fail, ("one",))
            server.runtime.sleep(5.0)
            with pytest.raises(KeyError, match="one"):
                coordinator.done()
            return coordinator.done()

    assert simulated(program) is True


def test_the_queue_is_bounded_and_schedule_blocks_when_it_is_full() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server, queue_size=3) as coordinator:
            coordinator.schedule(functions.add, (1, 1)).fetch()
            began = server.runtime.now()
            for _ in range(5):
                coordinator.schedule(functions.who, (10.0,))
            at_once_s = server.runtime.now() - began
            for _ in range(2):
                coordinator.schedule(functions.who, (10.0,))
            return at_once_s, server.runtime.now() - began

    at_once_s, then_s = simulated(program)
    assert at_once_s == 0.0 and 9.0 < then_s < 21.0


@pytest.mark.parametrize("given", [{"queue_size": 2.5}, {"ps_errors": "5"}, {"ps_errors": -1}, {"timeout": -1}])
def test_a_number_that_makes_no_sense_is_refused(given: Any) -> None:
    (name,) = given
    with pytest.raises(dps.ConfigError, match=f"Coordinator: got {name}=.*, wanted "):
        dps.Coordinator("127.0.0.1:1", **given)
    with pytest.raises(ValueError, match="timeout: got nan, wanted seconds"):
        dps.Coordinator("127.0.0.1:1", timeout=float("nan"))


def test_the_queue_holds_as_many_as_tensorflows() -> None:
    from dps.coordinator.coordinator import QUEUE

    assert QUEUE == 262_144


def test_the_call_of_a_lost_worker_runs_elsewhere() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            values = [coordinator.schedule(functions.who, (4.0,)) for _ in range(2)]
            return coordinator.fetch(values)

    assert simulated(program, faults=[Kill("worker:1", 3.0)]) == ["worker:0", "worker:0"]


def test_a_worker_that_comes_back_builds_its_values_and_datasets_anew() -> None:
    def program(server: dps.Server) -> Any:
        found: dict[str, list[Any]] = {"worker:0": [], "worker:1": []}
        with dps.Coordinator(server) as coordinator:
            boxes = coordinator.create_per_worker_value(functions.box)
            batches = iter(coordinator.create_per_worker_dataset(functions.numbers))
            for _ in range(12):
                taken = [coordinator.schedule(functions.take, (batches,)) for _ in range(2)]
                counted = [coordinator.schedule(functions.count, (boxes,)) for _ in range(2)]
                coordinator.join()
                for value in coordinator.fetch(taken):
                    found[f"worker:{value // 100}"].append(value % 100)
                for calls, name in coordinator.fetch(counted):
                    found[name].append(-calls)
                server.runtime.sleep(1.0)
        return found

    found = simulated(program, faults=[Kill("worker:1", 5.0)], restarts=1)
    ones, others = ([n for n in found[name] if n >= 0] for name in ("worker:1", "worker:0"))
    again = ones.index(0, 1)
    assert ones[again:] == list(range(len(ones) - again)), "from the start, in the new process"
    assert others == list(range(len(others)))
    assert found["worker:1"].count(-1) == 2 and found["worker:0"].count(-1) == 1


def test_a_value_that_each_worker_keeps_need_not_travel() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            boxes = coordinator.create_per_worker_value("tests.coordinator.functions:give_what_cannot_travel")
            same = [coordinator.schedule(functions.same, (boxes, boxes)) for _ in range(4)]
            return coordinator.fetch(same)

    assert simulated(program) == [True] * 4


@pytest.mark.parametrize(("errors", "value"), [(2, "3 tries"), (3, None)])
def test_errors_of_a_ps_are_absorbed_up_to_the_threshold(errors: int, value: str | None) -> None:
    def program(server: dps.Server) -> Any:
        functions.tries.clear()
        with dps.Coordinator(server, ps_errors=2) as coordinator:
            found = coordinator.schedule(functions.no_ps, (errors,))
            if value is None:
                with pytest.raises(dps.Unavailable, match="ps:0 does not answer .in .*no_ps on worker:"):
                    coordinator.join()
                return None
            return found.fetch()

    assert simulated(program) == value
    assert set(functions.tries) == {"worker:0", "worker:1"}, "elsewhere"


def test_a_worker_behind_a_partition_runs_calls_again_when_it_is_back() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            first = coordinator.fetch([coordinator.schedule(functions.who, (4.0,)) for _ in range(2)])
            server.runtime.sleep(20.0)
            return first, sorted(coordinator.fetch([coordinator.schedule(functions.who, (4.0,)) for _ in range(2)]))

    first, then = simulated(program, faults=[Partition("worker:1", 2.0, 12.0)])
    assert first == ["worker:0", "worker:0"] and then == ["worker:0", "worker:1"]


def test_join_names_the_worker_at_its_deadline_and_may_be_called_again() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            value = coordinator.schedule(functions.who, (30.0,))
            with pytest.raises(dps.DeadlineExceeded) as caught:
                coordinator.join(timeout=5.0)
            coordinator.join()
            return str(caught.value), value.done()

    text, done = simulated(program, workers=1)
    assert text.startswith("join: worker:0 runs tests.coordinator.functions:who since ") and done


def test_a_join_that_sees_no_call_end_is_over_after_the_coordinators_timeout() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server, timeout=10.0) as coordinator:
            for _ in range(6):
                coordinator.schedule(functions.who, (8.0,))
            coordinator.join()  # takes 24 s, and calls end meanwhile
            coordinator.schedule(functions.who, (30.0,))
            with pytest.raises(dps.DeadlineExceeded, match="who since 1[01] s"):
                coordinator.join()
        return True

    assert simulated(program)


def test_without_a_worker_that_serves_the_error_says_how_one_is_started(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dps")

    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server, timeout=5.0) as coordinator:
            value = coordinator.schedule(functions.add, (1, 2))
            with pytest.raises(dps.DeadlineExceeded) as caught:
                value.fetch()
            return str(caught.value)

    assert simulated(program, workers=0) == (
        "fetch of tests.coordinator.functions:add: 1 call waits for a worker; no worker serves (the chief at "
        "chief:2220 knows of no workers); start one with --job worker --serve MODULE; waited 5.0 s"
    )
    assert any("has waited 2 s" in record.getMessage() for record in caplog.records)


def test_two_coordinators_share_the_workers() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as one, dps.Coordinator(server) as two:
            values = [c.schedule(functions.add, (n, 1)) for n in range(6) for c in (one, two)]
            with pytest.raises(ValueError, match="of another coordinator"):
                two.schedule(functions.add, (values[0], 1))
            return [value.fetch() for value in values]

    assert simulated(program) == [n + 1 for n in range(6) for _ in range(2)]


def test_bounded_workers_train() -> None:
    def program(server: dps.Server) -> Any:
        params, sgd = {"w": np.zeros(3)}, dps.optim.SGD(1.0)
        with dps.Session(server, params, optimizer=sgd, update=dps.Bounded(2)) as session:
            with dps.Coordinator(server) as coordinator:
                for _ in range(10):
                    coordinator.schedule(functions.gradients, (session, 0.0))
                coordinator.join()
            return session.pull()["w"].tolist()

    assert simulated(program, workers=2) == [-10.0, -10.0, -10.0]


def test_a_chief_that_is_started_again_holds_up_no_call() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator(server) as coordinator:
            first = coordinator.schedule(functions.who, (6.0,))
            coordinator.join()
            server.runtime.sleep(20.0)
            then = [coordinator.schedule(functions.who, (3.0,)) for _ in range(2)]
            return first.done(), sorted(coordinator.fetch(then))

    faults = [Kill("chief", 3.0, restart_after=2.0), Kill("worker:1", 15.0, restart_after=1.0)]
    assert simulated(program, faults=faults) == (True, ["worker:0", "worker:1"])


def test_a_closed_coordinator_says_so() -> None:
    def program(server: dps.Server) -> Any:
        coordinator = dps.Coordinator(server)
        value = coordinator.schedule(functions.add, (1, 2))
        value.fetch()
        running, queued = [coordinator.schedule(functions.who, (50.0,)) for _ in range(3)][1:]
        coordinator.close()
        with pytest.raises(dps.Cancelled, match="closed before the call had ended"):
            running.fetch()
        with pytest.raises(dps.Cancelled, match="cancelled before it ran"):
            queued.fetch()
        with pytest.raises(ValueError, match="the coordinator is closed"):
            coordinator.schedule(functions.add, (1, 2))
        return value.fetch()

    assert simulated(program) == 3


def test_when_the_run_ends_the_wait_is_over() -> None:
    def program(server: dps.Server) -> Any:
        with dps.Coordinator("chief:2220") as coordinator:
            value = coordinator.schedule(functions.who, (1000.0,))
            with pytest.raises(dps.TaskLost, match="the run has ended"):
                value.fetch(timeout=500.0)
        return True

    assert simulated(program, ends_at=4.0)
