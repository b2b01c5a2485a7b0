"""Summaries: what is in a row, who writes, and what becomes of disks that cannot be written to."""

from __future__ import annotations

import itertools
import json
import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dps
from dps.checkpoint import MemoryStorage
from dps.errors import ConfigError
from dps.hooks.summary import EventFile
from dps.transport.sim import Kill
from dps.transport.sim.world import DiskFull
from tests.hooks.events import crc32c, events
from tests.hooks.loops import EXACT, loop, ones, session
from tests.in_process import cluster

FILE = "log/summaries.jsonl"


def rows(storage: Any, path: str = FILE) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, read strictly: NaN is no JSON."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in bytes(storage.read(path)).decode().splitlines()]


def simulated(*arguments: Any, **world: Any) -> tuple[dps.launch.commands.simulate.SimulatedRun, MemoryStorage]:
    storage = MemoryStorage()
    return dps.simulate(*arguments, storage=storage, **{**EXACT, **world}), storage


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What is logged; caplog does not see the simulator's tasks."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dps").addHandler(handler)
    yield texts
    logging.getLogger("dps").removeHandler(handler)


# -- rows ---------------------------------------------------------------------------------------------------------


def test_a_row_comes_after_the_first_push_and_then_every_so_many_steps() -> None:
    run, storage = simulated(loop, 6, [dps.SummarySaver("log", steps=2, batch=8)], [0.5, 1, 2, 3, 4, math.nan])
    assert not run.errors
    started, *found = rows(storage)
    assert (started["event"], started["step"], started["worker"]) == ("started", 0, "worker:0")
    assert [(row["step"], row["loss"]) for row in found] == [(1, 0.5), (3, 2.0), (5, 4.0)]
    assert set(found[0]) == {"wall_time", "step", "worker", "loss", "staleness", "accepted"}
    assert all((row["worker"], row["staleness"], row["accepted"]) == ("worker:0", 0, True) for row in found)
    for before, row in itertools.pairwise(found):  # a push takes a second: two steps of 8 examples
        assert row["steps_per_s"] == pytest.approx(1.0, rel=0.01)
        assert row["examples_per_s"] == pytest.approx(8.0, rel=0.01)
        assert row["wall_time"] - before["wall_time"] == pytest.approx(2.0, rel=0.01)


def test_rows_may_come_by_the_clock() -> None:
    _, storage = simulated(loop, 8, [dps.SummarySaver("log", seconds=2.5)])
    assert [row["step"] for row in rows(storage)[1:]] == [1, 4, 7]


def test_what_is_no_finite_number_is_null_and_a_push_without_a_loss_too() -> None:
    losses: Any = [math.nan, math.inf, None]
    _, storage = simulated(loop, 3, [dps.SummarySaver("log", steps=1)], losses)
    assert [row["loss"] for row in rows(storage)[1:]] == [None, None, None]


def test_the_newest_value_of_each_scalar_that_is_new_is_in_the_next_row_of_every_hook(said: list[str]) -> None:
    def train(server: Any) -> None:
        hooks = [dps.SummarySaver("log", steps=2), dps.SummarySaver("other", steps=1), dps.LogMetrics(steps=2)]
        with session(server, hooks) as s:
            for index in range(5):
                if index < 4:
                    s.summary("eval/accuracy", index / 10)
                if index == 0:
                    s.summary("once", 7)
                s.push(ones())

    logger = logging.getLogger("dps")
    level = logger.level
    logger.setLevel("INFO")
    try:
        run, storage = simulated(train)
    finally:
        logger.setLevel(level)
    assert not run.errors
    wanted = [{"eval/accuracy": 0.0, "once": 7.0}, {"eval/accuracy": 0.2}, {"eval/accuracy": 0.3}]
    names = ("eval/accuracy", "once")
    found = [{name: row[name] for name in names if name in row} for row in rows(storage)[1:]]
    assert found == wanted
    each = [row.get("eval/accuracy") for row in rows(storage, "other/summaries.jsonl")[1:]]
    assert each == [0.0, 0.1, 0.2, 0.3, None]
    assert any(text == "worker:0: step 1, eval/accuracy 0, once 7, staleness 0" for text in said)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("loss", 1, "got the name 'loss'"),
        ("", 1, "got the name ''"),
        ("a", "much", "got 'much' for a"),
        ("a", [1], "a"),
    ],
)
def test_scalars_that_make_no_sense_are_told(name: str, value: Any, words: str) -> None:
    with cluster(1, 1, "inproc") as (server,), session(server) as s, pytest.raises(ValueError, match=words):
        s.summary(name, value)


# -- who writes, and where ------------------------------------------------------------------------------------------


def test_only_the_session_that_leads_writes_and_the_next_one_goes_on_in_its_file() -> None:
    def train(server: Any) -> None:
        loop(server, 4 if server.task == 0 else 8, [dps.SummarySaver("log", steps=1)])

    _, storage = simulated(train, workers=2)
    found = [row for row in rows(storage) if "event" not in row]
    by = {name: [row["step"] for row in found if row["worker"] == name] for name in ("worker:0", "worker:1")}
    assert len(by["worker:0"]) == 4 and by["worker:1"] == [9, 10, 11, 12]
    assert [row["step"] for row in found] == sorted(row["step"] for row in found)


