"""Workers that serve as real processes: started by their role, killed, started again; and `dps launch --serve`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dps
from tests.coordinator import functions

ROOT = Path(__file__).parents[2]


def worker(chief: str, task: int) -> subprocess.Popen[str]:
    flags = ["--job", "worker", "--task", str(task), "--chief", chief, "--serve", "tests.coordinator.functions"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "dps.role", *flags], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environ
    )


@pytest.fixture
def chief() -> Iterator[dps.Server]:
    chief = dps.Server(None, "chief", 0, bind="127.0.0.1:0", ps=1, workers=2, owned=True)
    with chief, dps.Server(None, "ps", 0, chief=chief.address):
        yield chief


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_worker_process_that_is_killed_comes_back_and_every_call_has_its_value(chief: dps.Server) -> None:
    workers = [worker(chief.address, task) for task in (0, 1)]
    try:
        params = {"w": np.zeros(3)}
        with (
            dps.Session(chief.address, params, optimizer=dps.optim.SGD(1.0)) as session,
            dps.Coordinator(chief.address) as coordinator,
        ):
            with dps.device("/job:worker/task:1"):
                assert session.run(functions.gradients, session, 0.5) == 0.5
            batches = iter(coordinator.create_per_worker_dataset(functions.numbers))
            values = [coordinator.schedule(functions.take, (batches,)) for _ in range(20)]
            slow = [coordinator.schedule(functions.who, (0.3,)) for _ in range(2)]
            coordinator.fetch(values)
            workers[1].kill()
            workers[1].wait()
            workers.append(worker(chief.address, 1))
            assert len(coordinator.fetch(slow)) == 2
            line = workers[2].stdout.readline() if workers[2].stdout else ""
            assert line.startswith("dps worker:1 serves tests.coordinator.functions at ")
            with dps.device("/job:worker/task:1"):
                assert session.run(functions.add, 1, 2) == 3
            coordinator.join()
            session.push({"w": np.ones(3)})
        for process in (workers[0], workers[2]):
            process.terminate()
            assert process.wait(10) == 0
    finally:
        for process in workers:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_one_line_starts_serving_workers_and_the_program_that_schedules(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("def square(x):\n    return x * x\n")
    (tmp_path / "schedule.py").write_text(
        "import dps, step, sys\n"
        "with dps.Server.from_env() as server, dps.Coordinator(server) as coordinator:\n"
        "    values = [coordinator.schedule(step.square, (n,)) for n in range(5)]\n"
        "    print('squares', coordinator.fetch(values), sys.argv[1:])\n"
    )
    command = [sys.executable, "-m", "dps.cli", "launch", "--workers", "2", "--serve", "step.py", "schedule.py"]
    done = subprocess.run(
        [*command, "--", "--fast"], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert "squares [0, 1, 4, 9, 16] ['--fast']" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_worker_that_comes_when_the_program_has_ended_ends_too(tmp_path: Path) -> None:
    late = "import os, time\nif os.environ['DPS_TASK'] == '0':\n    time.sleep(4)\n"
    (tmp_path / "step.py").write_text("def square(x):\n    return x * x\n")
    (tmp_path / "late.py").write_text(late + "import step\nsquare = step.square\n")
    (tmp_path / "schedule.py").write_text(
        "import dps, step\n"
        "with dps.Server.from_env() as server, dps.Coordinator(server) as coordinator:\n"
        "    print('square', coordinator.schedule(step.square, (3,)).fetch())\n"
    )
    serve = ["--serve", "late.py", "--serve", "step.py"]
    command = [sys.executable, "-m", "dps.cli", "launch", "--workers", "2", *serve, "schedule.py"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=40)
    assert "square 9" in done.stdout and done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_workers_end_when_the_program_that_schedules_is_killed(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("def square(x):\n    return x * x\n")
    (tmp_path / "schedule.py").write_text(
        "import dps, os, signal, step\n"
        "with dps.Server.from_env() as server, dps.Coordinator(server) as coordinator:\n"
        "    assert coordinator.schedule(step.square, (3,)).fetch() == 9\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-m", "dps.cli", "launch", "--workers", "2", "--serve", "step.py", "schedule.py"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "evaluator:0 ended with SIGKILL; the workers that serve it end, too" in done.stdout + done.stderr
