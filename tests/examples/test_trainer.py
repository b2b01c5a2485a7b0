"""The document's trainer: four terminals, the same commands again, and everything by one command."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.examples.processes import EXAMPLES, Terminals, free_addresses

TRAINER = str(EXAMPLES / "trainer.py")
FOUR = ("ps:0", "ps:1", "worker:0", "worker:1")
ALL_DONE = dict.fromkeys(FOUR, 0)


def four_terminals(folder: Path, hosts: list[str], last_step: int) -> tuple[dict[str, int], dict[str, str]]:
    """The document's four commands; exit codes and outputs when all have ended."""
    flags = [f"--ps_hosts={hosts[0]},{hosts[1]}", f"--worker_hosts={hosts[2]},{hosts[3]}"]
    with Terminals(folder) as terminals:
        for name in FOUR:
            job, _, task = name.partition(":")
            own = [f"--job_name={job}", f"--task_index={task}", f"--last_step={last_step}"]
            terminals.start(name, TRAINER, *flags, *own)
        return terminals.ended()


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1])


def test_four_terminals_stop_at_the_last_step_and_the_same_commands_go_on_from_there(tmp_path: Path) -> None:
    hosts = free_addresses(4)
    codes, said = four_terminals(tmp_path, hosts, 40)
    assert codes == ALL_DONE, said
    first_end = max(number(r"done at step (\d+)", said[w]) for w in ("worker:0", "worker:1"))
    assert 40 <= first_end <= 41  # one worker's push may be on its way when the other's makes the last step
    assert sum(number(r"step \d+: (\d+) pushes", said[w]) for w in ("worker:0", "worker:1")) == first_end
    begins = [number(r"begins at step (\d+)", said[w]) for w in ("worker:0", "worker:1")]
    assert min(begins) == 0 and str(tmp_path / "train_logs") in said["worker:0"]
    assert said["ps:0"] == f"ps:0 serves at {hosts[0]}\nps:0: the run is over\n"

    codes, said = four_terminals(tmp_path, hosts, 60)
    assert codes == ALL_DONE, said
    assert f"run epoch 2 starts from step-{first_end:012d}-" in said["worker:0"]
    begins = [number(r"begins at step (\d+)", said[w]) for w in ("worker:0", "worker:1")]
    assert first_end <= min(begins) and max(begins) <= 61  # one may come when the other has made steps
    assert 60 <= max(number(r"done at step (\d+)", said[w]) for w in ("worker:0", "worker:1")) <= 61

    codes, said = four_terminals(tmp_path, hosts, 60)
    assert codes == ALL_DONE, said
    assert all(" 0 pushes of this worker" in said[w] for w in ("worker:0", "worker:1")), said


def test_the_launcher_runs_the_same_file_without_host_flags(tmp_path: Path) -> None:
    with Terminals(tmp_path) as terminals:
        flags = ["--last_step=30", "--batch=20"]
        terminals.start(
            "all", "-m", "dps.cli", "launch", "--ps", "2", "--workers", "2", "--update", "sync", TRAINER, "--", *flags
        )
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    for worker in ("[worker:0]", "[worker:1]"):  # in sync both give one gradient to each of the 30 steps
        assert f"{worker} done at step 30: 30 pushes" in said["all"]
    assert list((tmp_path / "train_logs").glob("step-000000000030-*"))


HOSTS = ("--ps_hosts=localhost:1", "--worker_hosts=localhost:2")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (HOSTS[:1], "--worker_hosts and --job_name missing"),
        (HOSTS, "--job_name missing"),
        (("--job_name=ps",), "--ps_hosts and --worker_hosts missing"),
        (("--task_index=1",), "missing"),
        ((*HOSTS, "--job_name=boss"), "boss"),
        ((*HOSTS, "--job_name=ps", "--task_index=one"), "one"),
        (("--bogus",), "--bogus"),
    ],
)
def test_flags_that_are_missing_or_wrong_are_one_line_and_exit_code_2(
    flags: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_error(flags, monkeypatch) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


def test_host_flags_contradict_a_launcher(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DPS_JOB", "worker")
    assert parse_error((*HOSTS, "--job_name=ps"), monkeypatch) == 2
    assert "leave them out" in capsys.readouterr().err


def parse_error(flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["trainer.py", *flags])
    trainer = import_module("trainer")
    with pytest.raises(SystemExit) as stopped:
        trainer.parsed()
    return stopped.value.code


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ((), 2, "was not started as a task"),
        ((*HOSTS, "--job_name=ps", "--task_index=4"), 2, "got ps 4"),
        (("--ps_hosts=0.0.0.0:2222", *HOSTS[1:], "--job_name=ps"), 5, "0.0.0.0"),
    ],
)
def test_a_cluster_that_does_not_fit_is_one_line_and_its_exit_code(
    flags: tuple[str, ...], code: int, words: str, tmp_path: Path
) -> None:
    with Terminals(tmp_path) as terminals:
        terminals.start("task", TRAINER, *flags)
        codes, said = terminals.ended()
    assert codes == {"task": code}
    assert said["task"].startswith("trainer.py: ") and words in said["task"] and said["task"].count("\n") == 1
