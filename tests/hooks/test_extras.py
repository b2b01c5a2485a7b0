"""The hooks that TensorFlow's users look for: listeners of the saver, waiting, final values, and fed logs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.checkpoint.files import folder_name
from dps.errors import CheckpointError, ConfigError, HookError
from tests.hooks.loops import EXACT, loop, ones, session
from tests.in_process import cluster, on_all


class Listens(dps.CheckpointSaverListener):
    def __init__(self, name: str, notes: list[Any], stops: bool = False) -> None:
        self.name, self.notes, self._stops = name, notes, stops

    def begin(self) -> None:
        self.notes.append((self.name, "begin"))

    def before_save(self, session: Any, global_step_value: int) -> None:
        self.notes.append((self.name, "before", global_step_value))

    def after_save(self, session: Any, global_step_value: int) -> bool:
        self.notes.append((self.name, "after", global_step_value))
        return self._stops and global_step_value > 0

    def end(self, session: Any, global_step_value: int) -> None:
        self.notes.append((self.name, "end", global_step_value))


def test_listeners_hear_of_each_checkpoint_in_tensorflows_order(tmp_path: Path) -> None:
    notes: list[Any] = []
    saver = dps.CheckpointSaver(steps=2, listeners=[Listens("a", notes), Listens("b", notes)])
    with cluster() as (server,), session(server, [saver], checkpoint_dir=str(tmp_path)) as s:
        for _ in range(3):
            s.push(ones())
    saves = [(name, when, step) for step in (0, 2, 3) for when in ("before", "after") for name in "ab"]
    assert notes == [("a", "begin"), ("b", "begin"), *saves, ("a", "end", 3), ("b", "end", 3)]


def test_a_step_that_is_saved_already_is_not_told_again_at_the_end_or_after_a_rollback(tmp_path: Path) -> None:
    notes: list[Any] = []
    saver = dps.CheckpointSaver(steps=2, listeners=[Listens("a", notes)])
    with cluster() as (server,), session(server, [saver], checkpoint_dir=str(tmp_path)) as s:
        for _ in range(3):
            s.push(ones())
        s.restore(folder_name(2, 1))
    assert [note[1:] for note in notes[1:]] == [
        ("before", 0), ("after", 0), ("before", 2), ("after", 2), ("end", 2),
    ]  # fmt: skip


def test_a_listener_that_returns_true_ends_the_loop_when_all_have_heard(tmp_path: Path) -> None:
    notes: list[Any] = []
    saver = dps.CheckpointSaver(steps=3, listeners=[Listens("a", notes, stops=True), Listens("b", notes)])
    with cluster() as (server,):
        assert loop(server, 50, [saver], checkpoint_dir=str(tmp_path)) == 3
    assert notes[-3:] == [("b", "after", 3), ("a", "end", 3), ("b", "end", 3)]


def test_a_checkpoint_that_the_disk_refuses_is_not_told_as_saved(tmp_path: Path, monkeypatch: Any) -> None:
    notes: list[Any] = []

    def refused(self: Any, timeout: float | None = None) -> str:
        raise CheckpointError("the disk is full")

    with cluster() as (server,):
        monkeypatch.setattr(dps.Session, "save", refused)
        saver = dps.CheckpointSaver(listeners=[Listens("a", notes)])
        with session(server, [saver], checkpoint_dir=str(tmp_path)) as s:
            s.push(ones())
        monkeypatch.undo()
    assert [note[1] for note in notes] == ["begin", "before", "before", "end"]


def test_a_save_that_takes_too_long_is_not_told_as_failed(
    tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The chief goes on with it, and the log said that the step could not be saved."""

    def slow(self: Any, timeout: float | None = None) -> str:
        raise dps.DeadlineExceeded("the chief goes on with it")

    with cluster() as (server,):
        monkeypatch.setattr(dps.Session, "save", slow)
        with session(server, [dps.CheckpointSaver()], checkpoint_dir=str(tmp_path)) as s:
            s.push(ones())
        monkeypatch.undo()
    told = [text for text in caplog.messages if "saved" in text and "goes on" in text]
    assert told == [f"worker:0: step {step} is not saved yet: the chief goes on with it" for step in (0, 1)]


def test_final_ops_keep_what_the_function_returns_and_only_of_a_good_end() -> None:
    good, bad = dps.FinalOps(lambda s: s.pull()["a"].tolist()), dps.FinalOps(lambda s: s.global_step)
    with cluster() as (server,):
        loop(server, 3, [good])
        with pytest.raises(ValueError, match="a"), session(server, [bad]) as s:
            s.push({"a": np.ones(7)})
    assert good.final_ops_values == [-3.0, -3.0]
    assert bad.final_ops_values is None


