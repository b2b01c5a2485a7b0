"""What is said of a cluster whose jobs do not fit what runs on it."""

from __future__ import annotations

import pytest

import dps
from dps.cluster.spec import unfit, unknown

UNUSED = {"wroker": ["127.0.0.1:0", "127.0.0.1:0"], "chief": ["127.0.0.1:0"], "local": ["127.0.0.1:0"], "none": []}


def test_jobs_that_dps_has_no_work_for_are_named_with_what_may_be_meant() -> None:
    assert unknown(dps.ClusterSpec(UNUSED)) == [
        "cluster: dps does not use the job 'wroker' (2 tasks); did you mean 'worker'?",
        "cluster: dps does not use the job 'local' (1 task); the jobs of dps are chief, ps, worker, evaluator, dataset",
    ]
    assert unknown(dps.ClusterSpec({"local": ["a:1", "b:1"]})) == [], "its first task leads"
    assert "did you mean 'worker'?" in unknown(dps.ClusterSpec({"workers": ["a:1", "b:1"]}))[0]
    assert unknown(dps.ClusterSpec({"ps": ["a:1"], "master": ["b:1"], "dataset": ["c:1"]})) == []


def test_what_a_strategy_lacks_and_what_it_leaves_idle() -> None:
    cluster = dps.ClusterSpec({"worker": ["a:1", "b:1"], "ps": []})
    assert unfit(cluster, "ParameterServer", ["ps"], []) == [
        "ParameterServer needs a ps, and the cluster has none: worker (2 tasks), ps (0 tasks); add one, or take "
        "another strategy"
    ]
    both = dps.ClusterSpec({"worker": ["a:1"], "ps": ["b:1"]})
    assert unfit(both, "ParameterServer", ["ps"], []) == []
    assert unfit(both, "Copies", ["worker"], ["ps"]) == [
        "Copies does not use the job 'ps' of the cluster (1 task); leave it out"
    ]
    assert unfit(dps.ClusterSpec({}), "ParameterServer", ["ps"], []) == []


def test_the_task_that_leads_the_run_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    with dps.Server(UNUSED, "chief", 0):
        assert [r.message for r in caplog.records if r.message.startswith("cluster: ")] == unknown(
            dps.ClusterSpec(UNUSED)
        )
    caplog.clear()
    workers = {"worker": ["127.0.0.1:0"], "evaluator": ["127.0.0.1:0"]}
    with dps.Server(workers, "worker", 0) as server, dps.strategy.ParameterServer(server):
        said = [record.message for record in caplog.records if "needs a" in record.message]
    assert said == unfit(dps.ClusterSpec(workers), "ParameterServer", ["ps"], [])
    caplog.clear()
    both = {"worker": ["127.0.0.1:0"], "ps": ["127.0.0.1:0"]}
    with dps.Server(both, "worker", 0) as server, dps.strategy.MultiWorkerMirrored(server, ["/cpu:0"]):
        said = [record.message for record in caplog.records if "does not use" in record.message]
    assert said == ["MultiWorkerMirrored does not use the job 'ps' of the cluster (1 task); leave it out"]
