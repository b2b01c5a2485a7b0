"""Runs with real processes, as a user in several terminals sees them; nothing of them is left, however they end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dps.launch.runs.view import View, read_run
from dps.transport.clock import now, wall
from tests.chaos.cluster import MARK, marked
from tests.launch.clusters.test_local_processes import until
from tests.tracing.checks import check

TRAINER = """
import os, sys, time
import numpy as np, dps
with dps.Server.from_env() as server, dps.Session(
    server, {"w": np.zeros(1000, np.float32)}, optimizer=dps.optim.SGD(0.1), timeout=30,
    hooks=[dps.StopAtStep(last_step=int(sys.argv[1])), dps.CheckpointSaver(steps=20), dps.LogMetrics(10**9, batch=32)],
    checkpoint_dir=os.environ["OUTPUT_DIR"],
) as session:
    print("begins at", session.global_step, flush=True)
    while not session.should_stop():
        session.push({"w": session.pull()["w"] - 1}, loss=0.5)
        time.sleep(0.01)
    print("ends at step", session.global_step, "loss", 1 / session.global_step, flush=True)
"""
EXPERIMENT = """
name: long
parameters: {steps: 100000}
roles:
  chief: {}
  ps: {count: 2}
  worker: {count: 3, restarts: 1, run: "train.py {{ steps }}"}
"""


class Terminal:
    """A user's terminals, all in one folder: `dps` commands with a pseudo-terminal as their output."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, f"{os.getpid()}-{folder.name}"
        self.python, self.enter = sys.executable, list[str]()
        """What each command line begins with."""
        (folder / "temporary").mkdir(mode=0o700)
        self.environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | {
            "DPS_RUNS": str(folder / "runs"), MARK: self.mark, "TMPDIR": str(folder / "temporary"),
        }  # fmt: skip

    def dps(self, *argv: str, code: int = 0) -> str:
        """What a command prints, without colours. Blocks until it ends."""
        process, terminal = self.start(*argv)
        said = self.rest(terminal)
        assert process.wait(60) == code, said
        return said

    def start(self, *argv: str) -> tuple[subprocess.Popen[bytes], int]:
        """A command that runs, as the leader of a terminal, and the other end of that terminal."""
        own, theirs = pty.openpty()
        termios.tcsetwinsize(own, (50, 220))
        command = [shutil.which("setsid") or "setsid", "--ctty", *self.enter, self.python, "-m", "dps.cli", *argv]
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environ, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        return process, own

    def until(self, terminal: int, words: str) -> str:
        """Read a terminal until these words are there. Blocks up to 90 s."""
        said, end = "", now() + 90
        while words not in said:
            assert select.select([terminal], [], [], max(0.0, end - now()))[0], f"no {words!r} in {said}"
            said += os.read(terminal, 4096).decode(errors="replace")
        return said

    def rest(self, terminal: int) -> str:
        """What comes until the last process of a terminal has ended."""
        said = b""
        with contextlib.suppress(OSError):  # how the end of a terminal reads
            while data := os.read(terminal, 4096):
                said += data
        os.close(terminal)
        return re.sub(r"\x1b\[[\dHJ;]*m?", "", said.decode()).replace("\r\n", "\n")

    def view(self, run: str = "1") -> View:
        return read_run(str(self.folder / "runs" / run), wall())

    def living(self) -> list[int]:
        return marked(self.mark)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    made = Terminal(tmp_path)
    before = set(Path("/dev/shm").glob("*dps*"))
    yield made
    try:
        until(lambda: not made.living())
    finally:
        for pid in made.living():
            os.kill(pid, signal.SIGKILL)
    assert not list((tmp_path / "temporary").rglob("*")) and set(Path("/dev/shm").glob("*dps*")) == before


def states(view: View) -> set[Any]:
    return {task["state"] for task in view.tasks.values()}


