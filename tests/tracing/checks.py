"""What holds of every trace: slices nest in their lane, and each flow goes from one slice to a later moment in one."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

PHASES = {"X": {"dur", "args"}, "C": {"args"}, "i": {"s", "args"}, "M": {"args"}, "s": {"id"}, "f": {"id", "bp"}}
"""What the format wants of each kind of event, beside what all have."""

Span = tuple[int, int]


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def lanes(trace: dict[str, Any]) -> dict[tuple[int, int], list[Span]]:
    """The slices of each lane, in the order of the file: beginning and end in nanoseconds."""
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            began = nanoseconds(event["ts"])
            found[event["pid"], event["tid"]].append((began, began + nanoseconds(event["dur"])))
    return found


def crossing(spans: list[Span]) -> list[tuple[Span, Span]]:
    """The slices of a lane that begin in another one and end after it, or stand before it in the file."""
    wrong, around = [], list[Span]()
    for span in spans:
        while around and around[-1][1] <= span[0] and around[-1] != span:
            around.pop()
        if around and (span[0] < around[-1][0] or span[1] > around[-1][1]):
            wrong.append((around[-1], span))
        around.append(span)
    return wrong


def unpaired(trace: dict[str, Any]) -> list[str]:
    """The flows that do not leave once, arrive once, and arrive later than they leave."""
    leaves = [(event["id"], nanoseconds(event["ts"])) for event in trace["traceEvents"] if event["ph"] == "s"]
    arrives = [(event["id"], nanoseconds(event["ts"])) for event in trace["traceEvents"] if event["ph"] == "f"]
    counts = Counter(number for number, _ in leaves), Counter(number for number, _ in arrives)
    left = dict(leaves)
    return [
        number for number in counts[0] | counts[1] if counts[0][number] != 1 or counts[1][number] != 1
    ] + [number for number, at in arrives if at < left.get(number, at)]  # fmt: skip


def loose(trace: dict[str, Any]) -> list[str]:
    """The flows of which an end lies in no slice of its lane."""
    spans = lanes(trace)
    return [
        event["id"]
        for event in trace["traceEvents"]
        if event["ph"] in "sf"
        and not any(
            began <= nanoseconds(event["ts"]) <= ended for began, ended in spans.get((event["pid"], event["tid"]), ())
        )
    ]


def check(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a trace that passes all checks."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"} and trace["displayTimeUnit"] == "ms"
    for event in trace["traceEvents"]:
        assert {"ph", "name", "pid", "tid"} | PHASES[event["ph"]] <= set(event), event
        assert type(event["pid"]) is int and type(event["tid"]) is int and type(event["name"]) is str
        assert event["ph"] == "M" or (event["ts"] >= 0 and event.get("dur", 0) >= 0), event
    for lane, spans in lanes(trace).items():
        assert not crossing(spans), (lane, crossing(spans)[:3])
    assert not unpaired(trace) and not loose(trace), (unpaired(trace)[:3], loose(trace)[:3])
    found: list[dict[str, Any]] = trace["traceEvents"]
    return found
