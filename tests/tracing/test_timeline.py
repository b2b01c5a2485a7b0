"""What a task sends is checked as a whole; flows with one end are left out; NaN is text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dps.errors import ProtocolError
from dps.tracing.ring import ARRIVES, COUNTER, LEAVES, MOMENT, SLICE, TracedEvent
from dps.tracing.timeline import TaskEvents, read_events, timeline
from tests.tracing.checks import check, crossing, loose, unpaired

GOOD = [SLICE, 1, "push", 5, 9, {"step": 1}]


def sent(*events: Any, **told: Any) -> bytes:
    return json.dumps({"lanes": {"1": "node"}, "dropped": 0, "events": events} | told).encode()


def test_what_was_sent_is_read() -> None:
    found = read_events("ps:0", sent(GOOD, [LEAVES, 1, "1.1.1.0", 5, 9, {}], dropped=3))
    assert found == TaskEvents(
        "ps:0", {1: "node"},
        [TracedEvent(SLICE, 1, "push", 5, 9, {"step": 1}), TracedEvent(LEAVES, 1, "1.1.1.0", 5, 9, {})], 3,
    )  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"[]", b"{}", b"null", b"[" * 100_000, sent(GOOD)[:-2],
        sent(lanes=[]), sent(lanes={"x": "node"}), sent(lanes={"1": 5}), sent(dropped="3"), sent(events=5),
        sent([]), sent([*GOOD, 1]), sent(["B", *GOOD[1:]]), sent([SLICE, 2, *GOOD[2:]]), sent([SLICE, True, *GOOD[2:]]),
        sent([SLICE, 1, 5, 5, 9, {}]), sent([SLICE, 1, "n" * 1000, 5, 9, {}]), sent([SLICE, 1, "push", 5.5, 9, {}]),
        sent([SLICE, 1, "push", 9, 5, {}]), sent([SLICE, 1, "push", 5, 1 << 70, {}]), sent([SLICE, 1, "p", 5, 9, []]),
        sent([SLICE, 1, "p", 5, 9, {"a": []}]), sent([SLICE, 1, "p", 5, 9, {str(n): 1 for n in range(99)}]),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_tasks_name(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="ps:0"):
        read_events("ps:0", data)


def test_flows_with_one_end_and_numbers_that_are_there_twice_are_left_out_and_nan_is_text() -> None:
    around = TracedEvent(SLICE, 1, "push", 0, 100, {"loss": float("nan")})
    worker = [TracedEvent(LEAVES, 1, number, 10, 20, {}) for number in ("a", "b", "b", "c")]
    ps = [TracedEvent(ARRIVES, 1, number, 15, 15, {}) for number in ("a", "b", "d")]
    moment = TracedEvent(MOMENT, 1, "rolled back", 3, 3, {}), TracedEvent(COUNTER, 1, "step", 3, 3, {"step": 2})
    tasks = [
        TaskEvents("worker:0", {1: "program"}, [*worker, around, *moment]),
        TaskEvents("ps:0", {1: "node"}, [*ps, around]),
    ]
    made = timeline(tasks, [0, 0], 0, {"tasks": ["worker:0", "ps:0"]})
    events = check(made)
    assert [event["id"] for event in events if event["ph"] in "sf"] == ["a", "a"]
    assert {event["args"]["loss"] for event in events if event["ph"] == "X"} == {"nan"}
    json.dumps(made, allow_nan=False)


def test_the_checks_find_what_is_wrong() -> None:
    assert crossing([(0, 10), (5, 15)]) and crossing([(0, 5), (0, 10)]) and not crossing([(0, 10), (2, 5), (5, 10)])

    def slice_(began: int, ended: int, pid: int = 1) -> dict[str, Any]:
        return {"ph": "X", "name": "a", "pid": pid, "tid": 1, "ts": began, "dur": ended - began, "args": {}}

    def flow(kind: str, at: int, number: str = "n", pid: int = 1) -> dict[str, Any]:
        return {"ph": kind, "name": "push", "id": number, "bp": "e", "pid": pid, "tid": 1, "ts": at}

    def trace(*events: dict[str, Any]) -> dict[str, Any]:
        return {"traceEvents": list(events), "displayTimeUnit": "ms", "otherData": {}}

    good = slice_(0, 10), flow("s", 3), flow("f", 5)
    check(trace(*good))
    assert unpaired(trace(slice_(0, 10), flow("s", 3))) == ["n"]
    assert unpaired(trace(slice_(0, 10), flow("s", 5), flow("f", 3))) == ["n"]
    assert unpaired(trace(*good, flow("f", 5))) == ["n"]
    assert loose(trace(slice_(0, 10), flow("s", 3), flow("f", 15))) == ["n"]
    assert loose(trace(slice_(0, 10), flow("s", 3), flow("f", 5, pid=2))) == ["n"]
