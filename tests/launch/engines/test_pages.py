"""The pages of the engines, followed word by word: every block in its order, on hosts of the test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.cluster import ROOT
from tests.launch.clusters.test_local_processes import until
from tests.launch.engines.needs import need
from tests.launch.engines.processes import everything, lives
from tests.launch.engines.raylets import PYTHON, need_ray
from tests.launch.engines.slurmd import Slurm
from tests.launch.engines.sshd import Hosts
from tests.launch.runs.test_runs_of_processes import Terminal
from tests.test_docs import DOCS, blocks

pytestmark = pytest.mark.slow


def follow(page: str, user: Terminal, enter: Sequence[str] = ()) -> str:
    """Write the files of a page and run its scripts; returns what they print."""
    said = ""
    for block in blocks(DOCS / "guide" / page):
        if block.note.startswith("file: "):
            (user.folder / block.note[6:]).write_text(block.text)
        elif block.language == "bash":
            command = [*enter, "bash", "-euo", "pipefail", "-c", block.text]
            done = subprocess.run(
                command, cwd=user.folder, env=user.environ, capture_output=True, text=True, timeout=110, check=False
            )
            said += done.stdout + done.stderr
            assert done.returncode == 0, said
    return said


@pytest.mark.xdist_group("ssh")
def test_the_page_about_ssh(tmp_path: Path) -> None:
    user = Terminal(tmp_path)
    hosts = Hosts(tmp_path / "ssh", user.mark, "box1", "box2")
    try:
        user.environ["PATH"] = f"{hosts.bin}:{Path(sys.executable).parent}:{user.environ['PATH']}"
        said = follow("ssh.md", user)
        assert "worker 2 ends at 200" in said
        assert {task["host"] for task in user.view().tasks.values()} == {"box1", "box2"}
    finally:
        hosts.close()


@pytest.mark.xdist_group("slurm")
def test_the_page_about_slurm(tmp_path: Path, slurm: Slurm) -> None:
    user = Terminal(tmp_path)
    user.environ |= {**slurm.environ, "PATH": f"{Path(sys.executable).parent}:{slurm.environ['PATH']}"}
    user.environ |= {"PYTHONPATH": str(ROOT)}
    said = follow("slurm.md", user, slurm.enter)
    assert said.count("worker 1 ends at 200") == 1
    assert "worker 1 ends at 200" in (tmp_path / "job.txt").read_text()
    assert user.view("2").state == "SUCCEEDED"


@pytest.mark.xdist_group("ray")
def test_the_page_about_ray(tmp_path: Path) -> None:
    """In namespaces of its own, where no other Ray is seen, and its ports are free."""
    need_ray()
    need("" if os.geteuid() == 0 else "root, for namespaces")
    user = Terminal(tmp_path)
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    user.environ |= {"PYTHONPATH": str(ROOT), "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}:/usr/sbin"}
    user.environ |= {"RAY_TMPDIR": temporary, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    inside = ["unshare", "--pid", "--net", "--mount-proc", "--fork", "--kill-child"]
    command = [*inside, "sh", "-c", "ip link set lo up && exec sleep 1000"]
    with subprocess.Popen(command, env=user.environ) as process:
        try:
            first = until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())[0]
            until(lambda: b"sleep" in Path(f"/proc/{first}/cmdline").read_bytes())
            said = follow(
                "ray.md", user, ["nsenter", f"--target={first}", "--pid", "--net", "--mount", f"--wd={tmp_path}"]
            )
            assert said.count("worker 1 ends at 200") == 2 and "1.ps.0" in said, said
            assert user.view("2").state == "SUCCEEDED"
            until(lambda: not inside_of(first), 20.0)
        finally:
            process.kill()
    shutil.rmtree(temporary)


def inside_of(first: str) -> list[str]:
    """The command lines of the processes in the namespace of a process, without that one."""
    space, found = os.readlink(f"/proc/{first}/ns/pid"), []
    for pid, _, command in everything():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == space and str(pid) != first and lives(pid):
                found.append(command.decode())
    return found
