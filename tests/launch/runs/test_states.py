"""The states of a run as events with times: no process, no clock."""

from __future__ import annotations

import signal

from hypothesis import given
from hypothesis import strategies as st

from dps.launch.runs.states import CREATED, FAILED, KILLED, OVER, PENDING, RUNNING, SUCCEEDED, States
from dps.launch.runs.times import utc
from dps.launch.supervision.outcome import TEARDOWN

TASKS = ("chief", "ps:0", "worker:0")


def running() -> States:
    states = States(TASKS, 0.0)
    states.begin_run(1.0)
    for i, name in enumerate(TASKS):
        states.record_start(name, 100 + i, "7", 2.0)
    states.record_listening("127.0.0.1:1", 3.0)
    return states


def task(states: States, name: str) -> str:
    return str(states.values["tasks"][name]["state"])


def test_a_run_that_goes_well_has_its_states_and_times() -> None:
    states = running()
    states.record_end("worker:0", 0, 4.0)
    states.record_end("ps:0", -TEARDOWN, 5.0)
    states.record_end("chief", 0, 5.0)
    states.finish_run(0, "", 6.0)
    assert states.values["history"] == [
        [state, utc(at)] for state, at in ((CREATED, 0.0), (PENDING, 1.0), (RUNNING, 3.0), (SUCCEEDED, 6.0))
    ]
    assert [task(states, name) for name in TASKS] == [SUCCEEDED] * 3
    assert states.values["tasks"]["worker:0"]["history"][2] == [RUNNING, utc(2.0)]


def test_a_task_that_is_started_again_runs_again_and_is_counted() -> None:
    states = running()
    states.record_end("ps:0", -signal.SIGKILL, 4.0)
    assert task(states, "ps:0") == FAILED and states.values["tasks"]["ps:0"]["exit_code"] == -9
    states.record_start("ps:0", 200, "8", 5.0)
    found = states.values["tasks"]["ps:0"]
    assert (found["state"], found["pid"], found["restarts"], found["exit_code"]) == (RUNNING, 200, 1, None)


def test_a_failed_worker_fails_the_run() -> None:
    states = running()
    states.record_end("worker:0", 1, 4.0)
    states.finish_run(1, "the run failed", 5.0)
    assert states.state == FAILED and task(states, "worker:0") == FAILED and states.values["reason"]


def test_a_run_that_somebody_ends_was_killed_also_where_its_tasks_ended_well() -> None:
    states = running()
    states.mark_killing()
    states.record_end("worker:0", 0, 4.0)
    states.record_end("ps:0", -signal.SIGKILL, 4.0)
    states.finish_run(0, "", 5.0)
    assert states.state == KILLED and task(states, "worker:0") == SUCCEEDED and task(states, "ps:0") == KILLED
    assert task(states, "chief") == KILLED  # its end was not seen


def test_a_run_that_was_never_begun_ends_with_all_its_tasks() -> None:
    states = States(TASKS, 0.0)
    states.mark_killing()
    states.finish_run(130, "it was ended before it began", 1.0)
    assert states.state == KILLED and {task(states, name) for name in TASKS} == {KILLED}


events = st.lists(
    st.tuples(st.sampled_from(["start", "end", "kill"]), st.sampled_from(TASKS), st.integers(-15, 143)), max_size=30
)


@given(events)
def test_whatever_happens_a_finished_run_has_only_finished_tasks_and_its_times_rise(events: list) -> None:  # type: ignore[type-arg]
    states = States(TASKS, 0.0)
    states.begin_run(0.0)
    for at, (event, name, code) in enumerate(events, 1):
        if event == "start":
            states.record_start(name, 1, "1", at)
        elif event == "end":
            states.record_end(name, code, at)
        else:
            states.mark_killing()
    states.finish_run(0, "", len(events) + 1)
    for each in (states.values, *states.values["tasks"].values()):
        assert each["state"] in OVER and each["history"][-1] == [each["state"], each["since"]]
        times = [when for _, when in each["history"]]
        assert times == sorted(times)
        assert all(a[0] != b[0] for a, b in zip(each["history"], each["history"][1:], strict=False))
