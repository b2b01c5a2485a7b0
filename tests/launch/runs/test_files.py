"""The files of runs: numbers, atomic replacement, logs that rotate, and what others read of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dps import cli
from dps.errors import ConfigError
from dps.launch.runs import folder, keeper, keeping, logs, table, times
from dps.launch.runs.identity import identity, is_alive
from dps.launch.runs.logs import Log, Reader, task_name
from dps.launch.runs.results import FoundMetric, newest, parse_metric, report, rows
from dps.launch.runs.states import States
from dps.launch.runs.view import SILENT_S, read_run
from dps.launch.supervision.plan import small_plan
from dps.transport.clock import wall


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a run that its maker, this process, keeps."""
    monkeypatch.setenv("DPS_RUNS", str(tmp_path / "runs"))
    path = folder.create(folder.root())
    keeper.prepare_run(
        path, small_plan(1, 2, ("train.py",)), {"name": "example", "command": "dps launch", "values": {}}
    )
    return path


def rewrite(path: str, **values: Any) -> None:
    file = os.path.join(path, "state.json")
    folder.write(file, folder.read(file) | values)


def test_the_folder_of_runs_is_dps_runs_else_in_the_users_state_folder() -> None:
    assert folder.root({"DPS_RUNS": "/a"}) == "/a"
    assert folder.root({"XDG_STATE_HOME": "/b"}) == "/b/dps/runs"
    assert folder.root({}) == os.path.expanduser("~/.local/state/dps/runs")


def test_runs_that_are_made_at_one_time_have_numbers_of_their_own(tmp_path: Path) -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(folder.create(str(tmp_path)))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(os.path.basename(path)) for path in made) == list(range(1, 21)) == folder.numbers(str(tmp_path))


def test_a_run_that_is_not_there_is_named_with_the_newest(run: str) -> None:
    assert folder.find("1") == run
    for wrong in ("2", "x", ".."):
        with pytest.raises(ConfigError, match="the newest is 1"):
            folder.find(wrong)


def test_a_folder_in_which_nothing_can_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DPS_RUNS", str(tmp_path / "file" / "runs"))
    assert cli.main(["launch", __file__]) == 2
    assert "set DPS_RUNS to another folder" in capsys.readouterr().err


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    file = str(tmp_path / "state.json")
    folder.write(file, {"n": -1})
    over = threading.Event()

    def write() -> None:
        for n in range(300):
            folder.write(file, {"n": n, "long": "x" * 5000})
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = [folder.read(file)["n"]]
    while not over.is_set():
        seen.append(folder.read(file)["n"])
    writer.join()
    assert seen == sorted(seen) and os.listdir(tmp_path) == ["state.json"]


# -- who keeps a run ---------------------------------------------------------------------------------------------------


def test_a_process_is_known_by_its_pid_its_start_and_its_machine() -> None:
    own = identity()
    assert is_alive(own) is True
    assert is_alive(own | {"start": "1"}) is False  # another process has its pid
    assert is_alive(own | {"boot": "before"}) is False  # this machine has booted since
    assert is_alive(own | {"boot": "other", "host": "elsewhere"}) is None
    assert is_alive(own | {"space": "pid:[1]"}) is None  # a container
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert is_alive(identity(ended.pid)) is False


def test_a_run_is_lost_when_its_keeper_is_gone_or_was_silent_for_30_s(run: str) -> None:
    now = wall()
    assert read_run(run, now).state == "CREATED"
    folder.replace(os.path.join(run, "heartbeat"), times.utc(now))
    assert read_run(run, now + SILENT_S - 1).state == "CREATED"
    lost = read_run(run, now + SILENT_S + 1)
    assert lost.state == "LOST" and lost.tasks["worker:0"]["state"] == "LOST"
    assert lost.values["reason"] == "its keeper has gone; it was last heard of 31 s ago"
    rewrite(run, keeper=identity() | {"start": "1"})
    assert read_run(run, now).state == "LOST"
    rewrite(run, keeper=identity() | {"host": "elsewhere", "boot": "other"})
    assert read_run(run, now).state == "CREATED"  # only the heartbeat tells
    assert read_run(run, now + 40).state == "LOST"


def test_a_keeper_that_was_ended_by_an_order_has_killed_its_run(run: str) -> None:
    folder.write(os.path.join(run, "orders", "kill-here-1.json"), {"order": "kill", "grace_s": 1})
    rewrite(run, keeper=identity() | {"start": "1"})
    assert read_run(run, wall()).state == "KILLED"


def test_a_run_that_is_over_stays_what_it_is(run: str) -> None:
    rewrite(run, state="SUCCEEDED", keeper=identity() | {"start": "1"})
    assert read_run(run, wall() + 1000).state == "SUCCEEDED"


