"""Makes one trace in Chrome's Trace Event Format of the events of several tasks, and reads what a task has sent.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Perfetto reads it, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dps.errors import ProtocolError
from dps.tracing.ring import ARRIVES, COUNTER, LEAVES, LONGEST, MOMENT, MOST, SLICE, TracedEvent

MOST_LANES, MOST_ABOUT = 1000, 16
LATEST_NS = 1 << 62


class TaskEvents(NamedTuple):
    """What one task has noted."""

    name: str
    lanes: Mapping[int, str]
    """The names of its lanes, by their numbers."""
    events: Sequence[TracedEvent]
    dropped: int = 0
    """How many older events it could not keep."""


def read_events(name: str, data: bytes) -> TaskEvents:
    """The events that a task has sent. Raises ProtocolError for anything else."""
    try:
        told = json.loads(data)
        lanes = {int(number): _text(lane) for number, lane in told["lanes"].items()}
        events, dropped = [_event(each, lanes) for each in told["events"]], _whole(told["dropped"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"got no trace from {name}: {type(error).__name__}: {error!s:.100}") from None
    if len(events) > 2 * MOST or len(lanes) > MOST_LANES:
        raise ProtocolError(f"got {len(events)} events in {len(lanes)} lanes from {name}, which is too many")
    return TaskEvents(name, lanes, events, dropped)


def _event(told: Any, lanes: Mapping[int, str]) -> TracedEvent:
    kind, lane, name, began, ended, about = told
    if kind not in (SLICE, MOMENT, COUNTER, LEAVES, ARRIVES) or lane not in lanes or type(lane) is not int:
        raise ValueError(f"an event of kind {kind!r:.20} in lane {lane!r:.20}")
    if type(about) is not dict or len(about) > MOST_ABOUT:
        raise ValueError("an event without what is told of it")
    checked = {_text(key): value if type(value) in (int, float, bool) else _text(value) for key, value in about.items()}
    event = TracedEvent(kind, lane, _text(name), _whole(began), _whole(ended), checked)
    if kind == SLICE and ended < began:
        raise ValueError("a slice that ends before it begins")
    return event


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > LONGEST + 100:
        raise ValueError(f"{value!r:.40}, wanted a short text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -LATEST_NS < value < LATEST_NS:
        raise ValueError(f"{value!r:.40}, wanted a whole number")
    return value


def flows(tasks: Sequence[TaskEvents]) -> dict[str, tuple[int, TracedEvent, int, TracedEvent]]:
    """The flows of which both ends are there: the task in which each leaves and the event there, then those of its
    arrival. A number that is at one of its ends twice is none."""
    ends: dict[str, dict[str, list[tuple[int, TracedEvent]]]] = {LEAVES: {}, ARRIVES: {}}
    for index, task in enumerate(tasks):
        for event in task.events:
            if event.kind in ends:
                ends[event.kind].setdefault(event.name, []).append((index, event))
    return {
        number: (*leaves[0], *ends[ARRIVES][number][0])
        for number, leaves in ends[LEAVES].items()
        if len(leaves) == len(ends[ARRIVES].get(number, ())) == 1
    }


def timeline(
    tasks: Sequence[TaskEvents], ahead_ns: Sequence[int], began_ns: int, about: Mapping[str, Any],
    pids: Sequence[int] | None = None, whole: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """One trace as an object of JSON.

    `ahead_ns`: by how much the clock of each task is ahead of the common one. `began_ns`: the time on this that is 0 in
    the trace. `about`: what is told of the trace. `pids`: a number for each task; None: those of their order. `whole`:
    times are whole microseconds, rounded down, else they have a fraction."""
    paired = flows(tasks)
    made: list[tuple[Any, ...]] = []
    heads: list[dict[str, Any]] = []

    def at(moment_ns: int) -> float | int:
        return moment_ns // 1000 if whole else moment_ns / 1000

    for index, (task, ahead) in enumerate(zip(tasks, ahead_ns, strict=True)):
        pid = index + 1 if pids is None else pids[index]
        heads.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": task.name}})
        heads.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        for number, lane in task.lanes.items():
            heads.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": lane}})
        for order, event in enumerate(task.events):
            shift = ahead + began_ns
            began, ended = event.began_ns - shift, event.ended_ns - shift
            shown: dict[str, Any] = {
                "ph": event.kind, "name": event.name, "cat": "dps", "pid": pid, "tid": event.lane, "ts": at(began)
            }  # fmt: skip
            if event.kind in (LEAVES, ARRIVES):
                if event.name not in paired:
                    continue
                shown |= {"name": "push", "id": event.name} | ({"bp": "e"} if event.kind == ARRIVES else {})
            else:
                shown["args"] = {key: _plain(value) for key, value in event.about.items()}
            length = 0
            if event.kind == SLICE:
                length = ended - began
                shown["dur"] = at(ended) - at(began) if whole else length / 1000
            if event.kind == MOMENT:
                shown["s"] = "t"
            inner = event.kind != SLICE  # flows and moments come after the slices around them
            made.append((began, inner, -length, -order, index, shown))
    made.sort(key=lambda each: each[:5])
    return {"traceEvents": heads + [each[5] for each in made], "displayTimeUnit": "ms", "otherData": dict(about)}


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return str(value) if isinstance(value, float) and not abs(value) < float("inf") else value
