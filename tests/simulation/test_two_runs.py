"""Two simulated runs with one checkpoint_dir on one disk: one of them trains, the other one is told who has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import dps
from dps.checkpoint import MemoryStorage, candidates
from dps.errors import CheckpointError
from dps.task.server import Server
from dps.transport.sim import World
from dps.transport.sim.process import SimProcess

DIR = "shared"
LOCK = f"{DIR}/run.lock"


def train(chief: str, name: str, steps: int) -> int:
    server = Server(None, "worker", 0, chief=chief, bind=f"{name}worker:0")
    try:
        params = {"w": np.zeros(2)}
        hooks = [dps.StopAtStep(last_step=steps), dps.CheckpointSaver(steps=5)]
        with dps.Session(server, params, optimizer=dps.optim.SGD(1.0), checkpoint_dir=DIR, hooks=hooks) as session:
            while not session.should_stop():
                session.push({"w": np.ones(2)})
            return session.global_step
    finally:
        server.stop()


class Runs:
    """Each has a chief, a ps and a worker; a step takes a second."""

    def __init__(self, world: World) -> None:
        self.world = world

    def start(self, name: str, steps: int, restarts: int = 0) -> None:
        chief = f"{name}chief:2220"

        def serve(job: str) -> int:
            restarted = self.world.processes[f"{name}{job}"].incarnation > 0
            bind = chief if job == "chief" else f"{name}{job}:0"
            server = Server(None, job, 0, chief=chief, bind=bind, ps=1, workers=1, restarted=restarted)
            return server.join() or 0

        for job in ("chief", "ps"):
            self.world.process(f"{name}{job}", lambda job=job: serve(job), restarts=restarts)
        self.world.process(f"{name}worker", lambda: train(chief, name, steps) and 0)

    def __getitem__(self, name: str) -> SimProcess:
        return self.world.processes[name]


@contextmanager
def runs(seed: int = 0, **more: Any) -> Iterator[Runs]:
    world = World(seed, compute=dps.sim.Compute(1.0), **more)
    try:
        yield Runs(world)
    finally:
        world.close()


def names(runs: Runs) -> list[str]:
    return candidates(runs.world.storage, DIR)


@pytest.mark.parametrize("seed", range(5))
def test_of_two_runs_that_begin_together_one_trains_and_the_other_is_told_who_has_the_directory(seed: int) -> None:
    with runs(seed) as both:
        both.start("a", 20)
        both.start("b", 30)
        both.world.run(120.0)
        ended = {name: both[f"{name}worker"].error for name in "ab"}
        refused = [name for name, error in ended.items() if error is not None]
        assert len(refused) == 1
        error, (other,) = ended[refused[0]], [name for name in "ab" if name not in refused]
        assert isinstance(error, CheckpointError) and f"another run, whose chief is {other}chief:2220" in str(error)
        assert both[f"{other}chief"].exit_code == 0
        assert names(both)[0].startswith(f"step-{20 if other == 'a' else 30:012d}")
        assert not both.world.storage.exists(LOCK)


def test_one_that_comes_after_the_other_goes_on_where_it_ended() -> None:
    with runs() as both:
        both.start("a", 7)
        both.world.run(60.0)
        both.start("b", 12)
        both.world.run(120.0)
        assert both["bworker"].error is None and names(both)[0].startswith("step-000000000012-epoch-000002")


@pytest.mark.parametrize("locks", [True, False])
def test_the_lock_of_a_run_whose_processes_were_killed_is_broken(locks: bool) -> None:
    with runs(storage=MemoryStorage(locks=locks)) as both:
        both.start("a", 1000)
        both.world.run(12.5)
        for job in ("chief", "ps", "worker"):
            both.world.kill(f"a{job}")
        assert both.world.storage.exists(LOCK)
        both.start("b", 30)
        both.world.run(120.0)
        assert both["bworker"].error is None and both["bchief"].exit_code == 0
        assert names(both)[0].startswith("step-000000000030-epoch-000002")


def test_where_the_disk_has_no_locks_a_run_that_goes_on_is_found_by_its_beats() -> None:
    with runs(storage=MemoryStorage(locks=False)) as both:
        both.start("a", 60)
        both.world.run(10.0)
        both.start("b", 100)
        both.world.run(200.0)
        assert "another run, whose chief is achief:2220" in str(both["bworker"].error)
        assert both["aworker"].exit_code == 0 and names(both)[0].startswith("step-000000000060-epoch-000001")


def test_a_run_that_was_stopped_so_long_that_its_lock_was_broken_fails_and_leaves_the_other_ones_alone() -> None:
    with runs(storage=MemoryStorage(locks=False)) as both:
        both.start("a", 500)
        both.world.run(10.0)
        both.world.pause("achief", 40.0)
        both.start("b", 60)
        both.world.run(200.0)
        assert both["achief"].exit_code == 3 and "another run has taken" in str(both["aworker"].error)
        assert both["bchief"].exit_code == 0 and names(both)[0].startswith("step-000000000060-epoch-000002")


def test_a_chief_that_was_killed_and_started_again_takes_its_lock_up_again() -> None:
    with runs() as both:
        both.start("a", 60, restarts=1)
        both.world.run(5.5)
        both.world.kill("achief")
        both.world.run(6.5)
        both.world.kill("aps")  # a rollback: its sessions ask the new chief for another epoch
        both.world.run(20.0)
        lock = both.world.storage.read(LOCK)
        assert both["achief"].incarnation == 1 and b'"chief": "achief:2220"' in bytes(lock)
        both.start("b", 100)
        both.world.run(200.0)
        assert "another run, whose chief is achief:2220" in str(both["bworker"].error)
        assert both["aworker"].error is None and both["achief"].exit_code == 0
