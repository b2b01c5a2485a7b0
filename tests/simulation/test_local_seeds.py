"""Local mode under faults: every common value is the sum of whole rounds, and what is lost of a round is told."""

from __future__ import annotations

import logging
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dps
from dps.client.local import LocalTraining
from dps.transport.sim import Compute, Network, Partition, Pause
from dps.variables.local_copy import LocalCopy
from tests.seeds import chunks

ROUND = 4


class Told(dps.Hook):
    """How many steps of rounds that ended without this session were told."""

    def __init__(self) -> None:
        self.lost = 0

    def rolled_back(self, session: Any, step: int, lost: int) -> None:
        self.lost += lost


def work(server: Any, rounds: int, workers: int) -> Any:
    """Each step moves the worker's own element by 1. What its pushes returned, how many steps were told as lost, and
    the values at the end."""
    told, pushes = Told(), []
    one = np.zeros(workers)
    one[server.task] = -1.0
    with dps.Session(
        server,
        {"w": np.zeros(workers)},
        optimizer=dps.optim.SGD(1.0),
        update=dps.Local(ROUND),
        hooks=[told],
        timeout=300,
    ) as session:
        for _ in range(rounds * ROUND):
            server.runtime.compute()
            pushes.append(session.push({"w": one}))
        if server.task == 0:
            server.runtime.sleep(15.0)  # the run goes on until those that stand still are back
        values = session.pull()["w"]
    return pushes, told.lost, values


def broken(seed: int) -> list[str]:
    """The promises that a seed breaks."""
    draw = random.Random(f"{seed}/local")
    workers, rounds = draw.randint(1, 4), draw.randint(2, 6)
    faults: list[Any] = []
    for task in range(1, workers):
        if draw.random() < 0.5:
            kind = Pause(f"worker:{task}", at=draw.uniform(0.2, 3.0), seconds=draw.choice([0.3, 3.0, 9.0]))
            faults.append(kind)
    if draw.random() < 0.4:
        at = draw.uniform(0.2, 3.0)
        faults.append(Partition("ps:0", at=at, seconds=draw.choice([0.3, 2.0])))
    network = Network(latency_s=1e-3, loss=draw.choice([0, 0.05]), double=draw.choice([0, 0.05]), reorder=0.05)
    run = dps.simulate(
        work, rounds, workers, ps=draw.randint(1, 3), workers=workers, seed=seed, network=network, faults=faults,
        compute=Compute(0.2, jitter=0.5), calibration=None,
    )  # fmt: skip
    if run.errors:
        return [f"seed {seed}: {run.errors}"]
    found, of_round = [], dict[int, set[int]]()
    for task, (pushes, told, _) in enumerate(run.results):
        lost = 0
        for first in range(0, len(pushes), ROUND):
            last = pushes[first : first + ROUND][-1]
            if last.accepted:
                of_round.setdefault(last.step, set()).add(task)
            else:
                lost += ROUND
        if told != lost:
            found.append(f"seed {seed}: worker:{task} lost {lost} steps of rounds, and was told of {told}")
    values, after = {0: [Fraction(0)] * workers}, [Fraction(0)] * workers
    for step in sorted(of_round):
        share = Fraction(ROUND, len(of_round[step]))
        after = [value + share * (task in of_round[step]) for task, value in enumerate(after)]
        values[step] = after
    for task, (_, _, last_values) in enumerate(run.results):
        if not any(np.allclose(last_values, [float(v) for v in each], rtol=1e-12) for each in values.values()):
            found.append(f"seed {seed}: worker:{task} ends with {last_values}, of the rounds {of_round}")
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", chunks(20))
def test_rounds_are_whole_and_what_is_lost_of_them_is_told(seeds: range, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        for seed in seeds:
            assert not (found := broken(seed)), "\n".join(found)


def says_nothing(self: LocalTraining) -> None:
    self._own.steps = 0


moved = LocalCopy.differences


@pytest.mark.parametrize(
    ("cls", "name", "mutant"),
    [
        (LocalTraining, "_tell_lost", says_nothing),
        (LocalCopy, "differences", lambda self: {index: array * 0.75 for index, array in moved(self).items()}),
    ],
)
def test_planted_bugs_are_found(cls: type, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cls, name, mutant)
    assert any(broken(seed) for seed in range(100)), f"no seed notices a broken {name}"
