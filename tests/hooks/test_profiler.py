"""Traces of a worker's calls: JSON that chrome://tracing and Perfetto read, and calls as before when it is over."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import CheckpointError, ConfigError
from tests.hooks.loops import EXACT, ones, session
from tests.in_process import cluster

PHASES = {"X": {"dur", "args"}, "C": {"args"}, "i": {"s", "args"}, "M": {"args"}}
"""What Chrome's Trace Event Format wants of each phase that is used, beside what all events have."""


def checked(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, each as the format wants it."""
    trace = json.loads(path.read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"} and trace["displayTimeUnit"] == "ms"
    for event in trace["traceEvents"]:
        assert {"ph", "name", "pid", "tid"} | PHASES[event["ph"]] <= set(event)
        assert type(event["pid"]) is int and type(event["tid"]) is int and type(event["name"]) is str
        if event["ph"] != "M":
            assert event["ts"] > 0 and event.get("dur", 0) >= 0
    found: list[dict[str, Any]] = trace["traceEvents"]
    return found


def slices(events: list[dict[str, Any]]) -> list[str]:
    return [event["name"] for event in events if event["ph"] == "X"]


def train(server: Any, hook: dps.Hook, pushes: int) -> None:
    with session(server, [hook]) as s:
        for _ in range(pushes):
            s.pull()
            s.push(ones(), loss=0.5)


def test_a_trace_has_the_calls_of_its_steps_and_the_program_between_them(tmp_path: Path) -> None:
    with cluster() as (server,):
        train(server, dps.Profiler(str(tmp_path), length=3), 5)
    assert [path.name for path in tmp_path.iterdir()] == ["timeline-3-worker-0.json"]
    events = checked(tmp_path / "timeline-3-worker-0.json")
    assert slices(events) == ["pull", "program", "push", *["program", "pull", "program", "push"] * 2]
    last = [event for event in events if event["name"] == "push"][-1]
    assert last["args"] == {"step": 3, "accepted": True, "staleness": 0}
    steps = [event["args"]["global step"] for event in events if event["name"] == "global step"]
    losses = [event["args"]["loss"] for event in events if event["name"] == "loss"]
    assert steps == [1, 2, 3] and losses == [0.5] * 3
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {"worker:0"}


def test_slices_lie_within_each_other_and_never_across(tmp_path: Path) -> None:
    with cluster() as (server,), session(server, [dps.Profiler(str(tmp_path), length=4)]) as s:
        s.step(ones())
        s.push_async(ones()).result()
        s.pull_async().result()
        s.pull(if_newer_than=s.version)
        with s.view() as values:
            assert values["a"][0] == -2
        for _ in s.prefetch():
            s.push(ones())
            if s.global_step == 4:
                break
    events = [event for event in checked(tmp_path / "timeline-4-worker-0.json") if event["ph"] == "X"]
    assert {"step", "push_async", "result of push_async", "pull_async", "view", "push"} <= set(slices(events))
    stack: list[float] = []
    for event in events:
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        assert not stack or event["ts"] + event["dur"] <= stack[-1]
        stack.append(event["ts"] + event["dur"])


def test_when_a_trace_is_over_the_sessions_calls_are_its_own(tmp_path: Path) -> None:
    with cluster() as (server,), session(server, [dps.Profiler(str(tmp_path), length=1)]) as s:
        assert "push" in vars(s) and "view" in vars(s)
        s.push(ones())
        assert not {"push", "pull", "view", "step"} & set(vars(s))
        assert s.push(ones()).step == 2


def test_traces_come_at_intervals_and_the_end_of_the_loop_writes_what_there_is(tmp_path: Path) -> None:
    with cluster() as (server,):
        train(server, dps.Profiler(str(tmp_path), steps=4, length=2), 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "timeline-2-worker-0.json", "timeline-6-worker-0.json", "timeline-9-worker-0.json",
    ]  # fmt: skip
    assert slices(checked(tmp_path / "timeline-9-worker-0.json")).count("push") == 1


def test_virtual_time_is_in_a_simulated_trace(tmp_path: Path) -> None:
    found: list[Any] = []

    def work(server: Any) -> None:
        with session(server, [dps.Profiler("traces", length=2)]) as s:
            s.push(ones())
            s.push(ones())
            found.append(json.loads(bytes(s.runtime.storage.read("traces/timeline-2-worker-0.json"))))

    assert dps.simulate(work, workers=1, **EXACT).errors == {}
    pushes = [event for event in found[0]["traceEvents"] if event["name"] == "push"]
    assert [round(event["dur"] / 1e6) for event in pushes] == [1, 1]


def test_an_error_is_in_the_slice_of_its_call_and_a_rollback_is_a_moment(tmp_path: Path) -> None:
    with (
        cluster() as (server,),
        session(server, [dps.Profiler(str(tmp_path / "t"), length=2)], checkpoint_dir=str(tmp_path / "run")) as s,
    ):
        with pytest.raises(ValueError, match="a"):
            s.push({"a": np.ones(3)})
        s.push(ones())
        s.restore()
        s.push(ones(), loss=float("nan"))
    (path,) = (tmp_path / "t").iterdir()
    events = checked(path)
    assert any("ValueError" in event["args"].get("error", "") for event in events if event["name"] == "push")
    assert [event["args"] for event in events if event["ph"] == "i"] == [{"step": 0, "lost": 1}]


def test_a_disk_that_refuses_costs_the_trace_and_nothing_else(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.ERROR, "dps"), cluster() as (server,):
        train(server, dps.Profiler(str(tmp_path / "file" / "folder"), length=1), 3)
    (told,) = [record.getMessage() for record in caplog.records if "no trace" in record.getMessage()]
    assert told.startswith("worker:0: no trace of the steps up to 1: ") and "\n" not in told
    assert issubclass(CheckpointError, dps.DpsError)


def test_without_a_folder_it_says_so(tmp_path: Path) -> None:
    told = "Profiler has no directory and the run no checkpoint_dir"
    with cluster() as (server,), pytest.raises(ConfigError, match=told):
        train(server, dps.Profiler(), 1)
    with cluster() as (server,), session(server, [dps.Profiler(length=1)], checkpoint_dir=str(tmp_path)) as s:
        s.push(ones())
    assert (tmp_path / "timeline-1-worker-0.json").exists()