def test_a_worker_that_waits_for_a_step_begins_with_the_values_of_then() -> None:
    def work(server: dps.Server) -> Any:
        waits = [dps.GlobalStepWaiter(5)] if server.task == 1 else []
        with session(server, waits) as s:
            first = s.pull()["a"][0], s.global_step
            for _ in range(8):
                s.push(ones())
            return first

    with cluster(workers=2) as servers:
        (_, _), (value, step) = on_all(servers, work)
    assert step >= 5 and value <= -5


def test_a_wait_for_a_step_lasts_as_long_as_training_goes_on_and_no_longer() -> None:
    def train(server: Any) -> Any:
        waits = [dps.GlobalStepWaiter(1000, timeout=5.0)] if server.task == 1 else []
        return loop(server, 20, waits)

    run = dps.simulate(train, workers=2, **EXACT)  # a step takes a second
    assert list(run.errors) == ["worker:1"]
    told = run.errors["worker:1"]
    assert "DeadlineExceeded: worker:1: hook GlobalStepWaiter.after_create_session: worker:1 waited 5 s: " in told
    assert "to reach step 1000, the global step is 20; " in told and "\n" not in told


def test_a_wait_of_no_steps_asks_nobody() -> None:
    with cluster() as (server,):
        assert loop(server, 2, [dps.GlobalStepWaiter(0)]) == 2


def test_metrics_are_asked_for_when_a_line_is_due_and_other_hooks_have_them(caplog: Any) -> None:
    asked: list[int] = []

    def metrics(s: dps.Session) -> dict[str, float]:
        asked.append(s.global_step)
        return {"norm": float(np.linalg.norm(s.pull()["a"]))}

    with caplog.at_level(logging.INFO, "dps"), cluster() as (server,):
        loop(server, 6, [dps.LogMetrics(steps=2, metrics=metrics, at_end=True)])
    assert asked == [1, 3, 5, 6]
    lines = [record.getMessage() for record in caplog.records if "norm" in record.getMessage()]
    assert [line.split(", ")[2] for line in lines] == ["norm 1.414", "norm 4.243", "norm 7.071", "norm 8.485"]


def test_metrics_are_fed_by_seconds_too() -> None:
    asked: list[int] = []

    def train(server: Any) -> Any:
        def metrics(s: dps.Session) -> dict[str, float]:
            asked.append(s.global_step)
            return {}

        return loop(server, 9, [dps.LogMetrics(seconds=3.0, metrics=metrics)])

    dps.simulate(train, workers=1, **EXACT)
    assert asked == [1, 4, 7]


def test_a_line_that_the_last_step_has_already_is_not_written_twice_at_the_end(caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "dps"), cluster() as (server,):
        loop(server, 3, [dps.LogMetrics(steps=2, at_end=True)])
    assert sum("staleness" in record.getMessage() for record in caplog.records) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dps.CheckpointSaver(listeners=[Listens]), "got the class Listens in listeners, wanted an instance"),  # type: ignore[list-item]
        (lambda: dps.CheckpointSaver(listeners=3), "got 3 in listeners, wanted an instance"),  # type: ignore[arg-type]
        (lambda: dps.FinalOps(3), "FinalOps: got 3, wanted a function of the session"),  # type: ignore[arg-type]
        (lambda: dps.GlobalStepWaiter(-1), "wait_until_step=-1, wanted a whole number from 0"),
        (lambda: dps.GlobalStepWaiter(True), "wait_until_step=True"),
        (lambda: dps.GlobalStepWaiter(3, timeout=0), "GlobalStepWaiter: got timeout=0, wanted seconds above 0"),
        (lambda: dps.GlobalStepWaiter(3, timeout="9"), "got timeout='9', wanted seconds"),  # type: ignore[arg-type]
        (lambda: dps.LogMetrics(metrics={"a": 1}), "got metrics={'a': 1}, wanted a function of the session"),  # type: ignore[arg-type]
        (lambda: dps.Profiler(length=0), "Profiler: got length=0, wanted the pushes of one trace"),
        (lambda: dps.Profiler(steps=1, seconds=1), "Profiler: got steps=1 and seconds=1, wanted one of them"),
    ],
)
def test_arguments_that_do_not_fit_are_told_in_one_line(make: Any, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        make()
    assert words in str(told.value) and "\n" not in str(told.value)


def test_metrics_that_are_no_numbers_by_name_end_the_session_with_one_line() -> None:
    with cluster() as (server,):
        with pytest.raises(ConfigError, match=r"hook LogMetrics.after_run: LogMetrics: metrics returned 3, wanted"):
            loop(server, 1, [dps.LogMetrics(metrics=lambda s: 3)])  # type: ignore[arg-type, return-value]
        with pytest.raises(HookError, match=r"hook FinalOps.end raised ZeroDivisionError: division by zero"):
            loop(server, 1, [dps.FinalOps(lambda s: 1 / 0)])