@pytest.mark.slow
def test_a_run_in_the_background_is_listed_watched_read_and_ended_from_other_terminals(user: Terminal) -> None:
    assert "run 1: RUNNING; look at it with: dps status 1" in user.dps("launch", "--detach", "experiment.yaml")
    assert re.search(r"^1 +long +RUNNING +\d{4}-\S+ \S+ +\d+ s +6/6 +-$", user.dps("list"), re.M)
    following, terminal = user.start("logs", "1", "--follow", "--task", "worker.1", "--task", "worker:2")
    user.until(terminal, "begins at")
    status = user.dps("status", "1")
    assert status.startswith("run 1 long: RUNNING since ") and "values: steps=100000" in status
    assert re.search(r"^1\.worker\.2 +RUNNING .* +0 +-$", status, re.M)
    told = r"^training: step \d+, loss 0\.5, [\d.]+ pushes/s, [\d,]+ examples/s$\nlast checkpoint: step-\d+"
    until(lambda: re.search(told, user.dps("status"), re.M))
    monitoring, screen = user.start("monitor", "1")
    shown = user.until(screen, "EXAMPLES/S") + user.until(screen, "EXAMPLES/S")
    assert "run 1 long: RUNNING" in shown
    monitor = user.dps("monitor", "1", "--once")
    of_ps = r"^1\.ps\.0 +RUNNING +\d+ +- +[\d.]+ +N/A +- +[\d.]+ +[\d.]+ +\d+ +\d+ +(N/A|\d+) +(N/A|\d+) +0$"
    of_worker = of_ps.replace(r"ps\.0", r"worker\.2").replace(r"- +[\d.]+ +N/A +-", r"0\.5 +[\d.]+ +[\d,]+ +\d+", 1)
    assert re.search(of_ps, monitor, re.M) and re.search(of_worker, monitor, re.M), monitor
    assert "steps of chief, ps:0, ps:1, worker:0, worker:1, worker:2, " in user.dps("trace", "1", "--steps", "20")
    tracing, view = user.start("trace", "1", "--steps", "100000", "--out", "interrupted.json")
    user.until(view, "Ctrl-C ends the trace")
    os.write(view, termios.tcgetattr(view)[6][termios.VINTR])
    assert "interrupted.json: " in user.rest(view) and tracing.wait(60) == 0
    check(json.loads((user.folder / "interrupted.json").read_text()))
    (path,) = user.folder.glob("trace-1-step-*.json")
    events = check(json.loads(path.read_text()))
    assert {"push", "apply", "program"} <= {event["name"] for event in events if event["ph"] == "X"}
    assert "begins at" in user.dps("logs")
    assert user.dps("kill", "1").endswith("run 1: KILLED\n")
    assert "run 1 long: KILLED" in user.rest(screen) and monitoring.wait(60) == 0
    followed = user.rest(terminal)
    assert following.wait(60) == 0 and "[1.worker.1] ends at" in followed and "[1.worker.2] ends at" in followed
    assert "1.ps" not in followed and "KILLED" in user.dps("status", "1")
    assert "[1.chief] saved" in user.dps("logs", "1")
    assert user.dps("kill", "1").endswith("run 1: KILLED\n")


