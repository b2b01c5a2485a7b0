"""A worker that cannot reach a ps says so after seconds, and ends at once when it is told to stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dps
from dps.launch.commands.simulate import SimulatedCluster, SimulatedRun
from dps.process import config
from dps.transport.current import runtime
from dps.transport.sim import Network

SAID = "cannot reach ps:0: nobody answers at ps0:"


@pytest.fixture(autouse=True)
def told_to_stop() -> Iterator[None]:
    yield
    config.stop_requested.clear()


def train(server: Any) -> None:
    with dps.Session(server, {"a": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), timeout=60) as session:
        session.push({"a": np.ones(2)})


def run(stop_at_s: float = 0.0) -> SimulatedRun:
    def stop() -> int:
        runtime().sleep(stop_at_s)
        config.stop_requested.set()
        return 0

    network = Network(
        links={("worker:0", "ps:0"): Network(latency_s=1e4), ("ps:0", "worker:0"): Network(latency_s=1e4)}
    )
    with SimulatedCluster(train, ps=1, workers=1, network=network) as cluster:
        if stop_at_s:
            cluster.world.process("stops", stop)
        return cluster.run()


def test_the_log_names_it_and_its_port_after_seconds_and_then_seldom(caplog: pytest.LogCaptureFixture) -> None:
    done = run()
    assert SAID in done.errors["worker:0"]
    said = [line for line in caplog.messages if line.startswith(f"worker:0: {SAID}") and "open port" in line]
    assert 5 <= len(said) <= 6


def test_a_worker_that_is_told_to_stop_meanwhile_ends_at_once() -> None:
    done = run(stop_at_s=7.0)
    assert done.errors["worker:0"].startswith(f"Cancelled: worker:0: was told to stop, and {SAID}")
    assert next(event.time_s for event in done.trace if event.what == "error") < 7.0 + 1.0
