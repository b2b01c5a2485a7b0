"""Runs on a real Slurm with two nodes: their bits, notices, jobs that are taken, and jobs of one's own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import ROOT
from tests.launch.engines.programs import bits, write
from tests.launch.engines.slurmd import Slurm
from tests.launch.runs.test_real import Terminal
from tests.launch.test_local import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    made = Slurm()
    yield made
    made.close()


class User(Terminal):
    """A user where Slurm's commands are."""

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        super().__init__(folder)
        self.slurm = slurm
        self.enter = slurm.enter
        self.environ |= {**slurm.environ, "PYTHONPATH": str(ROOT), "SALLOC_TIMELIMIT": "5"}
        self.environ["PATH"] = f"{Path(sys.executable).parent}:{slurm.environ['PATH']}"


@pytest.fixture
def user(tmp_path: Path, slurm: Slurm) -> Iterator[User]:
    made = User(tmp_path, slurm)
    write(tmp_path, "resources: {cpus: 1}\n")
    yield made
    try:
        until(lambda: not made.living(), 15.0)
        until(lambda: not slurm.jobs(), 15.0)
    finally:
        for pid in made.living():
            os.kill(pid, signal.SIGKILL)


def long(user: User) -> None:
    """A run in the background of which both workers train, for long."""
    user.dps("launch", "--on", "slurm", "--detach", "experiment.yaml", "--set", "steps=100000", "--set", "pause=0.01")
    until(lambda: user.dps("logs", "1").count("begins at") >= 2)


def test_the_final_bits_are_those_of_this_machine(user: User) -> None:
    user.dps("launch", "experiment.yaml")
    user.dps("launch", "--on", "slurm", "experiment.yaml")
    assert bits(user.folder / "runs" / "1") == bits(user.folder / "runs" / "2")
    tasks = user.view("2").tasks
    assert {task["host"] for task in tasks.values()} <= {"n1", "n2"}
    assert {task["state"] for task in tasks.values()} == {"SUCCEEDED"}


def test_a_killed_run_and_one_whose_keeper_is_killed_give_the_job_back(user: User) -> None:
    long(user)
    assert "dps" in user.slurm.jobs()
    assert "KILLED" in user.dps("kill", "1")
    until(lambda: not user.slurm.jobs(), 15.0)
    user.dps("launch", "--on", "slurm", "--detach", "experiment.yaml", "--set", "steps=100000", "--set", "pause=0.01")
    until(lambda: user.dps("logs", "2").count("begins at") >= 2)
    os.kill(user.view("2").values["keeper"]["pid"], signal.SIGKILL)
    until(lambda: not user.living(), 11.0)
    until(lambda: not user.slurm.jobs(), 15.0)


@pytest.mark.parametrize("how", ["signal", "cancel"])
def test_a_run_whose_job_is_about_to_go_or_taken_begins_again_in_another(user: User, how: str) -> None:
    user.dps("launch", "--on", "slurm", "--detach", "experiment.yaml", "--set", "steps=400", "--set", "pause=0.01")
    until(lambda: user.dps("logs", "1", "--task", "chief").count("saved") >= 3)
    job = user.slurm.run("squeue", "-h", "-o", "%A").stdout.split()[0]
    if how == "signal":  # what --signal sends before the end of the job
        user.slurm.run("scancel", "--signal=URG", job)
    else:
        user.slurm.run("scancel", job)
    until(lambda: user.view().over, 90.0)
    said = user.dps("logs", "1")
    assert user.view().state == "SUCCEEDED", said
    assert "begins again from its checkpoint" in said
    begins = [int(step) for step in re.findall(r"begins at (\d+)", said)]
    assert begins[0] == 0 and begins[-1] >= 20, said
    assert (user.folder / "runs" / "1" / "output" / "values").exists()


def test_a_job_of_ones_own_is_used_and_gets_the_exit_code(user: User) -> None:
    (user.folder / "bad.py").write_text("raise SystemExit(7)\n")
    for program, wanted in (("sums.py", 0), ("bad.py", 1)):
        text = (user.folder / "experiment.yaml").read_text()
        (user.folder / "own.yaml").write_text(text.replace("sums.py", program))
        command = ["salloc", "--ntasks=4", sys.executable, "-m", "dps.cli", "launch", "--on", "slurm", "own.yaml"]
        done = subprocess.run(
            [*user.enter, *command], cwd=user.folder, env=user.environ, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == wanted, done.stdout + done.stderr
    done = subprocess.run(
        [*user.enter, "salloc", "--ntasks=2", *command[2:]], cwd=user.folder, env=user.environ, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "the nodes of this allocation have 2 slots for 4 tasks" in done.stderr


def test_more_than_the_partition_has_is_one_line(user: User) -> None:
    file = user.folder / "experiment.yaml"
    text = file.read_text()
    for old, new in (("count: 2, run", "count: 200, run"), ("{cpus: 1}", "{memory: 900GiB}")):
        file.write_text(text.replace(old, new))
        said = user.dps("launch", "--on", "slurm", "experiment.yaml", code=2)
        assert re.fullmatch(r"dps: Slurm gives no job: .*\n", said), said


def test_what_is_not_installed_is_one_line(user: User) -> None:
    user.enter = []
    user.environ["PATH"] = "/usr/bin/nowhere"
    said = user.dps("launch", "--on", "slurm", "experiment.yaml", code=2)
    assert said == "dps: --on slurm: this machine has no salloc; run dps where Slurm's commands are\n"