def test_a_folder_without_a_state_is_created_and_after_a_while_lost(tmp_path: Path) -> None:
    path = folder.create(str(tmp_path))
    assert read_run(path, wall()).state == "CREATED" and read_run(path, wall() + 31).state == "LOST"


def test_a_disk_that_is_full_ends_no_run_and_is_told_once(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    told: list[str] = []
    kept = keeper.Keeper(run, lambda name, text: told.append(f"{name} {text}"))
    monkeypatch.setattr(folder, "write", full)
    monkeypatch.setattr(Log, "write", full)
    kept.started(SimpleNamespace(name="worker:0", pid=os.getpid(), host=""))  # type: ignore[arg-type]
    kept._take_line("worker:0", "hello")
    kept.ended("worker:0", 0)
    assert kept.states.values["tasks"]["worker:0"]["state"] == "SUCCEEDED"
    assert told == [f"dps {run} cannot be written: No space left on device; the run goes on", "worker:0 hello"]
    kept._files.write_last_state(kept.states.values)
    assert told[2:] == [
        f"dps {run}/state.json cannot be written: No space left on device; the run is over and will read LOST"
    ]


# -- logs --------------------------------------------------------------------------------------------------------------


def entries(reader: Reader) -> list[str]:
    return [f"{entry.task} {entry.text}" for entry in reader.read_new()]


def test_lines_of_several_tasks_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    first, second = Log(str(tmp_path), "worker:0"), Log(str(tmp_path), "ps:0")
    for at, (log, text) in enumerate([(first, "a"), (second, "b"), (first, "c"), (first, ""), (second, "d e")]):
        log.write(1000.0 + at, text)
    second.close()
    reader = Reader(str(tmp_path))
    assert entries(reader) == ["worker:0 a", "ps:0 b", "worker:0 c", "worker:0 ", "ps:0 d e"]
    first.write(1010.0, "later")
    first.close()
    assert entries(reader) == ["worker:0 later"] and entries(reader) == []
    assert entries(Reader(str(tmp_path), ["ps:0"])) == ["ps:0 b", "ps:0 d e"]
    assert entries(Reader(str(tmp_path), None, times.utc(1004.0))) == ["ps:0 d e", "worker:0 later"]


def test_a_log_rotates_and_a_reader_misses_and_doubles_nothing(tmp_path: Path) -> None:
    log, reader, seen = Log(str(tmp_path), "worker:0", largest=200), Reader(str(tmp_path)), list[str]()
    for n in range(40):
        log.write(1000.0 + n, f"line {n}")
        if n % 7 == 0:
            seen += entries(reader)
    log.close()
    seen += entries(reader)
    assert seen == [f"worker:0 line {n}" for n in range(40)]
    files = sorted(os.listdir(tmp_path))
    assert files == ["worker.0.log", *(f"worker.0.log.{n}" for n in range(1, logs.KEPT + 1))]
    assert all(os.path.getsize(tmp_path / file) <= 200 for file in files)


def test_a_line_that_is_being_written_comes_when_it_is_whole(tmp_path: Path) -> None:
    path, reader = tmp_path / "ps.0.log", Reader(str(tmp_path))
    path.write_text(f"{times.utc(1.0)} who")
    assert entries(reader) == []
    with path.open("a") as file:
        file.write("le\n")
    assert entries(reader) == ["ps:0 whole"]


def test_a_task_is_written_with_a_colon_or_a_dot() -> None:
    assert [task_name(text) for text in ("worker.1", "worker:1", "chief")] == ["worker:1", "worker:1", "chief"]


def test_times_for_people() -> None:
    assert times.utc(0.0015) == "1970-01-01T00:00:00.001Z" and times.seconds(times.utc(12.5)) == 12.5
    assert [times.age(s) for s in (3.9, 59, 61, 3700, 90000)] == ["3 s", "59 s", "1 min", "1 h 1 min", "1 d 1 h"]
    assert times.since("10m", 1000.0) == 400.0 and times.since("1970-01-01T00:00:05Z", 0.0) == 5.0
    assert times.since("99999999999d", 1000.0) == 0.0
    with pytest.raises(ConfigError, match="wanted a duration"):
        times.since("soon", 0.0)


# -- runs that are over ------------------------------------------------------------------------------------------------


def ended_run(root: str, days_ago: float, output: str = "", state: str = "SUCCEEDED") -> str:
    """A run that ended so many days ago."""
    path = folder.create(root)
    at = wall() - 86400 * days_ago
    values = States(["worker:0"], at).values | {"state": state, "since": times.utc(at)}
    folder.write(os.path.join(path, "run.json"), {"name": "old", "output": output or os.path.join(path, "output")})
    folder.write(os.path.join(path, "state.json"), values | {"keeper": identity() | {"start": "1"}})
    return path


def test_prune_removes_old_runs_and_never_one_that_goes_on(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = os.path.dirname(run)
    old, gone_on_from, newer = ended_run(root, 40), ended_run(root, 35), ended_run(root, 3)
    Path(old, "logs", "worker.0.log").write_text("x" * 2_000_000)
    ended_run(root, 2, output=os.path.join(gone_on_from, "output"))
    assert cli.main(["prune", "--older-than", "30d", "--dry-run"]) == 0
    (line, total) = capsys.readouterr().out.splitlines()
    assert line.startswith("would remove run 2 (old, SUCCEEDED, ended ") and line.endswith("): 2.0 MB")
    assert total == f"would remove 1 run, 2.0 MB, from {root}" and os.path.isdir(old)
    assert cli.main(["prune", "--older-than", "30d", "--keep", "4"]) == 0 and folder.numbers(root) == [1, 2, 3, 4, 5]
    assert cli.main(["prune", "--older-than", "30d"]) == 0
    assert folder.numbers(root) == [1, 3, 4, 5]
    assert cli.main(["prune", "--keep", "0", "--json"]) == 0
    (*_, told) = capsys.readouterr().out.partition("[")
    assert '"id": "5"' in told and os.listdir(root).count("5") == 0 and not os.path.exists(newer)
    assert folder.numbers(root) == [1], "it is CREATED, and this process keeps it"
    assert os.path.basename(folder.create(root)) == "6", "no number is used twice"


def test_prune_leaves_a_lost_run_whose_keeper_may_come_back(run: str) -> None:
    root = os.path.dirname(run)
    lost = ended_run(root, 1, state="RUNNING")
    rewrite(lost, keeper=identity() | {"host": "elsewhere", "boot": "other"})
    for silent_s, left in ((600.0, [1, 2]), (4000.0, [1])):
        folder.replace(os.path.join(lost, "heartbeat"), times.utc(wall() - silent_s))
        assert read_run(lost, wall()).state == "LOST" and cli.main(["prune", "--keep", "0"]) == 0
        assert folder.numbers(root) == left


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "wanted which runs: --older-than 30d, --keep 10, or both"),
        (["--older-than", "old"], "got --older-than 'old'; wanted a duration"),
        (["--keep", "-1"], "got --keep -1; wanted a number from 0"),
    ],
)
def test_prune_wants_to_know_which_runs(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prune", *argv]) == 2
    assert words in capsys.readouterr().err


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_table_is_as_wide_as_it_needs_to_be() -> None:
    made = table.text(("id", "name"), [{"id": 1, "name": "long name"}, {"id": 20, "name": None}, {"id": 0.123456}])
    assert made.splitlines() == ["ID      NAME", "1       long name", "20      -", "0.1235  -"]


def test_the_results_of_several_runs_are_sorted_by_a_metric(tmp_path: Path) -> None:
    paths = []
    for rate, lines in (("0.1", ["loss 2.0", "my_loss 9", "loss: 0.5"]), ("0.2", ["step 3, loss=1e-2"]), ("0.3", [])):
        path = folder.create(str(tmp_path))
        paths.append(path)
        keeper.prepare_run(
            path, small_plan(1, 1, ("train.py",)), {"name": "x", "command": "", "values": {"rate": rate}}
        )
        states = States(["worker:0"], 1000.0)
        states.begin_run(1000.0)
        states.finish_run(0, "", 1100.0)
        rewrite(path, **states.values)
        log = Log(os.path.join(path, "logs"), "worker:0")
        for line in lines:
            log.write(1001.0, line)
        log.close()
    assert [newest(path, "loss") for path in paths] == [
        FoundMetric(0.5, "worker:0", None), FoundMetric(0.01, "worker:0", 3), None
    ]  # fmt: skip
    assert [row["rate"] for row in rows(paths, "loss")] == ["0.2", "0.1", "0.3"]
    assert [row["rate"] for row in rows(paths, "loss:max")] == ["0.1", "0.2", "0.3"]
    assert rows(paths, None)[0] == {"id": "1", "rate": "0.1", "state": "SUCCEEDED", "exit code": 0, "took": "1 min"}
    assert parse_metric("accuracy:max") == ("accuracy", True)
    (best, *_) = rows(paths, "loss")
    assert (best["loss"], best["loss of"], best["loss at step"]) == (0.01, "worker:0", 3)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        # worker:1 is behind, and prints last
        ([("worker:0", "step 100 loss 0.1"), ("worker:1", "step 90 loss 0.2")], (0.1, "worker:0", 100)),
        ([("worker:0", "step 100 loss 0.1"), ("worker:1", "step 100 loss 0.2")], (0.2, "worker:1", 100)),
        ([("worker:0", "step 90, loss 0.3"), ("worker:0", "loss 0.1"), ("worker:1", "step 80, loss 0.2")],
         (0.1, "worker:0", 90)),
        ([("worker:0", "step=9 loss=3"), ("evaluator:0", "loss 2"), ("worker:1", "loss 1")], (3.0, "worker:0", 9)),
        ([("worker:0", "loss 3"), ("worker:1", "loss 2")], (2.0, "worker:1", None)),
        # a rollback: what was printed before it counts until the run is as far again
        ([("worker:0", "step 60 loss 1"), ("worker:0", "step 40 loss 2")], (1.0, "worker:0", 60)),
        ([("worker:0", "step 60 loss 1"), ("worker:0", "step 60 loss 2"), ("worker:0", "loss 3")],
         (3.0, "worker:0", 60)),
        ([("worker:0", "global_step: 1,200 loss 1"), ("worker:0", "Step 300/400 Loss 2.")], (1.0, "worker:0", 1200)),
        ([("worker:0", "12.5 steps/s, loss 1"), ("worker:0", "one step, loss 2")], (2.0, "worker:0", None)),
        ([("worker:0", "step 1 loss \x1b[31m0.5\x1b[0m"), ("dps", "step 9 loss 7")], (0.5, "worker:0", 1)),
        ([("worker:0", "step 1 my_loss 9, losses 3, loss none")], None),
    ],
)  # fmt: skip
def test_the_metric_of_a_run_is_that_of_its_highest_step(
    lines: list[tuple[str, str]], found: tuple[float, str, int | None] | None, run: str
) -> None:
    written = {name: Log(os.path.join(run, "logs"), name) for name in {name for name, _ in lines}}
    for at, (name, text) in enumerate(lines):
        written[name].write(1000.0 + at, text)
    for log in written.values():
        log.close()
    assert newest(run, "loss") == (None if found is None else FoundMetric(*found))


