"""A task that stood still while its run ended hears it from its launcher, which has seen the chief end well."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import dps
from dps.launch.programs.program import handle_run_end
from dps.launch.supervision.outcome import OVER
from dps.transport.clock import now
from tests.launch.clusters.test_local_processes import PROGRAM, launch, lines_until, rest, until


@pytest.fixture
def hears() -> Iterator[None]:
    before = signal.getsignal(OVER)
    handle_run_end()
    yield
    signal.signal(OVER, before)


@pytest.mark.usefixtures("hears")
def test_the_signal_ends_the_tasks_of_the_launchers_run_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    chief = dps.Server(None, "chief", 0, ps=1, workers=1)
    with chief, dps.Server(None, "ps", 0, chief=chief.address), dps.Server.create_local_server() as own:
        monkeypatch.setenv("DPS_CHIEF", chief.address)
        with dps.Server(None, "worker", 0, chief=chief.address) as launched:
            session = dps.Session(launched, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
            os.kill(os.getpid(), OVER)
            until(lambda: launched.exit_code is not None, 5.0)
            assert (launched.exit_code, launched.reason) == (0, "the run has ended") and session.should_stop()
            with pytest.raises(dps.TaskLost, match="the run has ended"):
                session.pull()
            session.close()
        assert own.exit_code is None, "a run that the program has begun by itself goes on"


def test_the_signal_does_nothing_to_a_process_that_does_not_handle_it_yet() -> None:
    assert signal.getsignal(OVER) == signal.SIG_DFL
    os.kill(os.getpid(), OVER)


LOOP = """
import os, signal, sys, time
import numpy as np, dps
def stand_still(where):
    if sys.argv[2] == where and server.task == 1 and session.global_step >= 5:
        sys.argv[2] = ""
        print("begins", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1.0)  # the launcher's signal has been handled
with dps.Server.from_env() as server, dps.Session(
    server, {"a": np.zeros(10, np.float32)}, optimizer=dps.optim.SGD(1.0), timeout=60,
    hooks=[dps.StopAtStep(last_step=int(sys.argv[1]))],
) as session:
    while not session.should_stop():
        stand_still("in the step")
        session.push({"a": np.ones_like(session.pull()["a"])})
        time.sleep(0.005)
        stand_still("between steps")
    print("has seen all", flush=True)
"""
GROUP = """
import os, signal, sys, time
import numpy as np, dps
with dps.Server.from_env() as server, dps.strategy.MultiWorkerMirrored(server, ["/cpu:0"], timeout=60) as strategy:
    with strategy.scope():
        variables = strategy.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(0.5))
    for step in range(int(sys.argv[1])):
        variables.apply_gradients({"w": np.ones(2)})
        if server.task == 1 and step == 5:
            print("begins", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(1.0)
"""
FOLLOWER = """
import dps
for step, values in dps.follow(dps.Server.from_env(), pause=0.1):
    print("begins", flush=True)
print("has seen all", flush=True)
"""


def task_of(process: subprocess.Popen[str], job: str, task: str) -> psutil.Process:
    for child in psutil.Process(process.pid).children():
        words = child.cmdline()
        if job in words and words[words.index("--task") + 1] == task:
            return child
    raise AssertionError(f"no {job}:{task}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "program", "where", "code"),
    [
        (["--ps", "1"], LOOP, "in the step", 3),
        pytest.param(["--ps", "1"], LOOP, "between steps", 0, marks=pytest.mark.nightly),
        pytest.param(["--ps", "0"], GROUP, "in the step", 3, marks=pytest.mark.nightly),
    ],
)
def test_a_worker_that_stood_still_while_its_run_ended_ends_when_it_wakes(
    tmp_path: Path, flags: list[str], program: str, where: str, code: int
) -> None:
    (tmp_path / "program.py").write_text(program)
    process = launch(*flags, "--workers", "2", "program.py", "--", "300", where, cwd=tmp_path)
    lines_until(process, "[worker:1] begins")
    lines = lines_until(process, "the run has ended; waits for the program")
    assert lines[-1].endswith("of worker:1")
    ends(process, task_of(process, "worker", "1"), "worker:1", code)


@pytest.mark.slow
def test_an_evaluator_that_stood_still_while_its_run_ended_sees_its_last_version(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "follower.py").write_text(FOLLOWER)
    process = launch(
        "--ps", "1", "--evaluator", "follower.py", "--workers", "2", "program.py", "--", "3000", cwd=tmp_path
    )
    lines_until(process, "[evaluator:0] begins")
    stopped = task_of(process, "evaluator", "0")
    chief = next(child for child in psutil.Process(process.pid).children() if "chief" in child.cmdline())
    stopped.suspend()
    chief.wait(60)
    ends(process, stopped, "evaluator:0", 0)


def ends(process: subprocess.Popen[str], stopped: psutil.Process, who: str, code: int) -> None:
    woken_at = now()
    stopped.resume()
    text = rest(process)
    assert now() - woken_at < 20, "it looks for the chief for a minute"
    assert process.returncode == code, text
    assert ("has seen all" in text) if code == 0 else text.endswith(f"the run has ended without {who}, exit code 3\n")
