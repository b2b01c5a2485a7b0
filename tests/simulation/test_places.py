"""Tasks that are killed and restarted at once without an index, and tasks that want a place that is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.launch.commands.simulate import CHIEF, SimulatedCluster, SimulatedRun
from dps.task.server import Server
from dps.transport.current import runtime
from dps.transport.sim import Compute, Kill, Network

STEPS = 60


class Unnumbered(SimulatedCluster):
    """Its ps have no index of their own, and `port`; `more` is one more task, a job and an index, which comes at
    `more_at` s."""

    def __init__(
        self, *args: Any, more: tuple[str, int | None] = ("", 0), more_at: float = 3.0, port: int = 0, **settings: Any
    ) -> None:
        self.port, self.more, self.more_at = port, tuple[float, int, str](), more_at
        super().__init__(*args, compute=Compute(1.0), **settings)
        if more[0]:
            self.world.process("more", lambda: self._come(*more))

    def _serve(self, job: str, task: int, ps: int, workers: int, update: Any) -> int:
        restarted = job == "chief" and self.world.processes["chief"].incarnation > 0
        bind, index = CHIEF if job == "chief" else f"{job}{task}:{self.port}", 0 if job == "chief" else None
        server = Server(None, job, index, chief=CHIEF, bind=bind, ps=ps, workers=workers, restarted=restarted)
        return server.join() or 0

    def _come(self, job: str, task: int | None) -> int:
        runtime().sleep(self.more_at)
        server = Server(None, job, task, chief=CHIEF, bind="more:0")
        code = server.join() or 0
        self.more = self.world.now, code, server.reason
        server.stop()
        return code


def train(server: Any) -> int:
    first = {"a": np.zeros(2), "b": np.zeros(3)}
    with dps.Session(server, first, optimizer=dps.optim.SGD(1.0), checkpoint_dir="run") as session:
        while session.global_step < STEPS:
            session.push({"a": np.ones(2), "b": np.ones(3)})
        return session.global_step


def run(ps: int = 1, detect_s: float = 0.02, **settings: Any) -> tuple[SimulatedRun, Unnumbered]:
    network = Network(latency_s=1e-3, detect_s=detect_s)
    with Unnumbered(train, ps=ps, workers=2, network=network, **settings) as cluster:
        return cluster.run(), cluster


@pytest.mark.parametrize("ps", [1, 3])
@pytest.mark.parametrize("detect_s", [0.02, 0.5, 4.0])
def test_a_ps_that_is_restarted_at_once_without_an_index_gets_its_old_one(ps: int, detect_s: float) -> None:
    done, _ = run(ps, detect_s, faults=[Kill("ps:0", at=10.0, restart_after=0.1)])
    assert not done.errors and set(done.exit_codes.values()) == {0} and done.seconds < STEPS + 20


@pytest.mark.parametrize("detect_s", [0.02, 4.0])
def test_so_it_does_at_the_port_of_the_lost_one(detect_s: float) -> None:
    done, _ = run(2, detect_s, faults=[Kill("ps:1", at=10.0, restart_after=0.1)], port=7000)
    assert not done.errors and set(done.exit_codes.values()) == {0} and done.seconds < STEPS + 20


def test_a_ps_that_nobody_needs_is_told_so_when_all_others_are_certainly_there() -> None:
    done, cluster = run(2, more=("ps", None))
    at, code, reason = cluster.more
    assert at < 3.0 + 10.0 and code == 2 and not done.errors
    assert reason.startswith("this cluster has 2 ps, all are there (ps:0 at ps") and reason.endswith("--ps 3")


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_who_wants_a_name_that_is_taken_is_told_by_whom(job: str) -> None:
    done, cluster = run(1, more=(job, 0))
    at, code, reason = cluster.more
    assert at < 3.0 + 10.0 and code == 2 and not done.errors
    assert reason.startswith(f"{job}:0 is taken: another process is {job}:0, at {job}0:") and "--task" in reason


@pytest.mark.parametrize("more_at", [28.5, 29.0, 30.0])
def test_who_waits_for_a_name_that_is_taken_is_told_of_the_end_of_the_run(more_at: float) -> None:
    """It waited for the chief for a minute, and ended with 3."""
    done, cluster = run(1, more=("ps", 0), more_at=more_at)
    at, code, _ = cluster.more
    assert at <= done.seconds < 40 and code == 0 and not done.errors


def test_a_worker_beyond_those_that_are_expected_joins_at_once() -> None:
    done, cluster = run(1, more=("worker", None))
    assert cluster.more[1:] == (0, "") and not done.errors


def test_a_ps_with_an_index_beyond_those_of_the_run_is_refused_at_once() -> None:
    done, cluster = run(2, more=("ps", 5))
    at, code, reason = cluster.more
    assert at < 3.0 + 1.0 and code == 2 and not done.errors
    assert reason.startswith("this cluster has 2 ps, and ps:5 is not one of them") and reason.endswith("--ps 6")
