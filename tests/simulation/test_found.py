"""What the simulator has found, each kept as the run that showed it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.transport.sim import Network, Pause
from tests.simulation.scenario import run, scenario


def train(server: Any) -> int:
    with dps.Session(server, {"a": np.zeros(4)}, optimizer=dps.optim.SGD(1.0)) as session:
        for _ in range(5):
            assert session.push({"a": np.ones(4)}).accepted
    return session.global_step


@pytest.mark.parametrize("seed", range(30))
def test_a_chief_that_stood_still_reads_the_news_before_it_judges(seed: int) -> None:
    stall = Pause("chief", at=0.0001 * (seed % 10), seconds=2.0)
    run = dps.simulate(
        train, ps=1, workers=2, seed=seed, update="sync", faults=[stall], network=Network(latency_s=1e-4)
    )
    assert run.results == [5, 5] and not run.errors
    assert not [e for e in run.trace if e.what in ("worker lost", "ps lost")]


FOUND = [
    ("async", 376, "a ps died between two tries to write the last checkpoint"),
    ("async", 1036, "the disk was full when a restarted chief looked at it"),
    ("sync", 308, "the first step was made without a worker that was admitted and had not entered yet"),
    ("steps", 2577, "a ps was dead when the run ended, and was started again"),
    ("bounded", 811, "an incarnation was used twice after the journal could not be written"),
]


@pytest.mark.parametrize(("mode", "seed", "what"), FOUND, ids=[what for _, _, what in FOUND])
def test_what_seeds_have_found_stays_mended(mode: str, seed: int, what: str) -> None:
    assert not run(scenario(mode, seed))
