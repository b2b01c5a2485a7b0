"""The Local strategy is ParameterServer in local mode; the mode's own tests are in tests/client/test_local_mode.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.strategy import Local, ParameterServer
from tests.strategy.text import GUIDE, guide_batches, guide_params, train


def drift(server: Any, made: Any, rounds: int) -> list[float]:
    """Worker n goes n + 1 down at each step."""
    with made(server) as strategy:
        assert strategy.num_replicas_in_sync == 1
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros(2), "n": np.array(3)}, optimizer=dps.optim.SGD(1.0))
        for _ in range(4 * rounds):
            variables.apply_gradients({"w": np.full(2, server.task + 1.0)})
        return [float(v) for v in variables.read()["w"]]


MADE = {
    "Local": lambda server: Local(server, 4),
    "ParameterServer": lambda server: ParameterServer(server, dps.Local(4)),
    "ParameterServer, in short": lambda server: ParameterServer(server, "local:4"),
}


@pytest.mark.parametrize("name", MADE)
def test_the_copies_are_averaged_every_few_steps(name: str) -> None:
    run = dps.simulate(drift, MADE[name], 3, workers=3, ps=2)
    assert not run.errors, run.errors
    np.testing.assert_allclose(run.results, [[-24.0, -24.0]] * 3)  # 3 rounds of 4 steps of 2 on average


def test_a_strategy_without_update_mode_takes_that_of_the_run() -> None:
    run = dps.simulate(drift, ParameterServer, 3, workers=3, update=dps.Local(4))
    assert not run.errors, run.errors
    np.testing.assert_allclose(run.results, [[-24.0, -24.0]] * 3)


def test_one_worker_gives_the_guides_losses() -> None:
    with dps.Server.create_local_server() as server, Local(server, 8) as strategy:
        losses, _ = train(strategy, guide_params(), guide_batches(5))
    np.testing.assert_allclose(losses, GUIDE, atol=1e-6)


def guide(server: Any) -> Any:
    with Local(server, 4) as strategy:
        return train(strategy, guide_params(), guide_batches(5))[0]


def test_workers_with_the_guides_batches_print_the_guides_losses() -> None:
    run = dps.simulate(guide, workers=2)
    assert not run.errors, run.errors
    np.testing.assert_allclose(run.results, [GUIDE, GUIDE], atol=1e-6)


def test_bad_numbers_of_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="steps is an int of at least 1"):
        Local("127.0.0.1:1", 0)
