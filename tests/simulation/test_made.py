"""Variables that the ps make, in the simulator: the same values whatever is lost before the first checkpoint."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import dps
from dps.kernels.first_values import made
from dps.launch.commands.simulate import SimulatedRun, simulate
from dps.task.server import Server
from dps.transport.sim import Compute, Kill, Network
from dps.transport.sim.world import Fault, Partition, Pause
from dps.transport.tuning import Tuning
from tests.seeds import chunks

TABLE, BIAS = dps.init.Normal(0.5, seed=7), dps.init.HeUniform(seed=3)
SHAPE = 211, 3
QUICK = Tuning.small().where(store__made_nbytes=64)
"""A ps makes the first values of the variables below in some 40 blocks, a millisecond each."""
SLOW = QUICK.where(store__made_pause_s=0.06)
"""Of 40,000 float32, which are 2,500 blocks, a ps makes the first values in 150 s."""
SETTINGS: dict[str, Any] = {"optimizer": dps.optim.SGD(0.5), "timeout": 100.0}


def train(server: Server, steps: int, parts: int, checkpoint_dir: str | None) -> Any:
    """The first values that this worker saw, and its last ones."""
    params = {
        "given": np.arange(40, dtype=np.float32),
        "table": dps.Variable(shape=SHAPE, init=TABLE, sparse=True),
        "b": dps.Variable(shape=(30,), dtype="float64", init=BIAS),
    }
    partitioner = dps.partition.Fixed(parts)
    with dps.Session(server, params, partitioner=partitioner, checkpoint_dir=checkpoint_dir, **SETTINGS) as session:
        first = session.pull()
        for _ in range(steps):
            session.push({"b": np.ones(30), "table": dps.Rows([5], np.ones((1, 3), np.float32))})
        return first, session.pull()


def wanted() -> dict[str, Any]:
    return {
        "given": np.arange(40, dtype=np.float32),
        "table": made(TABLE, "table", SHAPE, "float32"),
        "b": made(BIAS, "b", (30,), "float64"),
    }


def check_values(run: SimulatedRun) -> None:
    """What no push has touched is as it was made; the rest is a whole number of updates away from it."""
    start, untouched = wanted(), np.delete(np.arange(SHAPE[0]), 5)
    for pulled in [values for result in run.results if result is not None for values in result]:
        assert np.array_equal(pulled["table"][untouched], start["table"][untouched])
        assert np.array_equal(pulled["given"], start["given"])
        moved = (start["b"] - pulled["b"]) / 0.5
        assert np.allclose(moved, np.round(moved)) and (moved >= 0).all()
        row = (start["table"][5] - pulled["table"][5]) / 0.5
        assert np.allclose(row, round(float(row[0])), atol=1e-5)


def faults_before_training(draw: random.Random, ps: int) -> list[Fault]:
    """A ps that makes values is lost, the session that sends the others, or the chief; or nobody."""
    faults: list[Fault] = []
    for _ in range(draw.randint(0, 2)):
        at, kind = draw.uniform(0.0, 0.4), draw.choice(["ps", "ps", "ps", "worker", "chief", "cut", "pause"])
        task = f"ps:{draw.randrange(ps)}"
        if kind == "ps":
            faults.append(Kill(task, at, draw.choice([0.05, 0.5])))
        elif kind == "worker":
            faults.append(Kill("worker:0", at, 0.3))
        elif kind == "chief":
            faults.append(Kill("chief", at, 0.2))
        elif kind == "cut":
            faults.append(Partition(task, at, 0.5))
        else:
            faults.append(Pause(task, at, 0.6))
    return faults


def one(mode: str, seed: int) -> SimulatedRun:
    draw = random.Random(f"made {mode} {seed}")
    ps, workers = draw.randint(1, 3), draw.randint(1, 3)
    update = {"sync": "sync", "async": "async", "bounded": "bounded:1", "local": "local:2"}[mode]
    network = Network(latency_s=draw.choice([1e-4, 1e-3, 1e-2]), loss=draw.choice([0.0, 0.03]))
    return simulate(
        train, 2, draw.randint(1, 4), "run" if draw.random() < 0.7 else None, ps=ps, workers=workers, seed=seed,
        update=update, network=network, faults=faults_before_training(draw, ps), compute=Compute(0.05), tuning=QUICK,
        calibration=None,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["async", "bounded", "sync", "local"])
@pytest.mark.parametrize("seeds", chunks(20))
def test_whatever_is_lost_before_training_the_values_are_the_same(mode: str, seeds: range) -> None:
    for seed in seeds:
        run = one(mode, seed)
        if all(result is None for result in run.results):  # a ps that had trained was lost, and nothing was saved
            told = str(run.errors)
            assert "values are gone" in told or "no checkpoint_dir" in told, f"one({mode!r}, {seed}): {told}"
        check_values(run)


@pytest.mark.parametrize("saves", [True, False])
def test_a_ps_that_is_lost_while_it_makes_values_makes_them_again(saves: bool) -> None:
    def run(faults: list[Fault]) -> SimulatedRun:
        where = "run" if saves else None
        return simulate(
            train, 1, 2, where, ps=2, network=Network(latency_s=1e-3), faults=faults, tuning=QUICK, calibration=None
        )

    def times(run: SimulatedRun, what: str) -> list[float]:
        return [event.time_s for event in run.trace if event.what == what]

    plain = run([])
    begun, made_at = times(plain, "epoch")[0], times(plain, "first values")
    assert len(made_at) == 2 and made_at[0] - begun > 0.01
    again = run([Kill("ps:1", (begun + made_at[0]) / 2, 0.5)])
    assert len(times(again, "epoch")) == 2 and set(again.exit_codes.values()) == {0}
    check_values(plain)
    check_values(again)
    first, other = plain.results[0][0], again.results[0][0]
    assert all(np.array_equal(first[name], other[name]) for name in first)
    if saves:
        assert again.files.keys() >= {"run/journal.json"}


def opened(server: Server, timeout_s: float) -> Any:
    params = {"w": dps.Variable(shape=(40_000,), init=TABLE)}
    with dps.Session(server, params, optimizer=dps.optim.SGD(0.5), timeout=timeout_s) as session:
        return session.pull()["w"]


def test_sessions_that_wait_are_told_who_makes_first_values() -> None:
    run = simulate(opened, 10.0, ps=1, network=Network(latency_s=1e-3), tuning=SLOW, calibration=None)
    assert "the chief waits for ps:0, which makes first values, " in run.errors["worker:0"]
    assert "% of 0.2 MB" in run.errors["worker:0"]


def test_a_ps_may_make_values_for_longer_than_one_answer_may_take() -> None:
    """The chief asks again after two minutes, if the ps has come farther."""
    run = simulate(opened, 400.0, ps=1, network=Network(latency_s=1e-3), tuning=SLOW, calibration=None)
    assert run.seconds > 150 and np.array_equal(run.results[0], made(TABLE, "w", (40_000,), "float32"))
