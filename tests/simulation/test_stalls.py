"""A task that stands still for a while (a compiling kernel, SIGSTOP) must not take the others for lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.transport.sim import Network, Pause


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
