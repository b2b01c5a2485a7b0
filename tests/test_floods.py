"""What a hostile peer did to a run by bringing much: it is bounded, and the run goes on."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import ConfigError, NotAuthenticated, Unavailable
from dps.protocol import Pull
from dps.run_protocol import CHIEF, Register, Registered
from dps.transport.current import runtime
from tests.in_process import cluster

PATIENCE_S = 10.0


def test_a_thousand_registers_of_one_process_are_one_task_and_cost_no_descriptors() -> None:
    with cluster(1, 1, trusted=True) as (worker,):
        caller, chief = Caller(runtime(), "stranger"), Ref(worker.target, CHIEF)
        with pytest.raises(NotAuthenticated, match="without a ticket"):
            caller.ask(chief, Register("worker", 1, "127.0.0.1:9", 7, 0, {}), PATIENCE_S)
        caller.connect(chief.address, runtime().secret())
        first = caller.ask(chief, Register("worker", 1, "127.0.0.1:9", 7, 0, {}), PATIENCE_S)
        assert isinstance(first, Registered) and first.task == 1
        before = len(os.listdir("/dev/fd"))
        for process in range(1, 1000):
            caller.post(chief, Register("worker", -1, f"127.0.0.1:{1000 + process}", 7 + process, 0, {}))
        with pytest.raises(NotAuthenticated, match="this process is worker:1 already; a process is one task"):
            caller.ask(chief, Register("ps", 5, "127.0.0.1:9", 1, 0, {}), PATIENCE_S)
        with pytest.raises(ConfigError, match="got task 70000 of job 'worker'; wanted an index from 0 to 65535"):
            caller.ask(chief, Register("worker", 70_000, "127.0.0.1:9", 1, 0, {}), PATIENCE_S)
        assert len(os.listdir("/dev/fd")) <= before + 5
        caller.close()


def test_pulls_that_can_never_be_answered_are_bounded_and_no_step_looks_at_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    params: Any = {"a": np.zeros(4, np.float32)}
    with cluster(1, 1, trusted=True) as (worker,), dps.Session(worker, params, optimizer=dps.optim.SGD(1.0)) as session:
        connection = session._connection
        ref, caller = connection.peers[0].ref, connection.caller
        for _ in range(5000):
            caller.post(ref, Pull(connection.membership.epoch, 1 << 40, 0, 0, -1, []))
        with pytest.raises(Unavailable, match="worker:0 keeps 64 pulls that wait, at most 64 are possible"):
            caller.ask(ref, Pull(connection.membership.epoch, 1 << 40, 0, 0, -1, []), PATIENCE_S)
        for step in range(3):
            assert session.step({"a": np.ones(4, np.float32)})["a"][0] == -1 - step
        assert caplog.text.count("keeps 64 pulls that wait") == 1
