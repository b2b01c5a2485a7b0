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
from dps.launch.hearing import hear_of_the_end
from dps.launch.outcome import OVER
from dps.transport.clock import now
from tests.launch.test_local import PROGRAM, launch, lines_until, rest, until


@pytest.fixture
def hears() -> Iterator[None]:
    before = signal.getsignal(OVER)
    hear_of_the_end()
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


GROUP = """
import sys, time
import numpy as np, dps
with dps.Server.from_env() as server, dps.strategy.MultiWorkerMirrored(server, ["/cpu:0"], timeout=60) as strategy:
    with strategy.scope():
        variables = strategy.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(0.5))
    print("begins", flush=True)
    for step in range(int(sys.argv[1])):
        variables.apply_gradients({"w": np.ones(2)})
        time.sleep(0.005)
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
    ("flags", "program", "who", "steps", "code"),
    [
        (["--ps", "1"], PROGRAM, "worker:1", 300, 3),
        (["--ps", "0"], GROUP, "worker:1", 300, 3),
        (["--ps", "1", "--evaluator", "follower.py"], PROGRAM, "evaluator:0", 3000, 0),
    ],
)
def test_a_task_that_stood_still_while_its_run_ended_ends_when_it_wakes(
    tmp_path: Path, flags: list[str], program: str, who: str, steps: int, code: int
) -> None:
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "follower.py").write_text(FOLLOWER)
    process = launch(*flags, "--workers", "2", "program.py", "--", str(steps), cwd=tmp_path)
    lines = lines_until(process, f"[{who}] begins")
    stopped = task_of(process, *who.split(":"))
    stopped.suspend()
    if who.startswith("worker"):
        lines += lines_until(process, "the run has ended; waits for the program")
        assert lines[-1].endswith(f"of {who}")
    else:
        until(lambda: not any("chief" in child.cmdline() for child in psutil.Process(process.pid).children()))
    woken_at = now()
    stopped.resume()
    text = rest(process)
    assert now() - woken_at < 20, "it looks for the chief for a minute"
    assert process.returncode == code, text
    assert ("has seen all" in text) if code == 0 else text.endswith(f"the run has ended without {who}, exit code 3\n")
