"""Tasks kept on processors: what the flags mean, and what is said where it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dps
from dps import cli, role
from dps.errors import ConfigError
from dps.process.config import allowed_cpus, format_cpus

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processor affinity")

PROGRAM = """
import os
import numpy as np
import dps
with dps.Server.from_env() as server, dps.Session(server, {"a": np.zeros(3)}, optimizer=dps.optim.SGD(1.0)) as session:
    session.push(session.pull())
    print("on", sorted(os.sched_getaffinity(0)), flush=True)
"""


def where(server: Any) -> list[int]:
    with dps.Session(server, {"a": [0.0]}, optimizer=dps.optim.SGD(1.0)) as session:
        session.pull()
    return sorted(os.sched_getaffinity(0))


def test_a_launched_worker_keeps_to_its_processors(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "dps.cli", "launch", "--pin", "program.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    cpus = allowed_cpus()
    wanted = list(cpus[(len(cpus) + 1) // 2 :] or cpus)  # the ps has the first half, and the odd one
    assert ended.returncode == 0 and f"[worker:0] on {wanted}" in ended.stdout, ended.stdout


def test_a_task_keeps_to_the_processors_that_it_is_given() -> None:
    last = allowed_cpus()[-1]
    code = f"import os, sys; from dps import role; role.main(['--job', 'chief', '--ps', '-1', '--cpus', '{last}'])\n"
    code += "print(os.sched_getaffinity(0))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == f"{{{last}}}\n" and "got --ps -1" in ended.stderr


@pytest.mark.parametrize("cpus", ["99999", "one", "3-1"])
def test_processors_that_cannot_be_had_are_one_line_and_exit_code_2(
    cpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = allowed_cpus()
    assert role.main(["--job", "chief", "--cpus", cpus]) == 2
    told = capsys.readouterr().err
    assert told.startswith("dps: got --cpus ") and cpus in told and told.count("\n") == 1
    assert allowed_cpus() == before


def test_launch_says_where_it_cannot_pin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cli.main(["launch", "--pin", __file__]) == 2
    assert capsys.readouterr().err == (
        "dps: this system cannot pin a process to processors; leave --cpus, --pin and pin=True out\n"
    )


@pytest.mark.slow
def test_a_local_cluster_deals_its_processors_out() -> None:
    with dps.LocalCluster(ps=1, workers=1, pin=True) as local:
        assert local._supervisor is not None
        shares = local._supervisor.tasks.cpus
        assert local.run(where).results == [list(shares["worker:0"])]
        process = local._supervisor.tasks.children["ps:0"].process
        assert format_cpus(os.sched_getaffinity(process.pid)) == format_cpus(shares["ps:0"])


def test_tasks_of_this_process_cannot_be_pinned() -> None:
    with pytest.raises(ConfigError, match="only processes can be pinned"):
        dps.LocalCluster(processes=False, pin=True)
