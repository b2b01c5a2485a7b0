"""Standard streams that were closed before a command began."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOOKS = """
import os, sys
from dps.process.flags import guarded

def look() -> int:
    opened = open("opened", "w")
    print("a line for people")
    os.write(2, b"a line of a signal handler")
    sys.stderr.write("another line")
    print([os.readlink(f"/proc/self/fd/{number}") for number in range(3)], file=opened)
    return sys.stdin.read() != ""

sys.exit(guarded(look))
"""


def run(shell: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.getcwd(), "DPS_RUNS": str(folder / "runs")}
    command = ["sh", "-c", shell, sys.executable]
    return subprocess.run(command, check=False, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_closed_streams_are_open_on_nothing_so_that_no_file_gets_their_number(tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text(LOOKS)
    assert run('"$0" looks.py <&- >&- 2>&-', tmp_path).returncode == 0
    assert (tmp_path / "opened").read_text() == f"{[os.devnull] * 3}\n"


def test_dps_launch_runs_without_a_stdout(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import dps\ndps.Server.from_env().stop()\n")
    done = run('"$0" -m dps launch program.py >&-', tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_dps_launch_says_where_no_run_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("")
    done = run('ulimit -f 0; "$0" -m dps launch program.py', tmp_path)
    assert done.returncode == 2
    assert (
        f"the run cannot be made in {tmp_path}/runs/1: File too large; make room there, or set DPS_RUNS to another"
        in done.stderr
    )