def test_a_run_that_diverged_is_shown_and_comes_after_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for last in ("nan", "inf", "0.5", ""):
        path = folder.create(str(tmp_path))
        paths.append(path)
        keeper.prepare_run(path, small_plan(), {"name": "x", "command": "", "values": {}})
        log = Log(os.path.join(path, "logs"), "worker:0")
        log.write(1.0, "step 1 loss 0.1" if last else "nothing")
        log.write(2.0, f"step 2 loss {last}")
        log.close()
    assert [row["id"] for row in rows(paths, "loss")] == ["3", "2", "1", "4"]
    report(paths, "loss", True)
    told = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"JSON has no {name}"))
    assert [row["loss"] for row in told] == [0.5, "inf", "nan", None]
    assert told[0] | {"took": ""} == {
        "id": "3", "state": "CREATED", "exit code": None, "took": "", "loss": 0.5, "loss of": "worker:0",
        "loss at step": 2,
    }  # fmt: skip


def test_the_commands_name_what_is_not_there(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in (
        (["logs", "1", "--task", "worker.7"], "run 1 has no task 'worker:7'; it has chief, ps:0, worker:0, worker:1"),
        (["logs", "9"], "no run '9'"),
        (["status", "9"], "no run '9'"),
        (["monitor", "9"], "no run '9'"),
        (["trace", "9"], "no run '9'"),
        (["trace", "1"], "run 1 has no chief yet (CREATED); try again when it runs"),
        (["trace", "1", "--steps", "0"], "got 0 steps for a trace, wanted a whole number from 1"),
        (["kill", "1", "9"], "no run '9'"),
        (["kill", "1", "--grace", "-1"], "wanted seconds from 0"),
        (["launch", "--resume", "9"], "no run '9'"),
        (["launch", "--resume", "1"], "run 1 goes on: it is CREATED; dps kill 1 ends it"),
        (["launch", "--resume", "1", "x.py"], "got --resume and a program"),
        (["launch", "--set", "a=1", __file__], "--set is for experiment files"),
    ):
        assert cli.main(argv) == 2
        told = capsys.readouterr().err
        assert told.startswith("dps: ") and told.count("\n") == 1 and words in told, argv


def test_list_and_status_as_json(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert cli.main(["status", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == listed | {"training": {}, "ps": {}}
    assert listed["id"] == "1" and listed["state"] == "CREATED" and listed["tasks"]["worker:1"]["state"] == "CREATED"


def test_a_run_in_the_background_may_wait_for_its_machines(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "UP_S", 0.05)
    monkeypatch.setattr(keeping.subprocess, "Popen", lambda *_, **__: SimpleNamespace(poll=lambda: None))
    rewrite(run, state="PENDING")
    assert keeping.detach_runs([run], 1).state == "PENDING"