@pytest.fixture
def hangs_up() -> Iterator[None]:
    """Processes that a test starts hear that their terminal has gone, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangs_up")
def test_a_run_whose_terminal_is_closed_ends_in_order(user: Terminal) -> None:
    process, terminal = user.start("launch", "train.py", "--", "100000")
    user.until(terminal, "begins at")
    os.close(terminal)
    assert process.wait(60) == 0
    assert user.view().state == "KILLED" and "ends at" in user.dps("logs", "1", "--task", "worker.0")


@pytest.mark.slow
def test_a_run_whose_keeper_is_killed_is_lost_and_goes_on_from_its_checkpoint(user: Terminal) -> None:
    user.dps("launch", "--detach", "experiment.yaml")
    until(lambda: user.dps("logs", "1", "--task", "chief").count("saved") > 2)
    os.kill(user.view().values["keeper"]["pid"], signal.SIGKILL)
    until(lambda: not user.living())
    assert user.view().state == "LOST" and states(user.view()) == {"LOST"}
    assert "[1.worker.1] the log ends here: its keeper has gone" in user.dps("logs", "1", "--task", "worker.1")
    user.dps("launch", "--resume", "1", "--detach")
    begun = until(lambda: re.search(r"\[2\.worker\.0\] begins at (\d+)", user.dps("logs", "2")))
    assert int(begun[1]) >= 20 and "resumes: 1" in user.dps("status", "2")
    user.dps("kill", "2")


@pytest.mark.slow
def test_a_program_that_does_not_end_is_ended_after_the_grace(user: Terminal) -> None:
    (user.folder / "deaf.py").write_text("import time\nprint('begins', flush=True)\nwhile True: time.sleep(1)\n")
    user.dps("launch", "--detach", "deaf.py")
    until(lambda: "begins" in user.dps("logs", "1"))
    began = now()
    user.dps("list")
    listed_s = now() - began
    assert user.dps("kill", "1", "--grace", "0.5").endswith("run 1: KILLED\n")
    assert now() - began < 8.0 + 4 * listed_s  # without --grace the program has 10 s
    assert user.view().values["exit_code"] == 130


@pytest.mark.slow
def test_a_worker_that_was_killed_is_started_again_where_its_role_says_so(user: Terminal) -> None:
    user.dps("launch", "--detach", "experiment.yaml")
    until(lambda: "begins" in user.dps("logs", "1", "--task", "worker.1"))
    os.kill(user.view().tasks["worker:1"]["pid"], signal.SIGKILL)
    until(lambda: user.dps("logs", "1", "--task", "worker.1").count("begins at") == 2)
    task = user.view().tasks["worker:1"]
    assert (task["state"], task["restarts"]) == ("RUNNING", 1)
    user.dps("kill", "1")


@pytest.mark.slow
def test_a_chief_that_is_lost_for_good_ends_everything_within_5_s(user: Terminal) -> None:
    launched = now()
    process, terminal = user.start("launch", "--restarts", "0", "--workers", "2", "train.py", "--", "100000")
    user.until(terminal, "begins at")
    started_s = now() - launched  # 1 s on a machine with nothing else to do
    os.kill(user.view().tasks["chief"]["pid"], signal.SIGKILL)
    began = now()
    said = user.rest(terminal)
    assert process.wait(60) == 3 and now() - began < 4.0 + 2 * started_s
    assert said.splitlines()[-1].endswith("the run is over: chief was lost (SIGKILL)")
    assert user.view().state == "FAILED" and user.view().tasks["chief"]["state"] == "FAILED"


@pytest.mark.slow
def test_a_grid_of_four_runs_two_at_a_time_and_prints_its_table(user: Terminal) -> None:
    (user.folder / "grid.yaml").write_text(
        "parameters: {steps: [20, 60], twice: [1, 2]}\nparallel: 2\n"
        'roles: {worker: {run: "train.py {{ steps }} {{ twice }}"}}\n'
    )
    said = user.dps("launch", "grid.yaml", "--metric", "loss")
    *_, head, first, second, third, fourth = said.splitlines()
    assert head.split() == [
        "ID",
        "STEPS",
        "TWICE",
        "STATE",
        "EXIT",
        "CODE",
        "TOOK",
        "LOSS",
        "LOSS",
        "OF",
        "LOSS",
        "AT",
        "STEP",
    ]
    assert first.split()[-2:] == ["worker:0", "60"]
    assert [row.split()[1:4:2] for row in (first, second, third, fourth)] == [
        ["60", "SUCCEEDED"], ["60", "SUCCEEDED"], ["20", "SUCCEEDED"], ["20", "SUCCEEDED"],
    ]  # fmt: skip
    began = [user.view(run).values["history"][1][1] for run in "1234"]
    ended = [user.view(run).values["since"] for run in "1234"]
    assert min(ended[:2]) <= min(began[2:]), "at most two at one time"
    assert json.loads(user.dps("list", "--json"))[3]["values"] == {"steps": "60", "twice": "2"}


@pytest.mark.slow
def test_a_grid_in_the_background_can_be_ended_before_all_of_it_has_begun(user: Terminal) -> None:
    (user.folder / "grid.yaml").write_text(EXPERIMENT.replace("100000", "[100000, 100001, 100002]"))
    assert "run 1 2 3: RUNNING" in user.dps("launch", "--detach", "grid.yaml")
    assert [user.view(run).state for run in "123"] == ["RUNNING", "CREATED", "CREATED"]
    assert re.findall(r"run (\d): KILLED", user.dps("kill", "3", "2", "1")) == ["3", "2", "1"]


@pytest.mark.slow
def test_a_process_that_a_program_has_left_holds_nobody_up_and_is_ended(user: Terminal) -> None:
    (user.folder / "leaves.py").write_text(
        "import subprocess\nsubprocess.Popen(['sleep', '300'])\nraise SystemExit(7)\n"
    )
    process, terminal = user.start("launch", "leaves.py")
    user.rest(terminal)
    assert process.wait(60) == 1 and user.view().tasks["worker:0"]["exit_code"] == 7


@pytest.mark.slow
def test_the_runs_of_a_grid_end_in_order_when_its_process_is_killed(user: Terminal) -> None:
    (user.folder / "grid.yaml").write_text("parallel: 2" + EXPERIMENT.replace("100000", "[100000, 100001, 100002]"))
    process, terminal = user.start("launch", "grid.yaml")
    until(lambda: (user.folder / "runs" / "3" / "state.json").exists())
    until(lambda: [user.view(run).state for run in "123"] == ["RUNNING", "RUNNING", "CREATED"])
    process.kill()
    process.wait()
    until(lambda: not user.living(), 20.0)
    assert [user.view(run).state for run in "123"] == ["KILLED", "KILLED", "LOST"]
    os.close(terminal)


@pytest.mark.slow
def test_a_failed_task_is_named_in_the_last_line_with_the_end_of_its_traceback(user: Terminal) -> None:
    (user.folder / "bad.py").write_text("def load():\n    raise RuntimeError('no data here')\n\nload()\n")
    said = user.dps("launch", "bad.py", code=1)
    last = "the run failed: worker:0 ended with exit code 1: RuntimeError: no data here (bad.py, line 2)"
    assert said.splitlines()[-1].endswith(last)
    assert user.view().state == "FAILED" and user.view().values["reason"] == last
