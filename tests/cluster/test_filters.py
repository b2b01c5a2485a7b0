"""Device filters, and that a worker knows nobody but the chief and the ps: another worker never keeps it waiting."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

import dps
from dps.cluster.device import DeviceFilters
from dps.errors import ConfigError
from tests.in_process import bind, cluster

CLUSTER = dps.ClusterSpec({"chief": ["c:1"], "ps": ["p:1", "p:2"], "worker": {0: "w:1", 3: "w:3"}})


@pytest.mark.parametrize(
    ("filters", "seen"),
    [
        (None, {"ps:0", "ps:1", "worker:0", "worker:3"}),
        ([], set()),
        (["/job:ps"], {"ps:0", "ps:1"}),
        (["/job:ps/task:1", "/job:worker/task:3"], {"ps:1", "worker:3"}),
        (["/job:ps/task:*", dps.Device("/job:worker/task:0")], {"ps:0", "ps:1", "worker:0"}),
        (["/job:master"], set()),
    ],
)
def test_filters_name_jobs_and_tasks(filters: Any, seen: set[str]) -> None:
    found = DeviceFilters.parse(filters, CLUSTER)
    assert {f"{t.job}:{t.index}" for t in CLUSTER.tasks() if t.job != "chief" and found.sees(t.job, t.index)} == seen


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ("/job:ps", "wanted a list such as"),
        (7, "wanted a list"),
        (["/task:0"], "wanted a job or a task"),
        (["/job:ps/gpu:0"], "got '/job:ps/gpu:0', wanted a job or a task"),
        (["/job:sp"], "got '/job:sp', wanted tasks of the cluster: chief:0, ps:0, ps:1, worker:0, worker:3"),
        (["/job:worker/task:1"], "got '/job:worker/task:1', wanted tasks of the cluster"),
        (["job ps"], "job ps"),
        ([None], "None"),
    ],
)
def test_filters_that_make_no_sense_are_told_when_the_server_is_made(filters: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dps.Server(CLUSTER, "worker", 0, device_filters=filters)


def model(ps: int) -> dict[str, Any]:
    return {f"v{index}": np.zeros(2) for index in range(ps)}


@pytest.mark.parametrize("filters", [["/job:ps"], ["/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"]])
def test_a_worker_with_filters_trains_and_reads(filters: list[str]) -> None:
    with (
        cluster(2, 1, "inproc") as (server,),
        dps.Server(None, "worker", 1, chief=server.target, bind=bind("inproc"), device_filters=filters) as own,
        dps.Session(own, model(2), optimizer=dps.optim.SGD(1.0), timeout=60) as session,
    ):
        assert session.push({"v0": np.ones(2), "v1": np.ones(2)}).step == 1
        np.testing.assert_array_equal(session.pull()["v1"], [-1, -1])


def test_a_plan_that_needs_a_ps_outside_the_filters_is_one_clear_error_and_the_run_goes_on() -> None:
    with cluster(2, 1, "inproc") as (server,):
        target = server.target
        with dps.Server(None, "worker", 1, chief=target, bind=bind("inproc"), device_filters=["/job:ps/task:0"]) as own:
            told = (
                r"^worker:1 needs ps:1 for the run's plan, but its device_filters name /job:ps/task:0 only; "
                r"add '/job:ps'$"
            )
            with pytest.raises(ConfigError, match=told):
                dps.Session(own, model(2), optimizer=dps.optim.SGD(1.0), timeout=60)
            with dps.Session(server, model(2), optimizer=dps.optim.SGD(1.0), timeout=60) as session:
                with pytest.raises(ConfigError, match=told):
                    dps.Session(own, timeout=60)
                assert session.push({"v0": np.ones(2)}).accepted


def test_a_worker_starts_and_trains_without_ever_connecting_to_another_worker() -> None:
    """The other worker's port takes connections and answers nothing: what a worker that hangs looks like. It is on an
    address of its own, where no process that dials a port of 127.0.0.1 that was another's before comes by."""
    with socket.create_server(("127.77.0.1", 0)) as other:
        other.setblocking(False)
        address = f"127.77.0.1:{other.getsockname()[1]}"
        with dps.Server({"chief": ["127.0.0.1:0"]}, "chief", 0, owned=True) as chief:
            spec = {"chief": [chief.address], "ps": ["127.0.0.1:0"], "worker": [address, "127.0.0.1:0"]}
            with (
                dps.Server(spec, "ps", 0),
                dps.Server(spec, "worker", 1) as own,
                dps.Session(own, model(1), optimizer=dps.optim.SGD(1.0), timeout=60) as session,
            ):
                for step in range(3):
                    session.pull()
                    assert session.push({"v0": np.ones(2)}).step == step + 1
        with pytest.raises(BlockingIOError):
            other.accept()
