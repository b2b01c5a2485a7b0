"""Local: workers train alone and average every few steps; in the simulator, also under faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.strategy import Local
from tests.strategy.text import GUIDE, guide_batches, guide_params, train


def drift(server: Any, steps: int, outer: Any, rounds: int) -> list[float]:
    """Worker n goes n + 1 down at each step."""
    with Local(server, steps, outer) as strategy:
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros(2), "n": np.array(3)}, optimizer=dps.optim.SGD(1.0))
        for _ in range(steps * rounds):
            variables.apply_gradients({"w": np.full(2, server.task + 1.0)})
        return [float(v) for v in variables.read()["w"]]


@pytest.mark.parametrize("seed", range(10))
def test_the_copies_are_averaged_every_few_steps_also_under_faults(seed: int) -> None:
    run = dps.simulate(
        drift, 4, None, 3, workers=3, ps=2, seed=seed, network=dps.sim.Network(loss=0.05, double=0.05, reorder=0.05),
        faults=[dps.sim.Pause("worker:2", at=0.3, seconds=0.5)], compute=dps.sim.Compute(seconds=0.05, jitter=0.5),
    )  # fmt: skip
    assert not run.errors, run.errors
    np.testing.assert_allclose(run.results, [[-24.0, -24.0]] * 3)  # 3 rounds of 4 steps of 2 on average


def test_an_outer_optimizer_takes_the_averaged_difference_as_gradient() -> None:
    run = dps.simulate(drift, 2, dps.optim.Momentum(0.5, momentum=0.5), 2, workers=2)
    assert not run.errors, run.errors
    assert run.results == [[-3.75, -3.75]] * 2  # differences of 3: velocities 3 and 4.5, at half the rate


def test_one_worker_gives_the_guides_losses() -> None:
    with dps.Server.create_local_server() as server, Local(server, 8) as strategy:
        assert strategy.num_replicas_in_sync == 1
        losses, _ = train(strategy, guide_params(), guide_batches(5))
    np.testing.assert_allclose(losses, GUIDE, atol=1e-6)


def test_bad_numbers_of_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="wanted a whole number from 1"):
        Local("127.0.0.1:1", 0)
