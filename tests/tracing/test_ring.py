"""The ring is bounded and closes once; taps are gone when a trace is over, in whatever order traces end."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps.tracing.ring import COUNTER, SLICE, Ring
from dps.tracing.taps import Taps
from dps.tracing.timeline import TaskEvents, timeline
from tests.tracing.checks import check


def ring(most: int | None = 1000) -> Ring:
    ticks = count(1)
    return Ring(lambda: float(next(ticks)), most)


def task(of: Ring) -> TaskEvents:
    return TaskEvents("ps:0", {lane.number: lane.name for lane in of.lanes.values()}, of.events, of.dropped)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.integers(0, 60))
def test_a_ring_keeps_the_newest_events_and_counts_the_others(most: int, added: int) -> None:
    found = ring(most)
    lane = found.lane("a", "node")
    for number in range(added):
        found.note_value(lane, "n", number)
    assert len(found) == min(most, added) and found.dropped == max(0, added - most)
    assert [event.about["n"] for event in found.events] == list(range(max(0, added - most), added))


Tree = list[Any]
TREES: st.SearchStrategy[Tree] = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), TREES), max_size=6), st.integers(2, 40))
def test_slices_nest_in_their_lanes_whatever_is_called_and_however_few_are_kept(
    calls: list[tuple[str, Tree]], most: int
) -> None:
    found = ring(most)

    def call(key: str, tree: Tree) -> None:
        with found.slice(found.lane(key, key), "call", "program"):
            for inner in tree:
                call(key, inner)

    for key, tree in calls:
        call(key, tree)
    check(timeline([task(found)], [0], 0, {}))


def test_a_slice_that_goes_on_when_the_ring_closes_is_in_it_and_says_so() -> None:
    found = ring()
    lane = found.lane("a", "node")
    with found.slice(lane, "push"):
        with found.slice(lane, "apply"):
            found.close()
            found.close()
            found.note_value(lane, "late", 1)
        with found.slice(lane, "later"):
            pass
    assert [(event.kind, event.name, event.about) for event in found.events] == [
        (SLICE, "apply", {"goes on": True}), (SLICE, "push", {"goes on": True}),
    ]  # fmt: skip
    assert COUNTER not in {event.kind for event in found.events}


def test_an_error_is_told_in_its_slice_and_goes_on() -> None:
    found = ring()
    with pytest.raises(ValueError, match="x"), found.slice(found.lane("a", "a"), "push"):
        raise ValueError("x" * 1000)
    (event,) = found.events
    assert event.about["error"].startswith("ValueError: xx") and len(event.about["error"]) == 200


class Owner:
    def __init__(self) -> None:
        self.told: list[str] = []

    def work(self, what: str) -> str:
        self.told.append(what)
        return f"did {what}"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_taps_of_several_traces_end_in_any_order_and_nothing_stays(order: tuple[int, ...]) -> None:
    owner, seen, traces = Owner(), list[int](), [Taps() for _ in range(3)]

    def through(number: int, call: Any) -> Any:
        def tapped(what: str) -> Any:
            seen.append(number)
            return call(what)

        return tapped

    for number, taps in enumerate(traces):
        taps.tap(owner, "work", lambda call, number=number: through(number, call))  # type: ignore[misc]
    assert owner.work("a") == "did a" and seen == [2, 1, 0]
    live = {0, 1, 2}
    for number in order:
        traces[number].end()
        live.discard(number)
        seen.clear()
        assert owner.work("b") == "did b" and set(seen) == live
    assert "work" not in vars(owner)
    traces[0].tap(owner, "work", lambda call: call)
    assert "work" not in vars(owner), "a trace that is over taps nothing"
