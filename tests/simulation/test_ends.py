"""How long the end of a run takes, in virtual seconds: workers that end say so, and nobody waits for them."""

from __future__ import annotations

import numpy as np
import pytest

import dps
from dps.chief.cluster import GRACE_S
from dps.launch.commands.simulate import SimulatedRun, simulate
from dps.task.server import Server
from dps.transport.sim import Compute, Kill, Network
from dps.transport.sim.runtime import EPOCH_S
from dps.transport.sim.world import Fault, Partition

SOON_S = 0.5
"""The chief goes on answering for 0.2 s."""


def train(server: Server, steps: int, apart_s: float) -> float:
    """Steps, one worker after the other at the end; the second at which it was over."""
    with dps.Session(server, {"w": np.zeros(4, np.float32)}, optimizer=dps.optim.SGD(0.1), timeout=60) as session:
        for _ in range(steps):
            session.push(session.pull())
    server.runtime.sleep(apart_s * server.task)
    return server.runtime.wall() - EPOCH_S


def few_steps(server: Server, checkpoint_dir: str | None) -> int:
    first = {"w": np.zeros(4, np.float32)}
    with dps.Session(
        server, first, optimizer=dps.optim.SGD(0.1), update="sync", checkpoint_dir=checkpoint_dir, timeout=60
    ) as session:
        for _ in range(5):
            session.push(session.pull())
        return session.global_step


def ended(
    workers: int, update: str, apart_s: float = 0.0, faults: tuple[Fault, ...] = ()
) -> tuple[SimulatedRun, float]:
    """A run, and the virtual seconds from the end of the last program to that of the last task."""
    network = Network(latency_s=1e-3)
    run = simulate(
        train, 20, apart_s, ps=2, workers=workers, update=update, network=network, faults=faults, calibration=None
    )
    return run, run.seconds - max(at for at in run.results if at is not None)


@pytest.mark.parametrize("update", ["async", "sync", "bounded:1"])
@pytest.mark.parametrize("apart_s", [0.0, 0.3])
def test_a_run_ends_soon_after_its_last_worker_whether_they_end_at_once_or_one_by_one(
    update: str, apart_s: float
) -> None:
    run, took_s = ended(4, update, apart_s)
    assert set(run.exit_codes.values()) == {0} and -0.001 < took_s < SOON_S  # the clock of people has fewer digits


def test_a_worker_that_was_killed_says_nothing_and_is_missed_after_its_grace() -> None:
    run, took_s = ended(2, "async", faults=(Kill("worker:1", 0.1),))
    assert run.results[1] is None and run.exit_codes["chief"] == 0
    assert GRACE_S - 0.1 < took_s < GRACE_S + SOON_S


def test_a_partition_that_outlasts_all_workers_ends_the_run_with_3_and_their_names() -> None:
    def works(server: Server) -> None:
        with dps.Session(server, {"w": np.zeros(4, np.float32)}, optimizer=dps.optim.SGD(0.1), timeout=60) as session:
            while not session.should_stop():
                session.push(session.pull())

    fault = Partition(("worker:0", "worker:1"), at=1.0, seconds=57.0)
    run = simulate(works, ps=1, workers=2, compute=Compute(0.1), faults=[fault], calibration=None)
    assert run.exit_codes["chief"] == run.exit_codes["ps:0"] == 3
    assert run.errors["worker:0"].startswith("TaskLost: no worker finished: worker:0 was silent for ")
    assert ", worker:1 was silent for " in run.errors["worker:0"]


@pytest.mark.parametrize("checkpoint_dir", [None, "run"])
def test_workers_that_finish_while_the_chief_is_away_wait_for_it(checkpoint_dir: str | None) -> None:
    faults = (Kill("chief", 1.0, restart_after=30.0),)
    run = simulate(few_steps, checkpoint_dir, ps=1, workers=2, compute=Compute(0.5), faults=faults, calibration=None)
    assert run.results == [5, 5] and set(run.exit_codes.values()) == {0} and 31.0 < run.seconds < 35.0


def test_a_worker_that_finished_waits_45_s_for_a_chief_that_stays_away(caplog: pytest.LogCaptureFixture) -> None:
    run = simulate(
        few_steps, None, ps=1, workers=1, compute=Compute(0.5), faults=[Kill("chief", 1.0, 500.0)], calibration=None
    )
    assert run.results == [5] and run.exit_codes["worker:0"] == 0 and run.exit_codes["ps:0"] == 3
    said = "worker:0: has finished, and waits up to 40 s until the chief at chief:2220 knows"
    assert said in [record.message for record in caplog.records]


def test_where_goodbyes_are_lost_the_run_ends_all_the_same() -> None:
    network = Network(latency_s=1e-3, loss=0.3)
    for seed in range(5):
        run = simulate(train, 5, 0.0, ps=2, workers=3, update="async", network=network, seed=seed, calibration=None)
        assert set(run.exit_codes.values()) == {0}
