"""Clocks are compared from round trips, whatever each way took: the truth lies within the bounds, arrows go forward."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from dps.tracing.clocks import ClockBound, compare_clocks
from dps.tracing.gathering import push_bounds
from dps.tracing.ring import ARRIVES, LEAVES, SLICE, TracedEvent
from dps.tracing.timeline import TaskEvents, timeline
from tests.tracing.checks import check

DELAY = st.integers(0, 50_000_000)
AHEAD = st.integers(-(10**15), 10**15)
Trip = tuple[int, int, int]
TRIPS = st.lists(st.tuples(st.integers(0, 10**10), DELAY, DELAY), min_size=1, max_size=5)
"""Of each round trip: when it begins on the common clock, and what each way takes."""


def bound(name: str, ahead: int, began: int, out: int, back: int) -> ClockBound:
    """What one round trip tells of a clock that is `ahead`."""
    at = began + out + ahead
    return ClockBound("common", name, at - (began + out + back), at - began)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(AHEAD, TRIPS), min_size=1, max_size=4))
def test_each_clock_is_as_far_ahead_as_told_within_its_error(
    tasks: list[tuple[int, list[Trip]]],
) -> None:
    names = [f"task:{number}" for number in range(len(tasks))]
    bounds = [bound(name, ahead, *trip) for name, (ahead, trips) in zip(names, tasks, strict=True) for trip in trips]
    found = compare_clocks(["common", *names], bounds)
    for name, (ahead, trips) in zip(names, tasks, strict=True):
        shortest = min(out + back for _, out, back in trips)
        assert abs(found[name].ahead_ns - ahead) <= found[name].error_ns + 1
        assert found[name].error_ns <= shortest / 2 + 1
    assert found["common"] == (0, 0.0)


def test_opposite_asymmetries_of_two_trips_together_tell_more_than_the_shorter_one() -> None:
    trips = [(0, 9_000_000, 0), (10**9, 0, 9_000_000)]
    found = compare_clocks(["common", "ps:0"], [bound("ps:0", 5_000, *trip) for trip in trips])
    assert found["ps:0"] == (5_000, 0.0)


def test_clocks_of_one_machine_are_the_same_as_far_as_the_bounds_allow() -> None:
    one_way = [bound("ps:0", 0, 0, 1_000_000, 0), bound("ps:1", 0, 0, 0, 3_000_000), bound("ps:2", 10**9, 0, 10, 10)]
    same = {"ps:0": "a", "ps:1": "a", "ps:2": "a"}
    found = compare_clocks(["common", "ps:0", "ps:1", "ps:2"], one_way, same)
    assert found["ps:0"] == found["ps:1"] == (0, 0.0), "one is at least 0 ahead, the other at most"
    assert abs(found["ps:2"].ahead_ns - 10**9) <= 10, "its bounds say otherwise"


def test_a_clock_of_which_nothing_is_known_counts_as_the_common_one_and_says_so() -> None:
    found = compare_clocks(["common", "ps:0"], [])
    assert found["ps:0"].ahead_ns == 0 and math.isinf(found["ps:0"].error_ns)


def test_bounds_that_contradict_each_other_because_a_clock_drifts_are_widened() -> None:
    bounds = [ClockBound("common", "ps:0", 100, 200), ClockBound("common", "ps:0", 5_000, 5_100)]
    found = compare_clocks(["common", "ps:0"], bounds)
    assert 100 - 8_000 <= found["ps:0"].ahead_ns <= 5_100 + 8_000


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(AHEAD, AHEAD), TRIPS, TRIPS,
    st.lists(st.tuples(DELAY, DELAY, st.booleans()), min_size=1, max_size=12),
)  # fmt: skip
def test_no_update_of_a_trace_is_before_its_push_whatever_the_clocks_and_the_ways(
    ahead: tuple[int, int],
    of_ps: list[Trip],
    of_worker: list[Trip],
    pushes: list[tuple[int, int, bool]],
) -> None:
    sent, applied, at = list[TracedEvent](), list[TracedEvent](), 0
    for number, (out, back, waits) in enumerate(pushes):
        began, middle, ended = at + ahead[1], at + out + ahead[0], at + out + back + ahead[1]
        sent.append(TracedEvent(LEAVES, 1, str(number), began, ended if waits else 0, {}))
        sent.append(TracedEvent(SLICE, 1, "push", began, ended, {}))
        applied.append(TracedEvent(ARRIVES, 1, str(number), middle, middle, {}))
        applied.append(TracedEvent(SLICE, 1, "apply", middle, middle + 1, {}))
        at += out + back + 1
    tasks = [TaskEvents("ps:0", {1: "node"}, applied), TaskEvents("worker:0", {1: "program"}, sent)]
    trips = [bound("ps:0", ahead[0], *trip) for trip in of_ps] + [
        bound("worker:0", ahead[1], *trip) for trip in of_worker
    ]
    found = compare_clocks(["common", "ps:0", "worker:0"], trips + push_bounds(tasks))
    shift = [found[task.name].ahead_ns for task in tasks]
    began = min(event.began_ns - own for task, own in zip(tasks, shift, strict=True) for event in task.events)
    made = timeline(tasks, shift, began, {})
    json.dumps(made, allow_nan=False)
    assert sum(event["ph"] == "f" for event in check(made)) == len(pushes)
    for own, truth in zip(shift, ahead, strict=True):
        assert abs(own - truth) <= max(found["ps:0"].error_ns, found["worker:0"].error_ns) + 1
