"""Hooks that a second session uses begin anew: nothing of the first one is left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dps
from tests.hooks.events import events
from tests.hooks.loops import loop, ones, session
from tests.in_process import cluster


def run(pushes: int, hooks: Sequence[dps.Hook], name: str = "a", fails: bool = False, **more: Any) -> None:
    """A run of its own: its pushes report the scalar "index", under a name."""
    with cluster(1, 1, "inproc") as (server,), session(server, hooks, **more) as s:
        for index in range(pushes):
            s.summary(name, index)
            s.push(ones(), loss=0.5)
        if fails:
            raise KeyError("the program's")


def steps_of(path: Path) -> list[int]:
    rows = map(json.loads, path.read_text().splitlines())
    return [row["step"] for row in rows if "event" not in row]


def test_rows_lines_and_rates_of_a_second_run_come_from_its_first_push_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counter = dps.StepCounter(steps=2)
    hooks = [dps.SummarySaver(str(tmp_path), steps=4), dps.LogMetrics(steps=4, at_end=True), counter]
    caplog.set_level("INFO", "dps")
    run(8, hooks)
    assert counter.steps_per_s is not None
    caplog.clear()
    run(1, hooks, "b")
    assert counter.steps_per_s is None
    assert steps_of(tmp_path / "summaries.jsonl") == [1, 5, 1]
    assert any(text == "worker:0: step 1, loss 0.5000, b 0, staleness 0" for text in caplog.messages)
    assert json.loads((tmp_path / "summaries.jsonl").read_text().splitlines()[-1])["b"] == 0.0


def test_the_line_of_the_end_is_not_one_of_a_run_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dps")
    hooks = [dps.LogMetrics(steps=4, at_end=True)]
    with pytest.raises(KeyError):
        run(3, hooks, fails=True)
    caplog.clear()
    run(0, hooks)
    assert not any("step 3" in text for text in caplog.messages)


def test_examples_of_a_run_before_are_not_counted(tmp_path: Path) -> None:
    saver = dps.SummarySaver(str(tmp_path), steps=2, batch=10)
    run(2, [saver])  # one push that no row has
    run(3, [saver])
    last = json.loads((tmp_path / "summaries.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 3 and last["examples_per_s"] == pytest.approx(10 * last["steps_per_s"])


def test_final_values_of_a_run_before_are_gone_where_the_next_one_fails() -> None:
    final = dps.FinalOps(lambda s: s.global_step)
    run(2, [final])
    assert final.final_ops_values == 2
    with pytest.raises(KeyError):
        run(1, [final], fails=True)
    assert final.final_ops_values is None


class Heard(dps.CheckpointSaverListener):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def before_save(self, session: Any, global_step_value: int) -> None:
        self.steps.append(global_step_value)


def test_listeners_hear_of_the_first_checkpoint_of_a_second_run(tmp_path: Path) -> None:
    heard = Heard()
    hooks = [dps.CheckpointSaver(steps=100, listeners=[heard])]
    run(0, hooks, checkpoint_dir=str(tmp_path / "one"))
    run(0, hooks, checkpoint_dir=str(tmp_path / "other"))
    assert heard.steps == [0, 0]


def test_traces_of_a_second_run_are_in_its_own_folder(tmp_path: Path) -> None:
    profiler = dps.Profiler(length=1)
    for name in ("one", "other"):
        run(1, [profiler], checkpoint_dir=str(tmp_path / name))
        assert (tmp_path / name / "timeline-1-worker-0.json").exists()


def test_a_trace_that_an_error_cut_short_does_not_go_on_in_the_next_loop_of_the_session(tmp_path: Path) -> None:
    profiler = dps.Profiler(str(tmp_path), length=5)
    with cluster(1, 1, "inproc") as (server,), session(server) as s:
        push = s.push
        for _ in range(2):  # as `fit` begins hooks on a session that is open already
            profiler.begin()
            profiler.after_create_session(s)
        profiler.end(s)
        assert s.push == push


def test_gradient_norms_are_counted_once_however_often_a_sessions_hook_is_begun(tmp_path: Path) -> None:
    saver = dps.SummarySaver(str(tmp_path), steps=1, tensorboard=True)
    with cluster(1, 1, "inproc") as (server,), session(server) as s:
        for _ in range(3):
            saver.begin()
            saver.after_create_session(s)
        saver.after_run(s, s.push(ones()), 0.5)
    (file,) = tmp_path.glob("events.*")
    values = [value for event in events(file) for value in event.summary.value]
    assert [value.histo.num for value in values if value.tag == "pushes/gradient_norm"] == [1]


def test_a_step_to_stop_at_is_that_of_the_first_session() -> None:
    stop = dps.StopAtStep(num_steps=3)
    with cluster(1, 1, "inproc") as (server,):
        assert loop(server, 5, [stop]) == 3
    with cluster(1, 1, "inproc") as (server,):
        assert loop(server, 5, [stop]) == 3
