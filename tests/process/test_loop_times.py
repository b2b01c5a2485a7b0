"""What the time of a loop goes to: reading data, computing, and the session's calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dps.process.telemetry import TOLD_S, LoopTimes, timed_read


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at

    def pass_time(self, seconds: float) -> None:
        self.at += seconds


def told(times: LoopTimes) -> list[float]:
    """Read, computed, in calls."""
    return [round(value, 9) for value in times.take_told()[:3]]


def read(clock: Clock, seconds: float) -> None:
    timed_read(clock, lambda: clock.pass_time(seconds))


def test_time_outside_of_calls_is_computing_but_for_what_the_thread_reads() -> None:
    clock = Clock()
    times = LoopTimes(clock, 60.0)
    read(clock, 1.0)
    clock.pass_time(2.0)
    times.enter()
    clock.pass_time(4.0)
    assert told(times) == [1.0, 2.0, 0.0]  # up to the beginning of the call
    times.leave()
    clock.pass_time(8.0)
    times.enter()
    assert told(times) == [1.0, 10.0, 4.0]


def test_a_hook_is_a_part_of_the_program_and_may_call_the_session() -> None:
    clock = Clock()
    times = LoopTimes(clock, 60.0)
    times.enter()
    clock.pass_time(1.0)
    times.leave()  # a hook begins
    clock.pass_time(2.0)
    times.enter()  # it saves
    clock.pass_time(4.0)
    times.leave()
    clock.pass_time(8.0)
    times.enter()  # the hook ends
    clock.pass_time(16.0)
    times.leave()
    times.enter()
    assert told(times) == [0.0, 10.0, 21.0]


def test_of_a_reading_inside_another_one_the_outer_one_counts() -> None:
    clock = Clock()
    times = LoopTimes(clock, 60.0)

    def outer() -> None:
        read(clock, 1.0)
        clock.pass_time(1.0)
        read(clock, 1.0)

    timed_read(clock, outer)
    times.enter()
    assert told(times) == [3.0, 0.0, 0.0]


def test_a_reading_that_raises_counts() -> None:
    clock = Clock()
    times = LoopTimes(clock, 60.0)

    def fails() -> None:
        clock.pass_time(2.0)
        raise StopIteration

    with pytest.raises(StopIteration):
        timed_read(clock, fails)
    times.enter()
    assert told(times) == [2.0, 0.0, 0.0]


def test_what_another_thread_reads_is_not_the_loops() -> None:
    clock = Clock()
    times = LoopTimes(clock, 60.0)
    reader = threading.Thread(target=read, args=(clock, 5.0))
    reader.start()
    reader.join()
    times.enter()
    assert told(times) == [0.0, 5.0, 0.0]


def test_a_session_that_goes_to_another_thread_begins_there_with_what_that_reads_from_now_on() -> None:
    clock = Clock()
    times = LoopTimes(clock, 60.0)
    found: list[list[float]] = []

    def other() -> None:
        read(clock, 1.0)
        times.enter()
        found.append(told(times))  # whether this second was for this session is not known
        times.leave()
        read(clock, 2.0)
        times.enter()
        found.append(told(times))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [[0.0, 1.0, 0.0], [2.0, 1.0, 0.0]]


def test_a_new_incarnation_begins_anew_and_what_was_read_before_is_not_its() -> None:
    clock = Clock()
    times = LoopTimes(clock, 60.0)
    read(clock, 1.0)
    times.enter()
    clock.pass_time(1.0)
    times.begin_sums()
    clock.pass_time(2.0)
    times.leave()
    read(clock, 4.0)
    times.enter()
    assert told(times) == [4.0, 0.0, 2.0]


def test_it_is_due_once_in_50_ms_and_says_how_long_the_session_waits() -> None:
    clock = Clock()
    times = LoopTimes(clock, float("inf"))
    assert times.at < times.due_at
    clock.pass_time(TOLD_S)
    times.enter()
    assert times.at >= times.due_at
    assert times.take_told()[3] == 0.0 and times.at < times.due_at
    assert LoopTimes(clock, 7.5).take_told()[3] == 7.5


STEPS = st.lists(
    st.tuples(st.sampled_from(["read", "compute", "call", "tell", "virtual"]), st.floats(0, 9)), max_size=60
)


@given(STEPS)
@settings(max_examples=100)
def test_the_sums_never_fall_and_are_all_time_that_has_passed(steps: list[tuple[str, float]]) -> None:
    clock = Clock()
    times, last = LoopTimes(clock, 1.0), [0.0, 0.0, 0.0]
    began = clock.at

    def check() -> Iterator[bool]:
        nonlocal last
        now, last_before = times.take_told()[:3], last
        last = now
        yield all(new >= old for new, old in zip(now, last_before, strict=True))
        yield abs(sum(now) - (clock.at - began)) < 1e-6

    for what, seconds in steps:
        if what == "read":
            read(clock, seconds)
        elif what == "compute":
            clock.pass_time(seconds)
        elif what == "virtual":
            times.enter()
            clock.pass_time(seconds)
            times.count_computed(seconds)
            times.leave()
        elif what == "call":
            times.enter()
            clock.pass_time(seconds)
            times.leave()
        else:
            times.enter()
            assert all(check())
            times.leave()
    times.enter()
    assert all(check())