def test_with_a_switch_every_worker_writes_a_file_of_its_own() -> None:
    def train(server: Any) -> None:
        loop(server, 3, [dps.SummarySaver("log", steps=1, all_workers=True)])

    _, storage = simulated(train, workers=2, update="sync")
    for task in range(2):
        found = rows(storage, f"log/worker-{task}/summaries.jsonl")
        assert [(row["worker"], row["step"]) for row in found] == [(f"worker:{task}", step) for step in (0, 1, 2, 3)]
    assert storage.names("log") == ["worker-0", "worker-1"]


def test_the_directory_is_the_runs_checkpoint_dir_unless_another_is_given(tmp_path: Path) -> None:
    with cluster(1, 1, "inproc") as (server,):
        loop(server, 2, [dps.SummarySaver(steps=1)], checkpoint_dir=tmp_path / "run")
    assert len((tmp_path / "run" / "summaries.jsonl").read_text().splitlines()) == 3
    told = "SummarySaver has no directory and the run no checkpoint_dir"
    with cluster(1, 1, "inproc") as (server,), pytest.raises(ConfigError, match=told):
        session(server, [dps.SummarySaver()])


def test_a_run_that_is_started_again_adds_to_the_file(tmp_path: Path) -> None:
    for steps in (2, 4):
        with cluster(1, 1, "inproc", owned=False) as (server,):
            hooks = [dps.SummarySaver(steps=1), dps.StopAtStep(last_step=steps)]
            loop(server, 9, hooks, checkpoint_dir=tmp_path)
    lines = (tmp_path / "summaries.jsonl").read_text().splitlines()
    found = [(row["step"], row.get("event")) for row in map(json.loads, lines)]
    assert found == [(0, "started"), (1, None), (2, None), (2, "started"), (3, None), (4, None)]


def test_a_rollback_is_an_event_and_rows_go_on_from_there() -> None:
    def train(server: Any) -> None:
        hooks = [dps.SummarySaver("log", steps=1), dps.CheckpointSaver(steps=3), dps.StopAtStep(last_step=7)]
        loop(server, 99, hooks, checkpoint_dir="run")

    run, storage = simulated(train, ps=2, faults=[Kill("ps:0", at=5.5, restart_after=1.0)])
    assert not run.errors
    found = rows(storage)
    (at,) = [index for index, row in enumerate(found) if row.get("event") == "rolled back"]
    back = found[at]
    assert back["lost"] == found[at - 1]["step"] - back["step"] > 0
    assert [row["step"] for row in found[at + 1 :]] == list(range(back["step"] + 1, 8))


# -- disks --------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_line_when_it_begins_one_when_it_ends_and_training_goes_on(said: list[str]) -> None:
    run, storage = simulated(loop, 9, [dps.SummarySaver("log", steps=1)], faults=[DiskFull(at=3.5, seconds=3.0)])
    assert run.results == [9] and not run.errors
    steps = [row["step"] for row in rows(storage)[1:]]
    first = next(step for step in range(1, 10) if step not in steps)
    assert len(steps) == 6 and steps == [*range(1, first), *range(first + 3, 10)]
    told = [text for text in said if "summaries" in text]
    assert len(told) == 2
    assert f"worker:0: no summaries from step {first} on: cannot append to {FILE}: No space left" in told[0]
    assert told[1] == f"worker:0: summaries are written again from step {first + 3} on"


def test_a_directory_that_cannot_be_made_is_one_line_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with cluster(1, 1, "inproc") as (server,):
        assert loop(server, 4, [dps.SummarySaver(str(tmp_path / "file" / "log"), steps=1, tensorboard=True)]) == 4
    told = [text for text in caplog.messages if "no summaries" in text]
    assert len(told) == 1 and "choose another directory" in told[0] and "\n" not in told[0]


# -- TensorBoard --------------------------------------------------------------------------------------------------


def test_the_readers_checksum_is_that_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4 has others; this is the catalogued check value
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_event_files_hold_the_same_numbers_and_make_tensorboard_forget_what_was_undone(tmp_path: Path) -> None:
    with (
        cluster(1, 1, "inproc") as (server,),
        session(server, [dps.SummarySaver(str(tmp_path), steps=2, tensorboard=True)], checkpoint_dir=tmp_path) as s,
    ):
        name = ""
        for index in range(5):
            s.summary("eval/accuracy", 0.25 * index)
            s.push(ones(), loss=float(index))
            name = name or s.save()
        s.restore(name)
    (path,) = tmp_path.glob("events.out.tfevents.*.worker-0")
    version, started, *found, back = events(path)
    assert version.file_version == "brain.Event:2"
    assert (started.session_log.status, started.step) == (started.session_log.START, 0)
    assert (back.session_log.status, back.step) == (back.session_log.START, 1)
    values = [{v.tag: v.simple_value for v in event.summary.value} for event in found]
    assert [event.step for event in found] == [1, 3, 5]
    assert values[0] == {"loss": 0.0, "staleness": 0.0, "eval/accuracy": 0.0}
    assert [v["loss"] for v in values] == [0.0, 2.0, 4.0] and [v["eval/accuracy"] for v in values] == [0.0, 0.5, 1.0]
    assert all(v["steps_per_s"] > 0 for v in values[1:])
    json_rows = [json.loads(line) for line in (tmp_path / "summaries.jsonl").read_text().splitlines()]
    assert [event.wall_time for event in (started, *found, back)] == pytest.approx([r["wall_time"] for r in json_rows])


def test_without_tensorboardx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match=r"pip install 'dps\[tensorboard\]'"):
        dps.SummarySaver("log", tensorboard=True)
    with pytest.raises(ConfigError, match=r"dps\[tensorboard\]"):
        EventFile(MemoryStorage(), "log/events")
