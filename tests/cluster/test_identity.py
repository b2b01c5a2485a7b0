"""Who a process is in the cluster, and where the chief is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dps.cluster.identity import Identity
from dps.cluster.spec import ClusterSpec
from dps.errors import ConfigError

PS, W0, W3, CHIEF = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"
NO_CHIEF = {"ps": [PS], "worker": {0: W0, 3: W3}}


def who(cluster: dict[str, Any], job: str | None = None, task: int | None = None) -> Identity:
    return Identity.in_cluster(ClusterSpec(cluster), job, task)


def test_with_a_chief_job_only_that_task_hosts_the_chief() -> None:
    cluster = {**NO_CHIEF, "chief": [CHIEF]}
    chief, worker = who(cluster, "chief"), who(cluster, "worker", 0)
    assert chief.hosts_chief and chief.listens_as_chief and chief.bind == chief.chief == CHIEF
    assert not worker.hosts_chief and not worker.listens_as_chief and (worker.bind, worker.chief) == (W0, CHIEF)


@pytest.mark.parametrize(
    ("bind", "listens"),
    [
        ("0.0.0.0", "0.0.0.0:4"),
        ("0.0.0.0:0", "0.0.0.0:4"),
        ("[::]", "[::]:4"),
        ("[::]:0", "[::]:4"),
        ("eth0:9", "eth0:9"),
    ],
)
def test_a_bind_replaces_where_a_task_listens_and_not_what_others_are_told(bind: str, listens: str) -> None:
    chief = Identity.in_cluster(ClusterSpec({**NO_CHIEF, "chief": [CHIEF]}), "chief", None, bind)
    assert (chief.bind, chief.told, chief.chief) == (listens, CHIEF, CHIEF) and chief.listens_as_chief


def test_without_one_the_first_worker_hosts_it_and_everybody_knows_where() -> None:
    first, last, ps = who(NO_CHIEF, "worker", 0), who(NO_CHIEF, "worker", 3), who(NO_CHIEF, "ps")
    assert {task.chief for task in (first, last, ps)} == {W0}
    assert [task.hosts_chief for task in (first, last, ps)] == [True, False, False] and first.listens_as_chief


@pytest.mark.parametrize("cluster", [{"ps": [PS]}, {"ps": [PS], "workers": [W0]}, {"ps": [PS], "worker": []}])
def test_a_cluster_without_a_chief_and_a_worker_is_refused_with_what_to_add(cluster: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r'got a cluster of ps.*, wanted .* add "chief": \["HOST:PORT"\]'):
        who(cluster, "ps", 0)


def test_the_first_task_of_a_lone_job_leads_as_in_the_documents_first_example() -> None:
    local = {"local": [W0, W3]}
    first, second = who(local, "local", 0), who(local, "local", 1)
    assert (first.hosts_chief, second.hosts_chief, first.chief, second.chief) == (True, False, W0, W0)
    for alone in ("ps", "evaluator", "dataset"):
        with pytest.raises(ConfigError, match="which leads the run"):
            who({alone: [W0, W3]}, alone, 0)
    with pytest.raises(ConfigError, match="which leads the run"):
        who({"local": [W0], "other": [W3]}, "local", 0)


def test_a_task_of_a_misspelt_job_is_refused_with_the_jobs_that_there_are() -> None:
    """It joined as a client that trains, or waited for a chief that did not know it."""
    words = "got the job 'wroker', wanted one of chief, ps, worker, evaluator, dataset; did you mean 'worker'?"
    with pytest.raises(ConfigError, match=re.escape(words)):
        Identity.joining("wroker", 0, CHIEF, "")
    with pytest.raises(ConfigError, match=re.escape(words)):
        who({**NO_CHIEF, "wroker": [CHIEF]}, "wroker", 0)
    with pytest.raises(ConfigError, match="got the job 'local', wanted one of chief, .*dataset$"):
        Identity.joining("local", 0, CHIEF, "")


def test_what_has_one_choice_may_be_left_out() -> None:
    assert (who({"worker": {2: W0}}).job, who({"worker": {2: W0}}).task) == ("worker", 2)
    with pytest.raises(ConfigError, match="which job is this task of"):
        who(NO_CHIEF)
    with pytest.raises(ConfigError, match=r"which task of worker is this\? There are \[0, 3\]"):
        who(NO_CHIEF, "worker")


def test_a_task_that_joins_knows_the_chiefs_address_and_may_have_no_number() -> None:
    ps = Identity.joining("ps", None, "10.0.0.1:7000", "0.0.0.0:0")
    assert (ps.job, ps.task, ps.bind, ps.chief, ps.hosts_chief) == ("ps", -1, "0.0.0.0:0", "10.0.0.1:7000", False)
    assert Identity.joining("worker", 4, None, "127.0.0.1:0").chief == "127.0.0.1:2220"
    with pytest.raises(ConfigError, match="which job is this task of"):
        Identity.joining(None, None, None, "127.0.0.1:0")
    with pytest.raises(ValueError, match="nonsense"):
        Identity.joining("ps", None, "nonsense", "127.0.0.1:0")


def test_a_chief_listens_where_it_is_told_whatever_its_number() -> None:
    for job in ("chief", "master"):
        chief = Identity.joining(job, 5, None, "127.0.0.1:0")
        assert (chief.job, chief.task, chief.chief) == ("chief", 0, "127.0.0.1:0")
        assert chief.hosts_chief and chief.listens_as_chief


def test_a_chief_waits_for_the_tasks_of_its_cluster_or_for_as_many_as_it_is_told() -> None:
    assert who(NO_CHIEF, "worker", 0).expected("worker", None) == [0, 3]
    assert who(NO_CHIEF, "worker", 0).expected("worker", 2) == [0, 3]
    with pytest.raises(ConfigError, match="got 9 worker tasks and a cluster that has 2"):
        who(NO_CHIEF, "worker", 0).expected("worker", 9)
    assert who({"worker": [W0]}, "worker", 0).expected("ps", None) == []
    joining = Identity.joining("chief", None, None, "127.0.0.1:0")
    assert (joining.expected("ps", 2), joining.expected("worker", None)) == ([0, 1], [])
