"""Tasks of a cluster whose addresses are all known: which one a server is, where the chief is, and its end."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.process import config
from dps.worker import agent
from tests.in_process import bind, on_all


def names(count: int) -> list[str]:
    return [bind("inproc") for _ in range(count)]


def train(server: dps.Server) -> Any:
    with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), timeout=60) as session:
        return session.push({"w": np.ones(2)}).step


def test_job_and_task_may_be_left_out_where_there_is_one_choice_only() -> None:
    (address,) = names(1)
    with dps.Server({"chief": [address]}) as server:
        assert (server.job, server.task, server.target) == ("chief", 0, address)
    with dps.Server({"chief": names(1), "worker": {3: names(1)[0]}}, "worker") as server:
        assert server.task == 3
    with pytest.raises(ConfigError, match="which job is this task of. The cluster has ps, worker"):
        dps.Server({"ps": names(1), "worker": names(1)})
    with pytest.raises(ConfigError, match=r"which task of ps is this. There are \[0, 1\]"):
        dps.Server({"ps": names(2), "worker": names(1)}, "ps")


def test_job_and_task_have_the_names_of_tensorflow_too() -> None:
    cluster = {"chief": names(1), "ps": names(2)}
    with dps.Server(cluster, job_name="chief", task_index=0), dps.Server(cluster, job_name="ps", task_index=1) as ps:
        assert ps.name == "ps:1"
    with pytest.raises(dps.ConfigError, match="got job='ps' and job_name='worker', which mean the same"):
        dps.Server({"worker": ["127.0.0.1:0"]}, "ps", 0, job_name="worker")


def test_two_tasks_of_a_lone_job_find_each_other_as_in_the_documents_first_example() -> None:
    first, second = names(2)
    cluster = dps.ClusterSpec({"local": [first, second]})
    with dps.Server(cluster, job="local", task=0) as lead, dps.Server(cluster, job="local", task=1) as other:
        for server in (lead, other):
            server.wait_joined(server.runtime.now() + 20)
            assert server.target == first
        assert (lead.name, other.name) == ("local:0", "local:1")


def run_static(cluster: dict[str, Any]) -> tuple[list[dps.Server], list[int]]:
    """All tasks of a cluster in this process; the workers train. Everything ends by itself."""
    tasks = [(job, index) for job in cluster for index in range(len(cluster[job]))]
    servers = [dps.Server(cluster, job, index) for job, index in tasks]
    try:
        steps = on_all([s for s in servers if s.job == "worker"], train)
        for server in servers:
            if server.job != "worker":
                assert server.join(60.0) == 0
    finally:
        for server in servers:
            server.stop()
    return servers, sorted(steps)


def test_with_a_chief_job_the_chief_is_that_task() -> None:
    cluster = {"chief": names(1), "ps": names(2), "worker": names(2)}
    servers, steps = run_static(cluster)
    assert {server.target for server in servers} == {cluster["chief"][0]} and steps == [1, 2]


def test_with_no_chief_job_worker_0_hosts_the_chief() -> None:
    cluster = {"ps": names(2), "worker": names(1)}
    servers, steps = run_static(cluster)
    assert {server.target for server in servers} == {cluster["worker"][0]} and steps == [1]


def test_worker_0_that_is_told_to_end_and_hosts_the_chief_has_the_others_stop_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loops(server: dps.Server) -> int:
        with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), timeout=60) as session:
            while not server.stop_requested and not (server.task == 0 and session.global_step > 3):
                session.push({"w": np.ones(2)})
        if server.task == 0:
            config.stop_requested.set()
            server.stop()
        return server.task

    monkeypatch.setattr(config, "stop_requested", threading.Event())
    cluster = {"ps": names(1), "worker": names(2)}
    servers = [dps.Server(cluster, job, task) for job, task in (("worker", 0), ("worker", 1), ("ps", 0))]
    try:
        assert on_all(servers[:2], loops) == [0, 1]
        assert servers[2].join(60.0) == 0
    finally:
        for server in servers:
            server.stop()


def test_the_error_of_a_program_is_shown_while_its_worker_waits_and_it_waits_for_nobody_who_has_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hosts the chief: Python shows the traceback only when it has waited."""
    monkeypatch.setattr(agent, "BEAT_S", 0.1)  # its node is still there: that is no sign that it comes back
    cluster = {"worker": names(2)}
    lead, other = (dps.Server(cluster, "worker", task) for task in range(2))

    def fails(server: dps.Server) -> None:
        with pytest.raises(RuntimeError, match="no data"), server:
            raise RuntimeError("no data")

    try:
        other.wait_joined(other.runtime.now() + 20)
        waits = threading.Thread(target=fails, args=(lead,))
        waits.start()
        said = "worker:0 hosts the chief and waits for worker:1; its program has failed: RuntimeError: no data"
        deadline = other.runtime.now() + 20
        while said not in caplog.messages and other.runtime.now() < deadline:
            other.runtime.sleep(0.02)
        assert said in caplog.messages
        assert "worker:0: worker:0 has failed before it took part in the training; the others go on without it" in (
            caplog.messages
        )
    finally:
        other.stop()
        waits.join(20)
    assert not waits.is_alive()


