"""Values that workers in sync reduce through a ps, while workers are killed, started again, paused and cut off, and a
ps is lost. Each worker brings a number from which the parts of a sum can be told: 10 ** task."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import dps
from dps.strategy import ParameterServer

ROUGH = dps.sim.Network(loss=0.05, double=0.05, reorder=0.05)
STEPS = 60


def reducing(server: Any, workers: int, folder: str | None = None, twice: bool = True) -> list[tuple[Any, ...]]:
    """Step, accepted, and what two sums after each step were."""
    found = []
    with ParameterServer(server, dps.SyncReplicas(workers, workers), checkpoint_dir=folder, timeout=30) as strategy:
        with strategy.scope():
            variables: Any = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
        share = 10**server.task
        while variables.session.global_step < STEPS:
            push = variables.apply_gradients({"w": np.full(1, -1.0)})
            first = int(strategy.reduce("sum", share))
            second = float(strategy.reduce("mean", float(push.step))) if twice else None
            found.append((push.step, push.accepted, first, second))
    return found


def parts(total: int) -> set[int]:
    """The tasks of whose numbers a sum is made, each once."""
    digits = str(total)[::-1]
    assert set(digits) <= {"0", "1"}, total
    return {task for task, digit in enumerate(digits) if digit == "1"}


FAULTS: dict[str, list[Any]] = {
    "killed": [dps.sim.Kill("worker:1", at=0.7)],
    "started again": [dps.sim.Kill("worker:1", at=0.7, restart_after=0.4)],
    "started again at once": [dps.sim.Kill("worker:1", at=0.7, restart_after=0.01)],
    "paused": [dps.sim.Pause("worker:1", at=0.6, seconds=0.5)],
    "given up": [dps.sim.Pause("worker:2", at=0.6, seconds=1.6)],
    "cut off": [dps.sim.Partition(["worker:0"], at=0.6, seconds=1.6)],
}


@pytest.mark.thinned
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FAULTS)
def test_sums_have_each_worker_that_made_the_step_once_and_are_the_same_for_all(name: str, seed: int) -> None:
    run = dps.simulate(
        reducing, 3, workers=3, ps=1 + seed % 2, seed=seed, faults=FAULTS[name], network=ROUGH,
        compute=dps.sim.Compute(0.05, jitter=0.8),
    )  # fmt: skip
    assert not run.errors, run.errors
    by_step: dict[int, set[tuple[Any, ...]]] = {}
    for task, found in enumerate(run.results):
        if name == "killed" and task == 1:
            continue
        assert found[-1][0] >= STEPS, (task, found)
        for step, accepted, first, second in found:
            by_step.setdefault(step, set()).add((first, second))
            assert not accepted or task in parts(first), (task, step, first)
            assert second == step
    for step, sums in by_step.items():
        assert len(sums) == 1, (step, sums)


@pytest.mark.parametrize("seed", range(6))
def test_a_rollback_leaves_nobody_waiting(seed: int, tmp_path: Any) -> None:
    run = dps.simulate(
        reducing, 2, "run", bool(seed % 2), workers=2, ps=2, seed=seed,
        faults=[dps.sim.Kill(f"ps:{seed % 2}", at=0.5 + 0.03 * seed, restart_after=0.5)],
        compute=dps.sim.Compute(0.05, jitter=0.8),
    )  # fmt: skip
    assert not run.errors, run.errors
    for task, found in enumerate(run.results):
        assert found[-1][0] >= STEPS
        for _, accepted, first, _ in found:
            assert task in parts(first) or not accepted
    whole = [[first for _, accepted, first, _ in found if accepted] for found in run.results]
    assert all(sums.count(11) >= len(sums) - 2 for sums in whole), whole


def test_a_worker_that_goes_on_without_a_call_is_named() -> None:
    def work(server: Any) -> None:
        with ParameterServer(server, dps.SyncReplicas(2, 2)) as strategy:
            with strategy.scope():
                variables = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
            for _ in range(2):
                variables.apply_gradients({"w": np.ones(1)})
                if server.task == 0:
                    strategy.reduce("sum", 1.0)

    words = r"worker:1 went on from step 1 without reduce 'sum' of float64\[\]; all workers must make the same calls"
    run = dps.simulate(work, workers=2)
    assert list(run.errors) == ["worker:0"]
    assert re.search(words, run.errors["worker:0"]), run.errors


@pytest.mark.parametrize("other", [("max", 1.0), ("sum", np.ones(2)), ("sum", 1)])
def test_calls_that_differ_are_told_apart(other: Any) -> None:
    def work(server: Any) -> None:
        with ParameterServer(server, dps.SyncReplicas(2, 2)) as strategy:
            with strategy.scope():
                strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
            strategy.reduce(*(other if server.task else ("sum", 1.0)))

    run = dps.simulate(work, workers=2)
    assert set(run.errors) == {"worker:0", "worker:1"}
    assert all("all workers must make the same calls" in text for text in run.errors.values()), run.errors


def test_a_wait_names_the_worker_that_has_not_come() -> None:
    def work(server: Any) -> None:
        with ParameterServer(server, dps.SyncReplicas(2, 2), timeout=5) as strategy:
            with strategy.scope():
                strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
            if server.task == 1:
                server.runtime.sleep(20)
            strategy.reduce("sum", 1.0)

    run = dps.simulate(work, workers=2)
    assert "reduce 'sum' of float64[] at step 0 waits for worker:1" in run.errors["worker:0"], run.errors


def test_a_worker_that_was_started_again_reduces_after_its_first_step_or_is_told_so() -> None:
    def work(server: Any) -> Any:
        with ParameterServer(server, dps.SyncReplicas(2, 2), timeout=30) as strategy:
            with strategy.scope():
                variables: Any = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
            strategy.reduce("sum", 1.0)  # the number of examples, say
            for _ in range(30):
                variables.apply_gradients({"w": np.ones(1)})
                strategy.reduce("sum", 5.0)

    faults = [dps.sim.Kill("worker:1", at=0.7, restart_after=0.3)]
    run = dps.simulate(work, workers=2, faults=faults, compute=dps.sim.Compute(0.05))
    words = "worker:1 has made no step since it came at step"
    assert words in run.errors["worker:1"] and "worker:0" not in run.errors, run.errors


def test_a_reduction_before_there_are_variables_says_what_to_do() -> None:
    def work(server: Any) -> None:
        ParameterServer(server, dps.SyncReplicas(2, 2)).reduce("sum", 1.0)

    run = dps.simulate(work, workers=2)
    assert "make the variables first" in run.errors["worker:0"]
