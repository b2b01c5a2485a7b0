"""Runs on a real Slurm with two nodes: jobs that are taken or requeued, jobs of one's own, and what cannot be."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.launch.clusters.test_local_processes import until
from tests.launch.engines.programs import check_newest_checkpoint
from tests.launch.engines.users import SlurmUser

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]


def test_a_run_whose_job_is_taken_begins_again_in_another(slurm_user: SlurmUser) -> None:
    user = slurm_user
    user.begin("--set", "steps=400", "--set", "pause=0.01")
    user.wait_for_checkpoints(3)
    job = user.slurm.run("squeue", "-h", "-o", "%A").stdout.split()[0]
    user.slurm.run("scancel", job)
    until(lambda: user.view().is_over, 90.0)
    said = user.dps("logs", "1")
    assert user.view().state == "SUCCEEDED" and "begins again from its checkpoint" in said, said
    check_newest_checkpoint(user.folder / "runs" / "1", said)


def batch(user: SlurmUser, *flags: str) -> str:
    """Submit a script of one's own that launches the experiment; returns the job."""
    (user.folder / "job.sbatch").write_text(
        f"#!/bin/sh\nexec {user.python} -m dps.cli launch --on slurm experiment.yaml\n"
    )
    done = subprocess.run(
        [*user.enter, "sbatch", "--parsable", "--ntasks=4", "--time=5", "--output=job.txt", *flags, "job.sbatch"],
        cwd=user.folder, env=user.environ, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_job_that_is_requeued_goes_on_from_the_checkpoint_of_its_output(slurm_user: SlurmUser) -> None:
    user = slurm_user
    file = user.folder / "experiment.yaml"
    text = f"output: {user.folder}/output\n" + file.read_text().replace("pause: 0.0", "pause: 0.01")
    file.write_text(text.replace("steps: 60", "steps: 300"))
    job = batch(user, "--requeue")
    until((user.folder / "runs" / "1").exists)
    until(lambda: user.dps("logs", "1").count("saved") >= 3)
    user.slurm.run("scontrol", "requeue", job)
    until((user.folder / "runs" / "2").exists, 60.0)
    until(lambda: user.view("2").is_over, 60.0)
    begins = [int(step) for step in re.findall(r"begins at (\d+)", user.dps("logs", "2"))]
    assert user.view("2").state == "SUCCEEDED" and min(begins) >= 20, user.dps("logs", "2")
    until(lambda: not user.slurm.jobs(), 30.0)


def test_the_exit_code_of_a_run_is_that_of_its_job(slurm_user: SlurmUser) -> None:
    (slurm_user.folder / "sums.py").write_text("raise SystemExit(7)\n")
    job = batch(slurm_user)
    until(lambda: not slurm_user.slurm.jobs(), 60.0)
    told = slurm_user.slurm.run("scontrol", "show", "job", job).stdout
    assert "ExitCode=1:0" in told and "JobState=FAILED" in told, told
    assert "worker:0, worker:1 ended with exit code 7" in (slurm_user.folder / "job.txt").read_text()


def test_an_allocation_around_it_is_used(slurm_user: SlurmUser) -> None:
    user = slurm_user
    command = [user.python, "-m", "dps.cli", "launch", "--on", "slurm", "experiment.yaml"]
    for ntasks, code in (("4", 0), ("2", 2)):
        done = subprocess.run(
            [*user.enter, "salloc", f"--ntasks={ntasks}", *command], cwd=user.folder, env=user.environ,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
    assert "the nodes of this allocation have 2 slots for 4 tasks" in done.stderr
    assert {task["host"] for task in user.view().tasks.values()} <= {"n1", "n2"}


def test_what_cannot_be_is_one_line(slurm_user: SlurmUser) -> None:
    user = slurm_user
    file = user.folder / "experiment.yaml"
    text = file.read_text()

    def check(wanted: str, code: int = 2) -> None:
        said = user.refusal(code)
        assert re.search(wanted, said), said

    for old, new in (("count: 2, run", "count: 200, run"), ("{cpus: 2}", "{memory: 900GiB}")):
        file.write_text(text.replace(old, new))
        check("^dps: Slurm gives no job: ")
    file.write_text(text)
    for variable, value in (("SALLOC_PARTITION", "nowhere"), ("SALLOC_TIMELIMIT", "no")):
        before = user.environ.get(variable)
        user.environ[variable] = value
        check("^dps: Slurm gives no job: ")
        user.environ[variable] = before or ""
    user.environ.pop("SALLOC_PARTITION")
    config = (user.slurm.folder / "slurm.conf").read_text().replace("16817", "16818")
    (user.folder / "slurm.conf").write_text(config + "MessageTimeout=2\n")
    user.environ["SLURM_CONF"] = str(user.folder / "slurm.conf")
    check("Slurm cannot be reached: .*controller", code=3)
    user.environ["PATH"] = "/usr/bin/nowhere"
    user.enter = []
    check("^dps: --on slurm: this machine has no salloc; run dps where Slurm's commands are$")
