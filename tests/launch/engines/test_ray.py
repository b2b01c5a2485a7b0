"""Runs on a real Ray with a head and another node: their bits, and an actor that is lost."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.engines.programs import bits, write
from tests.launch.engines.raylets import PYTHON, Ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def ray() -> Iterator[Ray]:
    made = Ray()
    yield made
    made.close()


def launch(folder: Path, ray: Ray, *more: str) -> subprocess.Popen[str]:
    """Start `dps launch` with the Python that has Ray."""
    environ = os.environ | ray.environ | {"DPS_RUNS": str(folder / "runs")}
    return subprocess.Popen(
        [PYTHON, "-m", "dps.cli", "launch", *more, "experiment.yaml"], cwd=folder, env=environ, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_the_final_bits_are_those_of_this_machine(tmp_path: Path, ray: Ray) -> None:
    write(tmp_path, "resources: {cpus: 1}\n")
    for more in ((), ("--on", "ray")):
        with launch(tmp_path, ray, *more) as process:
            said, _ = process.communicate(timeout=100)
            assert process.returncode == 0, said
    assert bits(tmp_path / "runs" / "1") == bits(tmp_path / "runs" / "2")


def test_a_lost_actor_costs_a_rollback_and_its_task_comes_back(tmp_path: Path, ray: Ray) -> None:
    write(tmp_path, "resources: {cpus: 1}\n")
    with launch(tmp_path, ray, "--on", "ray", "--set", "steps=200", "--set", "pause=0.01") as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "000000000040" in line and "is lost" not in said:
                os.kill(parent_of("--job", "worker", "--task", "1"), signal.SIGKILL)
        assert process.wait(60) == 0, said
    assert "is lost" in said and "worker:1 is started on" in said and said.count("ends at 200") >= 1, said


def parent_of(*words: str) -> int:
    """The process that has started the task with these words in its command line."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                command = Path(f"/proc/{name}/cmdline").read_text().split("\0")
                if "dps.role" in command and " ".join(words) in " ".join(command):
                    return int(Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2].split()[1])
            except OSError:
                continue
    raise AssertionError(f"no process with {words}")
