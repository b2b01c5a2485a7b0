"""What the environment makes of a process."""

from __future__ import annotations

import json

import pytest

from dps.cluster import ClusterSpec, Task, resolve
from dps.cluster.identity import arguments_found, server_arguments, tf_config_of
from dps.errors import ConfigError


def test_the_launchers_variables_name_everything() -> None:
    environ = {"DPS_JOB": "ps", "DPS_TASK": "1", "DPS_CHIEF": "10.0.0.1:7000", "DPS_WORKERS": "4", "DPS_PS": "2"}
    environ |= {"DPS_UPDATE": "sync", "DPS_BIND": "0.0.0.0:0", "DPS_DEVICE": "gpu:0", "DPS_THREADS": "2"}
    environ |= {
        "DPS_ADVERTISE": "node1",
        "DPS_PORTS": "5000-5100",
        "DPS_TRUSTED_NETWORK": "1",
        "DPS_CHECKPOINT_ROOT": "/kept",
    }
    assert server_arguments(environ) == {
        "cluster": None, "job": "ps", "task": 1, "chief": "10.0.0.1:7000", "workers": 4, "ps": 2, "update": "sync",
        "bind": "0.0.0.0:0", "advertise": "node1", "ports": "5000-5100", "trusted_network": True, "device": "gpu:0",
        "threads": "2", "keys": None, "checkpoint_root": "/kept",
    }  # fmt: skip


def test_what_is_left_out_or_empty_is_not_given() -> None:
    found = server_arguments({"DPS_JOB": "worker", "DPS_TASK": "", "DPS_CHIEF": "", "DPS_CLUSTER": ""})
    assert [found[name] for name in ("cluster", "task", "chief", "workers", "ps", "update")] == [None] * 6
    assert (found["bind"], found["device"], found["threads"]) == ("", "", "auto")
    assert (found["advertise"], found["ports"], found["trusted_network"]) == ("", "", False)
    with pytest.raises(ConfigError, match="got DPS_TRUSTED_NETWORK='yes', wanted 1"):
        server_arguments({"DPS_JOB": "worker", "DPS_TRUSTED_NETWORK": "yes"})


def test_a_cluster_is_read_and_task_0_is_a_task() -> None:
    cluster = {"ps": ["a:1"], "worker": ["b:1"]}
    found = server_arguments({"DPS_JOB": "worker", "DPS_TASK": "0", "DPS_CLUSTER": json.dumps(cluster)})
    assert found["cluster"].as_dict() == cluster and found["task"] == 0


def test_without_a_job_tf_config_says_it_and_without_that_it_is_an_error() -> None:
    cluster = {"ps": ["a:1"], "worker": ["b:1"]}
    found = server_arguments({"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})})
    assert (found["job"], found["task"]) == ("worker", 0) and found["cluster"].as_dict() == cluster
    with pytest.raises(ConfigError, match="neither DPS_JOB nor TF_CONFIG is set"):
        server_arguments({})
    assert arguments_found({}) is None


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TF_CONFIG": json.dumps({"cluster": {"ps": ["a:1"], "worker": ["b:1"]}})}, "names a cluster and no task"),
        ({"TF_CONFIG": json.dumps({"task": {"type": "worker", "index": 0}})}, "worker:0 and no cluster"),
    ],
)
def test_half_a_task_is_an_error_also_where_none_would_do(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        arguments_found(environ)


def test_programs_have_tf_config_where_cluster_and_task_are_known() -> None:
    cluster = {"ps": ["a:1"], "worker": ["b:1", "c:1"]}
    known = {"DPS_JOB": "worker", "DPS_TASK": "1", "DPS_CLUSTER": json.dumps(cluster)}
    assert json.loads(tf_config_of(known)["TF_CONFIG"]) == {
        "cluster": cluster, "task": {"type": "worker", "index": 1},
    }  # fmt: skip
    launched = {"DPS_JOB": "worker", "DPS_TASK": "0", "DPS_CHIEF": "127.0.0.1:7000", "DPS_PS": "1", "DPS_WORKERS": "2"}
    assert resolve.tf_config(tf_config_of(launched)) == (
        ClusterSpec({"chief": ["127.0.0.1:7000"], "ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"] * 2}),
        Task("worker", 0),
    )
    assert tf_config_of(launched | {"DPS_TASK": ""}) == tf_config_of({**launched, "DPS_PS": ""}) == {}


def test_a_program_has_the_cluster_in_dps_cluster_too_and_joins_by_the_chief_all_the_same() -> None:
    environ = {"DPS_JOB": "worker", "DPS_TASK": "1", "DPS_CHIEF": "h:1", "DPS_WORKERS": "2", "DPS_PS": "1"}
    environ |= tf_config_of(environ)
    cluster = {"chief": ["h:1"], "ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"] * 2}
    assert json.loads(environ["DPS_CLUSTER"]) == json.loads(environ["TF_CONFIG"])["cluster"] == cluster
    found = server_arguments(environ)
    assert (found["cluster"], found["chief"]) == (None, "h:1")
