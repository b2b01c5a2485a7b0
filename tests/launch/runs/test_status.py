"""`dps status`, and which run `status`, `logs` and `monitor` mean without a number."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps import cli
from dps.actors.standing import TrainingProgress
from dps.launch.runs import folder, keeper, status
from dps.launch.runs.states import States
from dps.launch.supervision.plan import small_plan
from dps.transport.clock import wall
from tests.launch.clusters.test_local_processes import until

OLD, LONG = "1", "2"


def run(root: Path, name: str, chief: str = "", code: int | None = None) -> str:
    """A run that goes on, kept by this process; or one that is over, with an exit code. Returns its number."""
    path = folder.create(str(root))
    plan = small_plan(1, 2, ("train.py",))
    keeper.prepare_run(path, plan, {"name": name, "command": "", "values": {}})
    states = States(plan.tasks(), wall())
    states.begin_run(wall())
    states.record_listening(chief, wall())
    if code is not None:
        states.finish_run(code, "", wall())
    file = os.path.join(path, "state.json")
    folder.write(file, folder.read(file) | states.values)
    (Path(path) / "logs" / "worker.0.log").write_text("2026-01-01T00:00:00.000Z begins\n")
    return os.path.basename(path)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(status, "DEFAULT_CHIEF", "127.0.0.1:9")
    monkeypatch.setattr("dps.launch.commands.operating.ANSWER_S", 0.05)
    monkeypatch.setattr(status, "ANSWER_S", 0.05)
    monkeypatch.setattr("dps.launch.runs.monitor.ANSWER_S", 0.05)
    return tmp_path / "runs"


def say(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    """What a command prints, on stdout or as its error."""
    assert cli.main(argv) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_without_a_number_the_only_run_that_goes_on_is_meant(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(runs, "old", code=0)
    run(runs, "long", "127.0.0.1:9")
    assert say(capsys, "status").startswith("run 2 long: RUNNING")
    assert "[2.worker.0] begins" in say(capsys, "logs")
    assert say(capsys, "monitor").startswith("run 2 long: RUNNING")


def test_without_a_number_several_runs_that_go_on_are_listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(runs, "old", code=0)
    run(runs, "long", "127.0.0.1:9")
    run(runs, "wide", "127.0.0.1:9")
    *_, long, wide, hint = say(capsys, "status").splitlines()
    assert long.split()[:3] == ["2", "long", "RUNNING"] and wide.split()[:3] == ["3", "wide", "RUNNING"]
    assert hint == "2 runs go on; dps status 3 shows one"
    for command in ("logs", "monitor"):
        told = say(capsys, command, code=2)
        assert told == f"dps: 2 runs go on: 2 (long), 3 (wide); say which: dps {command} 3\n"


def test_without_a_number_and_a_run_that_goes_on_the_newest_is_named(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(capsys, "logs", code=2).startswith(f"dps: no runs in {runs}; dps launch makes one")
    run(runs, "old", code=0)
    assert say(capsys, "logs", code=2) == "dps: no run goes on; the newest is 1 (old, SUCCEEDED): dps logs 1\n"
    told = say(capsys, "status", code=4)
    assert told.startswith("dps: no run of dps launch goes on here, and no chief answered at 127.0.0.1:9")


def test_a_run_of_a_grid_that_waits_for_its_turn_does_not_go_on(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(runs, "first", "127.0.0.1:9")
    keeper.prepare_run(folder.create(str(runs)), small_plan(1, 1, ("train.py",)), {"name": "second"})
    assert say(capsys, "status").startswith("run 1 first: RUNNING")


def test_status_shows_step_loss_rates_and_the_last_checkpoint(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "ANSWER_S", 20.0)
    monkeypatch.setattr("dps.worker.agent.BEAT_S", 0.05)
    hooks = [dps.LogMetrics(10**9, batch=32)]
    with (
        dps.Server.create_local_server() as server,
        dps.Session(
            server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(1.0), hooks=hooks, checkpoint_dir=str(tmp_path / "c")
        ) as session,
    ):
        run(runs, "long", server.target)
        for loss in (3.0, 2.0, 0.25):
            session.push({"w": np.ones(3)}, loss=loss)
        session.save()

        def told() -> dict[str, Any] | None:
            found: dict[str, Any] = json.loads(say(capsys, "status", "--json"))["training"]
            return found if found["loss"] == 0.25 and found["examples_per_s"] else None

        found = until(told)
        assert (found["step"], found["phase"], found["saved"]) == (3, "training", "step-000000000003-epoch-000001")
        assert found["examples_per_s"] == pytest.approx(32 * found["pushes_per_s"])
        text = say(capsys, "status")
        assert "\ntraining: step 3, loss 0.25, " in text and " examples/s\n" in text
        assert "\nlast checkpoint: step-000000000003-epoch-000001, saved " in text
        assert "training: step 3, loss 0.25, " in say(capsys, "status", server.target)


def test_status_says_why_it_does_not_know_how_far_a_run_is(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(runs, "long", "127.0.0.1:9")
    assert "training: not known: no chief answered at 127.0.0.1:9" in say(capsys, "status", "1")


def test_the_training_of_a_run_is_that_of_all_workers_together() -> None:
    chief = {
        "phase": "training", "text": "training", "saved": "", "saved_ago": "",
        "batches": {"worker:0": 8, "worker:1": 4},
        "progress": {"worker:0": [7, 2.0, 1.0], "worker:1": [8, 1.0, 2.0]},
    }  # fmt: skip
    found = status.training_of(chief, {"0": {"step": 9}})
    assert (
        status.training_line(found) == "step 9, loss 1.5, 3.0 pushes/s, 20 examples/s"
        and status.checkpoint_text(found) == "none"
    )
    chief |= {"batches": {"worker:0": 8}, "phase": "waiting for a session", "text": "waits for ps:1"}
    assert status.training_line(status.training_of(chief, {})) == "waits for ps:1, step 8, loss 1.5, 3.0 pushes/s"
    chief["progress"] = {"worker:0": [7, 2.0, float("nan")]}
    found = status.training_of(chief, {})
    assert found["loss"] == "nan" and "loss nan" in status.training_line(found)
    chief["progress"] = {}
    assert status.training_line(status.training_of(chief, {})) == "waits for ps:1"


def test_the_rate_of_a_worker_is_that_between_its_last_pushes_and_falls_while_there_is_none() -> None:
    progress = TrainingProgress()
    assert progress.report_progress(0.0) == []
    for number in range(5):
        progress.record_push(number, 1.0, 10.0 + 0.5 * number)
    assert progress.report_progress(12.5) == [4, 2.0, 1.0]
    progress.record_push(5, None, 16.0)
    assert progress.report_progress(16.0) == [5, 0.25, 1.0], "one push in 4 s"
    assert progress.report_progress(17.0)[1] == 0.25 and progress.report_progress(36.0)[1] == 0.05


def test_a_run_that_has_ended_is_not_traced_and_says_so_in_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(runs, "old", code=0)
    told = say(capsys, "trace", "1", code=2)
    assert told == "dps: run 1 has ended (SUCCEEDED); only a run that goes on can be traced: dps list\n"
    assert "no run goes on; the newest is 1 (old, SUCCEEDED): dps trace 1" in say(capsys, "trace", code=2)


def test_the_times_of_workers_and_who_is_slow_are_a_part_of_the_training() -> None:
    chief = {"progress": {}, "batches": {}, "phase": "training", "text": "", "saved": "", "saved_ago": "", "away": {}}
    usual, slow = [[1, 0.1, 0.1, 0.1, 0.9]] * 20, [[1, 0.1, 1.0, 0.1, 0.0]] * 20
    sessions = {f"worker:{task}": {"times": {"steps": 20, "recent": usual}} for task in (0, 1)}
    sessions["worker:2"] = {"times": {"steps": 20, "recent": slow}}
    ps = {
        "0": {"step": 20, "update": {"mode": "sync"}, "sessions": sessions, "standstill": {}},
        "1": {"state": "filling"},
    }
    found = status.training_of(chief, ps)
    assert found["update"] == "sync" and found["workers"]["worker:2"] == sessions["worker:2"]["times"]
    assert found["waits"] is None and found["why"] == (
        "worker 2 is 4.0 times slower than the median, 83 % of it computing; without it 4.0 times more steps/s"
    )
    waits = {"who": ["worker:0"], "for": ["worker:2"], "since_s": 1.9, "until_s": 9.0}
    ps["0"]["standstill"] = waits
    assert status.training_of(chief, ps)["waits"] is None
    ps["0"]["standstill"] = waits | {"since_s": 5.0}
    found = status.training_of(chief, ps)
    assert found["waits"] == waits | {"since_s": 5.0}
    assert found["why"] == "worker 0 waits for worker 2, for 5 s so far, and gives up in 9 s"
    chief["away"] = {"ps:1": [3.0, 47.0]}
    assert status.training_of(chief, ps)["why"] == "the chief waits for ps 1, for 3 s so far, and gives up in 47 s"


def test_the_rows_of_keyed_tables_are_added_over_the_ps() -> None:
    counts = {"counted": 5, "admitted": 1400, "dropped": 30, "expired": 0, "refused": 1}
    user = {"rows": 1200, "most": 5000, "nbytes": 900_000, **counts}
    item = {"rows": 7, "most": 9, "nbytes": 1, **dict.fromkeys(counts, 0)}
    ps = {
        "ps:0": {"tables": {"user": user, "item": item}},
        "ps:1": {"tables": {"user": {**user, "rows": 1100}}},
        "ps:2": {},
    }
    told = "1.8 MB, 10 keys counted, 2,800 keys admitted, 60 gradients dropped, 2 pushes refused"
    assert status.tables_text(ps) == f"user 2,300 rows (1,100 to 1,200 on a ps), {told}; item 7 rows, 0.0 MB"
    assert status.tables_text({"ps:0": {"step": 3}}) == ""
