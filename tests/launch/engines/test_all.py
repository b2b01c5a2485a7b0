"""What all engines do: the same bits, keys that nobody sees, machines that go, ends that leave nothing, mistakes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.clusters.test_local_processes import until
from tests.launch.engines.clusters import FUNCTIONS, script
from tests.launch.engines.processes import check_secret, keys_of
from tests.launch.engines.programs import bits, check_newest_checkpoint, check_no_step_was_lost
from tests.launch.engines.users import User

pytestmark = pytest.mark.slow
SOME = ("--set", "steps=400", "--set", "pause=0.01")


def test_the_final_bits_are_those_of_this_machine(user: User, local_bits: Callable[[str], bytes]) -> None:
    wanted = local_bits(user.python)
    user.launch()
    assert bits(user.folder / "runs" / "1") == wanted
    tasks = user.view().tasks
    assert len({task["host"] for task in tasks.values()}) > 1, "they are on several machines"
    assert {task["state"] for task in tasks.values()} == {"SUCCEEDED"}
    assert not (user.folder / "runs" / "1" / "keys").exists()


def test_keys_are_private_files_and_in_no_environment_and_a_killed_run_gives_all_back(user: User) -> None:
    user.begin()
    keys = keys_of(user.folder / "runs" / "1")
    check_secret(keys, user.folder / "runs", *user.places())
    assert re.search(r"^1\.worker\.1 +RUNNING", user.dps("monitor", "1", "--once"), re.M)
    assert "KILLED" in user.dps("kill", "1")


def test_a_machine_that_gives_notice_costs_no_step(user: User) -> None:
    user.begin(*SOME)
    gone = user.gives_notice()
    until(lambda: user.view().is_over, 90.0)
    said = user.dps("logs", "1")
    assert user.view().state == "SUCCEEDED", said
    assert f"{gone} is about to go: " in said
    check_no_step_was_lost(user.folder / "runs" / "1", 400)


def test_a_machine_that_vanishes_costs_a_rollback_at_most_and_its_tasks_come_back_elsewhere(user: User) -> None:
    user.begin(*SOME)
    user.wait_for_checkpoints(2)
    gone = user.vanishes()
    until(lambda: user.view().is_over, 120.0)
    said = user.dps("logs", "1")
    assert user.view().state == "SUCCEEDED", said
    assert f"{gone} is lost" in said
    assert gone not in {task["host"] for task in user.view().tasks.values()}
    check_newest_checkpoint(user.folder / "runs" / "1", said)


def test_when_the_keeper_is_killed_all_ends_and_the_run_goes_on_from_its_checkpoint(user: User) -> None:
    user.begin()
    user.wait_for_checkpoints(2)
    os.kill(user.view().values["keeper"]["pid"], signal.SIGKILL)
    until(lambda: not user.living(), 11.0)
    until(lambda: not user.left(), 15.0)
    user.dps("launch", "--resume", "1", "--detach")
    begun = until(lambda: re.search(r"\[2\.worker\.0\] begins at (\d+)", user.dps("logs", "2")))
    assert int(begun[1]) >= 20
    user.dps("kill", "2")


def test_a_failed_task_is_named_and_its_exit_code_is_kept(user: User) -> None:
    (user.folder / "sums.py").write_text("import sys\nsys.exit(7)\n")
    said = user.launch(code=1)
    assert re.search(r"the run failed: worker:0, worker:1 ended with exit code 7\n$", said), said
    assert {task["exit_code"] for name, task in user.view().tasks.items() if name.startswith("worker")} == {7}


def test_bad_files_are_one_line(user: User) -> None:
    file = user.folder / "experiment.yaml"
    text = file.read_text()
    for old, new, wanted in (
        ("count: 2, run", "count: 0, run", "wanted a whole number from 1"),
        ("worker:", "wroker:", "unknown role 'wroker'"),
        ("sums.py {{", "nothing.py {{", "nothing.py"),
        ("{{ pause }}", "{{ pose }}", "pose"),
        (user.more, "resources: {cpus: many}\n", "wanted a whole number"),
    ):
        file.write_text(text.replace(old, new))
        said = user.refusal()
        assert re.fullmatch(r"dps: experiment\.yaml:\d+:\d+: [^\n]+", said) and wanted in said, said
    assert not (user.folder / "runs").exists() or not list((user.folder / "runs").iterdir())


def test_a_cluster_in_python(user: User) -> None:
    check_cluster(user)


@pytest.mark.xdist_group("ssh")
def test_a_cluster_in_python_on_this_machine(tmp_path: Path) -> None:
    check_cluster(User(tmp_path))


def check_cluster(user: User) -> None:
    """The same script prints the same of every cluster."""
    (user.folder / "functions.py").write_text(FUNCTIONS)
    (user.folder / "script.py").write_text(script(user.cluster))
    done = subprocess.run(
        [*user.enter, user.python, "script.py"], cwd=user.folder, env=user.environ, timeout=100, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    kind = user.cluster.partition("(")[0].rpartition(".")[2]
    for wanted in (
        r"results: \[\(0, 30\), \(1, 30\)\], history True",
        r"a reader sees: \(100,\)",
        rf"<{kind}\(ps=2, workers=2.*chief running, ps:0 running, ps:1 running.*",
        r"failed: worker:\d failed: ValueError: no data for 5 \| .*functions.py.*",
        r"stopped: \{'worker:0': 'done', 'worker:1': 'done'\}",
        r".*this run goes on with the variables of the run before \(1\), from step \d+; .*",
        r"anew: \[\(0, 5\), \(1, 5\)\]",
        r"after the end: the cluster was stopped.*",
        r"keys: None",
    ):
        assert any(re.fullmatch(wanted, line) for line in lines), (wanted, done.stdout + done.stderr)
    user.close()
