"""What a host that goes costs the others.

With a notice: no step. Without one: the steps since the checkpoint at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dps.launch.hosts.remote import HostSpec, RemoteHost
from dps.launch.supervision.plan import Job, RunPlan
from dps.launch.supervision.supervisor import Supervisor
from tests.launch.clusters.test_local_processes import until
from tests.launch.engines.test_hosts import Fake

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys, time
import numpy as np, dps
with dps.Server.from_env() as server, dps.Session(
    server, {"w": np.zeros(1000, np.float32)}, optimizer=dps.optim.SGD(1.0), timeout=60,
    hooks=[dps.CheckpointSaver(steps=50)], checkpoint_dir=os.environ["OUTPUT_DIR"],
) as session:
    print("opened at", session.global_step, flush=True)
    while not session.should_stop() and not os.path.exists(os.path.join(os.environ["OUTPUT_DIR"], "enough")):
        push = session.push({"w": np.full(1000, -1, np.float32)})
        print("pushed", push.step, push.accepted, session.version.epoch, flush=True)
        time.sleep(0.01)
    if server.task == 0:
        print("ends at", session.global_step, session.pull()["w"].max(), flush=True)
"""


class Run:
    """A run on seven hosts: a chief, a ps and two workers have one each, and there are three more."""

    def __init__(self, folder: Path, update: str) -> None:
        (folder / "program.py").write_text(PROGRAM)
        self._folder = folder / "output"
        self._folder.mkdir()
        self.lines: dict[str, list[str]] = {}
        roles = {"a": ("chief",), "b": ("ps",), "c": ("worker",), "d": ("worker",)}
        roles |= {"e": ("worker",), "f": ("ps",), "g": ("ps",)}
        places = [HostSpec(name, 1, takes, address="127.0.0.1") for name, takes in roles.items()]
        self.engine = Fake(*places)
        jobs = {"chief": Job(), "ps": Job(restarts=1), "worker": Job(2, (str(folder / "program.py"),), restarts=1)}
        env = {"DPS_TRUSTED_NETWORK": "1", "OUTPUT_DIR": str(self._folder)}
        self.supervisor = Supervisor(RunPlan(jobs, update, env), self._line, engine=self.engine)
        self.supervisor.start()

    def _line(self, name: str, text: str) -> None:
        self.lines.setdefault(name, []).append(text)

    def until(self, name: str, words: str, count: int = 1) -> None:
        """Supervise until a task has printed so many lines with these words. Blocks."""
        until(lambda: self.supervisor.handle_next_end(0.02) or self.count(name, words) >= count)

    def count(self, name: str, words: str) -> int:
        return sum(words in text for text in self.lines.get(name, ()))

    def steps(self) -> list[int]:
        """The steps of all accepted pushes."""
        return sorted(step for name in ("worker:0", "worker:1") for step, how, _ in self.pushes(name) if how == "True")

    def rolled_back(self, name: str) -> list[int]:
        """The steps to which a worker was rolled back."""
        found = (re.match(r"rolled back to step (\d+)", text) for text in self.lines[name])
        return [int(each[1]) for each in found if each]

    def saved(self) -> int:
        """The step of the newest checkpoint."""
        steps = [
            int(text.rpartition("step-")[2].partition("-")[0]) for text in self.lines["chief"] if "saved /" in text
        ]
        return max(steps)

    def host(self, name: str) -> RemoteHost:
        return next(host for host in self.engine._hosts if host.name == self.supervisor.tasks.children[name].host)

    def pushes(self, name: str) -> list[tuple[int, str, int]]:
        """Of each push of a worker its step, whether it was accepted, and its run epoch."""
        found = (re.match(r"pushed (\d+) (\w+) (\d+)", text) for text in self.lines.get(name, ()))
        return [(int(each[1]), each[2], int(each[3])) for each in found if each]

    def end(self) -> int:
        """Have the workers end; returns the last step."""
        (self._folder / "enough").touch()
        assert self.supervisor.wait() == 0, self.lines
        (found,) = [re.match(r"ends at (\d+)", text) for text in self.lines["worker:0"] if "ends at" in text]
        assert found
        return int(found[1])


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.supervisor.stop()


@pytest.mark.parametrize("update", [pytest.param("async", marks=pytest.mark.nightly), "sync"])
def test_what_a_host_that_goes_costs_the_others(runs: list[Run], tmp_path: Path, update: str) -> None:
    runs.append(run := Run(tmp_path, update))
    run.until("worker:0", "pushed", 20)
    run.until("worker:1", "pushed", 20)

    run.host("worker:1").take_notice("a test says so")
    run.until("worker:1", "opened at", 2)
    run.until("worker:1", "pushed", run.count("worker:1", "pushed") + 10)
    assert run.supervisor.tasks.children["worker:1"].host == "e"
    assert {(how, epoch) for name in ("worker:0", "worker:1") for _, how, epoch in run.pushes(name)} == {("True", 1)}
    assert not run.rolled_back("worker:0")
    own, each = [step for step, _, _ in run.pushes("worker:0")], run.steps()
    if update == "async":
        assert set(range(1, own[-1])) <= set(each) and len(each) == len(set(each)), (
            "each push is one step, none is lost"
        )
    else:
        assert own == list(range(1, len(own) + 1)), "no step without the other worker, none twice"

    before = run.pushes("worker:0")[-1][0]
    run.host("ps:0").take_notice("a test says so")
    run.until("worker:0", "rolled back")
    assert run.supervisor.tasks.children["ps:0"].host in ("f", "g")
    assert run.rolled_back("worker:0")[0] >= before, "what was there when the notice came is saved"
    run.until("worker:0", "pushed", run.count("worker:0", "pushed") + 60)
    own = [step for step, how, _ in run.pushes("worker:0") if how == "True"]
    assert own == sorted(set(own)), "no step is made again that was accepted"
    assert re.search(r"rolled back to step \d+ in run epoch 2, 0 steps lost", "\n".join(run.lines["worker:0"]))

    saved = run.saved()
    run.host("ps:0").cut_connection("a test says so")
    run.until("worker:0", "rolled back", 2)
    assert run.rolled_back("worker:0")[1] >= saved
    run.until("worker:0", "pushed", run.count("worker:0", "pushed") + 10)
    last = run.end()
    assert last >= run.rolled_back("worker:0")[1] + 10
