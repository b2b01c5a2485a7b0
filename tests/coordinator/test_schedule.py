"""The schedule of a coordinator as a state machine: a race is a list of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps.coordinator.schedule import OVER, CallSchedule, ScheduledCall, ScheduledState
from dps.errors import Cancelled

VALUE: Any = (b"", ())


def call(*needs: ScheduledCall) -> ScheduledCall:
    return ScheduledCall("m:f", VALUE, needs)


def fails() -> Exception:
    return KeyError("bad")


def test_calls_run_in_order_on_the_worker_that_was_free_for_longest() -> None:
    schedule, calls = CallSchedule(), [call() for _ in range(3)]
    schedule.add_worker("a")
    schedule.add_worker("b")
    assert schedule.add_call(calls[0]) == [("a", calls[0])]
    assert schedule.add_call(calls[1]) == [("b", calls[1])]
    assert schedule.add_call(calls[2]) == []
    assert schedule.record_value("b", calls[1], VALUE) == [("b", calls[2])]


def test_a_lost_workers_call_runs_before_those_that_no_worker_has_had() -> None:
    schedule, first, second = CallSchedule(), call(), call()
    schedule.add_worker("a")
    schedule.add_call(first)
    schedule.add_call(second)
    schedule.remove_worker("a")
    assert schedule.add_worker("b") == [("b", first)]


def test_a_worker_that_was_lost_cannot_end_its_call() -> None:
    schedule, first = CallSchedule(), call()
    schedule.add_worker("a")
    schedule.add_call(first)
    schedule.remove_worker("a")
    schedule.add_worker("b")
    schedule.record_value("a", first, (b"late", ()))
    assert first.state is ScheduledState.RUNNING
    schedule.record_value("b", first, (b"b", ()))
    schedule.record_error("a", first, fails, False)
    assert first.value == (b"b", ()) and first.state is ScheduledState.RETURNED and schedule.error is None


def test_a_call_waits_for_the_values_that_it_needs_without_a_worker() -> None:
    schedule, first = CallSchedule(), call()
    second, third = call(first), call()
    schedule.add_call(first)
    schedule.add_call(second)
    schedule.add_call(third)
    assert schedule.add_worker("a") == [("a", first)]
    assert schedule.add_worker("b") == [("b", third)]
    assert schedule.record_value("a", first, VALUE) == [("a", second)]


def test_the_first_error_cancels_what_no_worker_has_and_what_runs_goes_on() -> None:
    schedule, bad, runs = CallSchedule(), call(), call()
    queued, waits = call(), call(runs)
    schedule.add_worker("a")
    schedule.add_worker("b")
    for each in (bad, runs, queued, waits):
        schedule.add_call(each)
    assert schedule.record_error("a", bad, fails, False) == []
    assert [each.state for each in (bad, runs, queued, waits)] == [
        ScheduledState.FAILED, ScheduledState.RUNNING, ScheduledState.CANCELLED, ScheduledState.CANCELLED,
    ]  # fmt: skip
    assert queued.error is not None and isinstance(queued.error(), Cancelled)
    assert schedule.add_call(later := call()) == [("a", later)], "later calls run"
    schedule.record_value("b", runs, VALUE)
    assert schedule.open_count == 1 and schedule.error is fails


def test_a_call_that_needs_the_value_of_a_failed_one_fails() -> None:
    schedule, bad = CallSchedule(), call()
    schedule.add_worker("a")
    schedule.add_call(bad)
    schedule.record_error("a", bad, fails, False)
    schedule.error = None
    schedule.add_call(needs := call(bad))
    assert needs.state is ScheduledState.FAILED and schedule.error is not None
    with pytest.raises(Cancelled, match="whose value it needs"):
        raise schedule.error()


def test_errors_of_a_ps_are_absorbed_up_to_the_threshold() -> None:
    schedule, tried = CallSchedule(most_ps_errors=2), call()
    schedule.add_worker("a")
    schedule.add_worker("b")
    assert schedule.add_call(tried) == [("a", tried)]
    assert schedule.record_error("a", tried, fails, True) == [("b", tried)], "elsewhere"
    assert schedule.record_error("b", tried, fails, True) == [("a", tried)]
    assert schedule.record_error("a", tried, fails, True) == []
    assert tried.state is ScheduledState.FAILED and schedule.error is fails


def test_what_is_over_keeps_neither_arguments_nor_other_calls() -> None:
    schedule, first = CallSchedule(), call()
    second = call(first)
    schedule.add_worker("a")
    schedule.add_call(first)
    schedule.add_call(second)
    schedule.record_value("a", first, VALUE)
    schedule.record_value("a", second, VALUE)
    assert not first.dependents and not second.needs and second.arguments == (b"", ())


@given(st.lists(st.tuples(st.sampled_from("acdjlrxp"), st.integers(0, 30), st.sampled_from("uvw")), max_size=60))
def test_whatever_happens_each_call_is_in_one_place_and_ends_once(events: list[tuple[str, int, str]]) -> None:
    schedule, calls, ended = CallSchedule(1), list[ScheduledCall](), dict[ScheduledCall, ScheduledState]()
    for event, number, worker in events:
        if event in "ad":
            schedule.add_call(made := call(*([calls[number % len(calls)]] if event == "d" and calls else [])))
            calls.append(made)
        elif event == "j":
            schedule.add_worker(worker)
        elif event == "l":
            schedule.remove_worker(worker)
        elif event == "c":
            schedule.cancel_calls("a test")
        elif calls:
            of = schedule.running.get(worker) or calls[number % len(calls)]
            if event == "r":
                schedule.record_value(worker, of, VALUE)
            else:
                schedule.record_error(worker, of, fails, event == "p")
        places = [*schedule.queue, *schedule.waiting, *schedule.running.values()]
        assert len(places) == len(set(places)) and set(places) == {each for each in calls if each.state not in OVER}
        assert not (schedule.queue and schedule.free) and not set(schedule.free) & set(schedule.running)
        for each, state in ended.items():
            assert each.state is state
        ended |= {each: each.state for each in calls if each.is_over}