def test_master_is_read_as_chief() -> None:
    cluster = {"master": names(1), "ps": names(1), "worker": names(1)}
    servers, _ = run_static(cluster)
    assert [server.job for server in servers] == ["chief", "ps", "worker"]


def test_a_cluster_with_two_chiefs_or_two_tasks_on_one_address_or_no_port_is_refused() -> None:
    one, other = names(2)
    for cluster, words in (
        ({"chief": [one, other]}, "chief"),
        ({"ps": [one, one]}, "same address|twice|both"),
        ({"ps": ["localhost"]}, "HOST:PORT"),
    ):
        with pytest.raises(ValueError, match=words):
            dps.Server(cluster, next(iter(cluster)), 0)


def test_from_env_is_a_local_server_where_nothing_names_a_task_and_only_if_that_is_wanted() -> None:
    with dps.Server.from_env({}, local=True) as server:
        assert (server.job, server.task) == ("worker", 0)
        with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0)) as session:
            assert session.push({"w": np.ones(2)}).step == 1
        with dps.Server.from_env({"DPS_JOB": "ps", "DPS_TASK": "4", "DPS_CHIEF": server.target}, local=True) as task:
            assert (task.job, task.task) == ("ps", 4)
    with pytest.raises(ConfigError, match="local=True"):
        dps.Server.from_env({})


def test_a_local_server_is_chief_ps_and_worker_and_only_its_stop_ends_it() -> None:
    server = dps.Server.create_local_server()
    try:
        for _ in range(2):  # a whole run's workers have finished after the first
            assert train(server) in (1, 2)
            assert server.exit_code is None
        assert [s.job for s in server._beside.tasks] == ["chief", "ps"] and server.job == "worker"
    finally:
        server.stop()
    assert [s.exit_code for s in (server, *server._beside.tasks)] == [0, 0, 0]


def test_a_local_server_tells_nobody_to_start_the_ps_that_is_in_it(caplog: pytest.LogCaptureFixture) -> None:
    with dps.Server.create_local_server() as server:
        server._beside.tasks[1].stop()
        with pytest.raises(dps.DeadlineExceeded, match="waits for ps:0") as told:
            dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), timeout=5.0)
    assert "start it with" not in f"{told.value} {caplog.text}"


def test_a_repr_tells_task_address_chief_and_state() -> None:
    server = dps.Server.create_local_server()
    try:
        chief = server._beside.tasks[0]
        assert repr(chief) == f"<Server chief at {server.target}: running>"
        assert repr(server).startswith(f"<Server worker:0 at {server.address}: ")
        with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0)) as session:
            assert repr(server).endswith(f": running; the chief is at {server.target}>")
            assert repr(session) == f"<Session of worker:0: open at step 0; the chief is at {server.target}>"
            session.push({"w": np.ones(2)})
            assert "worker:0: open at step 1;" in repr(session)
            server.ask_to_stop()
            assert ": stopping after this step; the chief" in repr(server)
        assert "worker:0: closed at step 1;" in repr(session)
        server.cancel("it was enough")
        assert f": ended with exit code {server.exit_code} (it was enough); the chief" in repr(server)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"job": "chief", "workers": -1}, "got workers=-1; wanted a whole number from 0"),
        ({"job": "chief", "workers": 10**10}, "got workers=10000000000; wanted a whole number from 0 to 100000"),
        ({"job": "chief", "ps": True}, "got ps=True; wanted a whole number"),
        ({"job": "ps", "task": 1.0}, "got task=1.0; wanted a whole number"),
        ({"job": "ps", "task": "0"}, "got task='0'; wanted a whole number"),
        ({"job": ""}, "which job is this task of. Got job=''"),
        ({"job": 3}, "which job is this task of. Got job=3"),
        ({"job": "ps", "trusted_network": "no"}, "got trusted_network='no', wanted True, False or None"),
    ],
)
def test_arguments_that_name_no_task_and_no_number_of_tasks_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        dps.Server(chief="127.0.0.1:2220", **given)


def test_what_contradicts_the_cluster_is_refused() -> None:
    first, second = names(2)
    with pytest.raises(ConfigError, match="got 3 worker tasks and a cluster that has 1; leave the number out"):
        dps.Server({"ps": [first], "worker": [second]}, "ps", workers=3)
    with pytest.raises(ConfigError, match=f"got chief='{first}' and a cluster, whose chief is at {second}"):
        dps.Server({"ps": [first], "worker": [second]}, "ps", chief=first)
    given = dps.Server({"chief": ["127.0.0.1:2999"], "ps": [first]}, "ps", 0, chief="")
    given.stop()  # not given


def test_a_chief_at_port_0_can_be_reached_by_nobody() -> None:
    for cluster, chief in (None, "127.0.0.1:0"), ({"ps": names(1), "worker": ["127.0.0.1:0"]}, None):
        with pytest.raises(ConfigError, match="cannot connect to 127.0.0.1:0: port 0 means 'choose one'"):
            dps.Server(cluster, "ps", chief=chief)
