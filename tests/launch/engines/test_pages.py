"""The pages of the engines, followed word by word: every block in its order, on hosts of the test's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.cluster import ROOT
from tests.launch.engines.slurmd import Slurm
from tests.launch.engines.sshd import Hosts
from tests.launch.runs.test_real import Terminal
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


def test_the_page_about_slurm(tmp_path: Path) -> None:
    user, slurm = Terminal(tmp_path), Slurm()
    try:
        user.environ |= {**slurm.environ, "PATH": f"{Path(sys.executable).parent}:{slurm.environ['PATH']}"}
        user.environ |= {"PYTHONPATH": str(ROOT)}
        said = follow("slurm.md", user, slurm.enter)
        assert said.count("worker 1 ends at 200") == 1
        assert "worker 1 ends at 200" in (tmp_path / "job.txt").read_text()
        assert user.view("2").state == "SUCCEEDED"
    finally:
        slurm.close()
