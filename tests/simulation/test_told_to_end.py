"""Tasks that are told to end while a run goes on: what is saved, who goes on, and with which exit codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.launch.commands.simulate import CHIEF, SimulatedCluster, SimulatedRun
from dps.task.server import Server
from dps.transport.sim import Compute
from dps.worker.agent import LEFT

TOLD_AT_S = 3.0


class Told(SimulatedCluster):
    """`told`: the tasks that are told to end, all at one time; `again`: a ps that left is started again."""

    def __init__(self, *args: Any, told: tuple[str, ...], again: bool = False, **settings: Any) -> None:
        self.told, self.again = told, again
        super().__init__(*args, compute=Compute(0.1), **settings)

    def _serve(self, job: str, task: int, ps: int, workers: int, update: Any) -> int:
        name = job if job == "chief" else f"{job}:{task}"
        bind = CHIEF if job == "chief" else f"{job}{task}:0"
        server = Server(None, job, task, chief=CHIEF, bind=bind, ps=ps, workers=workers, update=update)
        if name in self.told:
            assert server.join(TOLD_AT_S) is None
            server.end_in_order("was told to end (SIGTERM)")
        if server.join() == LEFT and self.again:
            server = Server(None, job, task, chief=CHIEF, bind=bind)
        return server.join() or 0


def trains(server: Server, stops: bool = True, steps: int = 100, **settings: Any) -> tuple[int, int]:
    """Its loop's last step, and how many rollbacks it saw. None of them takes back a step that was accepted."""
    seen = {"rolled back": 0, "accepted": 0}

    class Counts(dps.Hook):
        def rolled_back(self, session: dps.Session, step: int, lost: int) -> None:
            seen["rolled back"] += 1
            assert lost == 0 and step >= seen["accepted"]

    made = {"v": np.zeros(4, np.float32), "w": np.zeros(4, np.float32)}
    hooks = [dps.StopAtStep(last_step=steps), Counts()]
    with dps.Session(server, made, optimizer=dps.optim.SGD(1.0), hooks=hooks, timeout=90, **settings) as session:
        while not (session.should_stop() if stops else session.global_step >= steps):
            push = session.push({"v": np.ones(4, np.float32), "w": np.ones(4, np.float32)})
            seen["accepted"] = push.step if push.accepted else seen["accepted"]
        return int(-session.pull()["w"][0]), seen["rolled back"]


def told(*tasks: str, update: str = "async", again: bool = False, **settings: Any) -> tuple[SimulatedRun, list[str]]:
    """The run, and the checkpoints that are left."""
    folder = settings.get("checkpoint_dir")
    with Told(
        lambda server: trains(server, **settings), ps=2, workers=2, update=update, told=tasks, again=again
    ) as cluster:
        run = cluster.run()
        return run, cluster.world.storage.names(folder) if folder else []


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_chief_that_is_told_to_end_has_the_workers_stop_and_saves_the_last_step(update: str) -> None:
    run, kept = told("chief", update=update, checkpoint_dir="run")
    assert not run.errors and set(run.exit_codes.values()) == {0}
    last = max(step for step, _ in run.results)
    assert 20 < last < 70 and f"step-{last:012}-epoch-000001" in kept


def test_a_worker_that_does_not_stop_holds_up_the_end_for_twenty_seconds() -> None:
    run, kept = told("chief", checkpoint_dir="run", stops=False, steps=1000)
    assert TOLD_AT_S + 20 < run.seconds < TOLD_AT_S + 22
    assert run.exit_codes["chief"] == run.exit_codes["ps:0"] == 0
    assert set(run.errors.values()) == {"TaskLost: the chief was told to end (SIGTERM)"}
    assert max(int(name.split("-")[1]) for name in kept if name.startswith("step-")) > 300


def test_without_workers_a_chief_that_is_told_to_end_ends_at_once() -> None:
    with Told(lambda server: server.runtime.sleep(30.0), ps=1, workers=1, told=("chief",)) as cluster:
        run = cluster.run()
    assert run.exit_codes["chief"] == run.exit_codes["ps:0"] == 0 and run.seconds < 31
    exits = {e.process: e.time_s for e in run.trace if e.what == "exit"}
    assert exits["chief"] < TOLD_AT_S + 1


@pytest.mark.parametrize("update", ["async", "sync"])
@pytest.mark.parametrize("tasks", [("ps:1",), ("ps:0", "ps:1")])
def test_a_ps_that_is_told_to_end_saves_first_and_the_one_in_its_place_goes_on(
    update: str, tasks: tuple[str, ...]
) -> None:
    run, kept = told(*tasks, update=update, checkpoint_dir="run", again=True)
    assert not run.errors and set(run.exit_codes.values()) == {0}
    assert [rolled_back for _, rolled_back in run.results] == [1, 1]
    (again,) = [e for e in run.trace if e.what == "epoch" and e.detail["epoch"] == 2]
    assert again.detail["step"] > 20
    last = (100,) if update == "sync" else (100, 101)  # both workers may make the last step
    assert any(f"step-{step:012}-epoch-000002" in kept for step in last)


def test_a_ps_that_is_told_to_end_without_a_checkpoint_dir_ends_the_run_with_3_and_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, _ = told("ps:1")
    assert not run.errors and all(20 < step < 90 for step, _ in run.results)
    assert run.exit_codes == {"chief": 3, "ps:0": 3, "ps:1": 3, "worker:0": 0, "worker:1": 0}
    assert "ps:1 was told to end (SIGTERM): without a checkpoint_dir its values are lost" in caplog.text


@pytest.mark.parametrize("folder", [{}, {"checkpoint_dir": "run"}])
def test_where_all_tasks_are_told_at_once_the_ps_stay_until_the_workers_have_stopped(folder: dict[str, str]) -> None:
    run, _ = told("ps:0", "ps:1", "chief", **folder)
    assert not run.errors and set(run.exit_codes.values()) == {0}
    assert all(rolled_back == 0 for _, rolled_back in run.results)
