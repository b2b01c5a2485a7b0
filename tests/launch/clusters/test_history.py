"""The history of a run: a row for each push, and when it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps


def push_three(server: Any) -> int:
    with dps.Session(server, {"w": np.zeros(2, np.float32)}, optimizer=dps.optim.SGD(1.0)) as session:
        for loss in (3.0, 2.0, 1.0):
            session.pull()
            session.push({"w": np.ones(2, np.float32)}, loss=loss)
    return server.task


def test_a_simulated_run_says_at_which_virtual_second_each_push_was() -> None:
    run = dps.simulate(push_three, workers=2, seed=1, compute=dps.sim.Compute(seconds=1.0, slow={1: 2.0}))
    by_worker = {name: [row for row in run.history if row["worker"] == name] for name in ("worker:0", "worker:1")}
    assert len(run.history) == 6
    assert [row["loss"] for row in by_worker["worker:0"]] == [3.0, 2.0, 1.0]
    for name, seconds in (("worker:0", 1.0), ("worker:1", 2.0)):
        times = [row["at"] for row in by_worker[name]]
        assert np.diff(times) == pytest.approx([seconds, seconds], abs=0.05)  # the rest is the network's
    assert [row["at"] for row in run.history] == sorted(row["at"] for row in run.history)


def test_one_simulation_does_not_hear_of_the_next() -> None:
    first = dps.simulate(push_three, seed=1)
    dps.simulate(push_three, seed=2)
    assert len(first.history) == 3


def test_a_local_run_says_how_long_after_its_beginning_each_push_was() -> None:
    with dps.LocalCluster(ps=1, workers=1, processes=False) as local:
        run = local.run(push_three).wait(30)
    times = [row["at"] for row in run.history]
    assert len(times) == 3 and times[0] >= 0 and times == sorted(times) and times[-1] < 30
