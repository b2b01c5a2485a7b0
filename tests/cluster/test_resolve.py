from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps.cluster import ClusterSpec, Task, resolve
from dps.errors import ConfigError

CLUSTER = {"chief": ["c:1"], "ps": ["a:1", "b:1"], "worker": {"0": "d:1", "2": "e:1"}}
SPEC = ClusterSpec(CLUSTER)
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}


def config(cluster: object = None, **task: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": CLUSTER if cluster is None else cluster, "task": task})}


def test_tf_config_gives_cluster_and_task() -> None:
    assert resolve.tf_config(config(type="worker", index=2)) == (SPEC, Task("worker", 2))
    assert resolve.tf_config(config(type="worker", index="2")) == (SPEC, Task("worker", 2))


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"cluster": null}'}])
def test_no_tf_config_is_an_empty_cluster(environ: dict[str, str]) -> None:
    assert resolve.tf_config(environ) == (ClusterSpec({}), None)


def test_tf_config_may_name_a_task_without_a_cluster() -> None:
    assert resolve.tf_config(config({}, type="worker", index=0)) == (ClusterSpec({}), Task("worker", 0))


def test_master_in_tf_config_is_the_chief() -> None:
    found = resolve.tf_config(config({"master": ["c:1"], "ps": ["a:1"]}, type="master", index=0))
    assert found == (ClusterSpec({"chief": ["c:1"], "ps": ["a:1"]}), Task("chief", 0))


def test_an_evaluator_need_not_be_in_the_cluster() -> None:
    assert resolve.tf_config(config(type="evaluator", index=0))[1] == Task("evaluator", 0)


def test_the_only_task_of_a_job_needs_no_index() -> None:
    assert resolve.tf_config(config(type="chief"))[1] == Task("chief", 0)
    with pytest.raises(ConfigError, match="got task index None for ps"):
        resolve.tf_config(config(type="ps"))


def test_explicit_arguments_override_the_environment() -> None:
    environ = config(type="ps", index=0)
    assert resolve.tf_config(environ, job="worker")[1] == Task("worker", 0)
    assert resolve.tf_config(environ, task=1)[1] == Task("ps", 1)
    assert resolve.tf_config(environ, job="worker", task=2)[1] == Task("worker", 2)
    assert resolve.resolve(SLURM, job="ps", task=0)[1] == Task("ps", 0)
    assert resolve.resolve({}, job="ps", task=0) == (ClusterSpec({}), Task("ps", 0))


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG: got '{', wanted JSON"),
        ({"TF_CONFIG": "[" * 100_000}, "TF_CONFIG: got .*wanted JSON"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG: got \\[\\]"),
        (config("a:1"), "TF_CONFIG: cluster: got str 'a:1'"),
        (config({"ps": "a:1"}), "TF_CONFIG: job 'ps': got str"),
        ({"TF_CONFIG": '{"task": 3}'}, "TF_CONFIG: got task 3"),
        (config(index=0), "got task type None"),
        (config(type="worker", index="one"), "got task index 'one'"),
        (config(type="worker", index=-1), "got task index -1"),
        (config(type="worker", index=1), "got the task worker:1, .*chief:0, ps:0, ps:1, worker:0, worker:2"),
        (config(type="wroker", index=0), "got the task wroker:0"),
    ],
)  # fmt: skip
def test_a_tf_config_that_cannot_be_used_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve.tf_config(environ)


def test_tf_config_goes_before_dps_cluster_and_that_before_slurm() -> None:
    dps_cluster = {"DPS_CLUSTER": json.dumps({"cluster": {"ps": ["x:1"]}})}
    assert resolve.resolve(config(type="ps", index=1) | dps_cluster | SLURM) == (SPEC, Task("ps", 1))
    assert resolve.resolve(dps_cluster | SLURM) == (ClusterSpec({"ps": ["x:1"]}), None)
    assert resolve.resolve(SLURM) == (ClusterSpec({"ps": ["n1:8888"], "worker": ["n2:8888"]}), Task("worker", 0))
    assert resolve.resolve({}) == (ClusterSpec({}), None)


def test_dps_cluster_may_be_the_jobs_alone() -> None:
    assert resolve.resolve({"DPS_CLUSTER": '{"ps": ["x:1"]}'}) == (ClusterSpec({"ps": ["x:1"]}), None)
    with pytest.raises(ConfigError, match="DPS_CLUSTER: job 'ps'"):
        resolve.resolve({"DPS_CLUSTER": '{"ps": 3}'})


def test_slurm_jobs_and_ports_can_be_said() -> None:
    cluster, task = resolve.resolve(SLURM, slurm_jobs={"chief": 1, "ps": 1}, port_base=5000)
    assert cluster == ClusterSpec({"chief": ["n1:5000"], "ps": ["n2:5000"]})
    assert task == Task("ps", 0)


def test_a_slurm_step_of_one_task_is_a_cluster_only_when_jobs_are_said() -> None:
    alone = SLURM | {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_STEP_TASKS_PER_NODE": "1",
    }
    assert resolve.resolve(alone) == (ClusterSpec({}), None)
    assert resolve.resolve(alone, slurm_jobs={"ps": 1}) == (ClusterSpec({"ps": ["n1:8888"]}), Task("ps", 0))


def test_the_process_environment_is_read_anew_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", config(type="ps", index=0)["TF_CONFIG"])
    assert resolve.resolve()[1] == resolve.tf_config()[1] == Task("ps", 0)
    monkeypatch.setenv("TF_CONFIG", config(type="ps", index=1)["TF_CONFIG"])
    assert resolve.resolve()[1] == resolve.tf_config()[1] == Task("ps", 1)


def test_the_master_is_the_own_address_and_nothing_for_a_cluster_of_one_task() -> None:
    assert resolve.master(SPEC, Task("worker", 2)) == "e:1"
    assert resolve.master(ClusterSpec({"worker": ["a:1"]}), Task("worker", 0)) == ""
    assert resolve.master(ClusterSpec({}), None) == resolve.master(ClusterSpec({"worker": ["a:1"]}), None) == ""
    with pytest.raises(ValueError, match="got ps 9"):
        resolve.master(SPEC, Task("ps", 9))
    with pytest.raises(ValueError, match="master: got no task, wanted one of the cluster's: chief:0, ps:0"):
        resolve.master(SPEC, None)


def test_a_task_type_that_is_a_number_is_its_text() -> None:
    environ = {"TF_CONFIG": json.dumps({"cluster": {"1": ["a:1", "b:1"]}, "task": {"type": 1, "index": 1}})}
    assert resolve.tf_config(environ)[1] == Task("1", 1)


def test_a_cluster_is_loaded_from_json_text() -> None:
    assert resolve.load_cluster(json.dumps(CLUSTER)) == SPEC
    assert resolve.load_cluster("\n " + json.dumps({"cluster": CLUSTER})) == SPEC


def test_a_job_may_be_called_cluster() -> None:
    assert resolve.load_cluster('{"cluster": ["a:1"]}').jobs == ["cluster"]
    assert resolve.load_cluster('{"cluster": {"3": "a:1"}}').task_indices("cluster") == [3]


def test_a_cluster_is_loaded_from_a_json_or_toml_file(tmp_path: Path) -> None:
    as_json, as_toml = tmp_path / "cluster.json", tmp_path / "cluster.TOML"
    as_json.write_text(json.dumps({"cluster": CLUSTER}))
    as_toml.write_text('chief = ["c:1"]\nps = ["a:1", "b:1"]\n[worker]\n0 = "d:1"\n2 = "e:1"\n')
    assert resolve.load_cluster(as_json) == resolve.load_cluster(str(as_json)) == SPEC
    assert resolve.load_cluster(as_toml) == SPEC


def test_yaml_is_read_when_pyyaml_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class YAMLError(Exception):
        pass

    def safe_load(text: str) -> object:
        if text == "ps: [":
            raise YAMLError("line 1")
        assert text == "ps: ['a:1']\n"
        return {"ps": ["a:1"]}

    stand_in = ModuleType("yaml")
    vars(stand_in).update(safe_load=safe_load, YAMLError=YAMLError)
    monkeypatch.setitem(sys.modules, "yaml", stand_in)
    for ending in ("yaml", "yml"):
        path = tmp_path / f"cluster.{ending}"
        path.write_text("ps: ['a:1']\n")
        assert resolve.load_cluster(path) == ClusterSpec({"ps": ["a:1"]})
    path.write_text("ps: [")
    with pytest.raises(ConfigError, match=r"got no YAML.*line 1"):
        resolve.load_cluster(path)


def test_yaml_without_pyyaml_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "cluster.yaml"
    path.write_text("ps: ['a:1']\n")
    with pytest.raises(ConfigError, match=r"package PyYAML.*dps\[yaml\]"):
        resolve.load_cluster(path)


def test_a_cluster_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in .json, .toml or .yaml"):
        resolve.load_cluster("cluster.ini")
    with pytest.raises(ConfigError, match=r"No such file.*wanted a file that can be read"):
        resolve.load_cluster(tmp_path / "none.json")
    for name, text in {"a.toml": "ps = [", "a.json": "{", "b.json": "[]", "c.json": '{"ps": 1}'}.items():
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(ConfigError, match=name):
            resolve.load_cluster(path)
    with pytest.raises(ConfigError, match=r"cluster: got '{', wanted JSON"):
        resolve.load_cluster("{")


NAMES = st.sampled_from(["ps", "worker", "chief", "evaluator", "local", "x-1"])
HOSTS = st.builds("{}:{}".format, st.sampled_from(["a", "b.example.com", "10.0.0.1"]), st.integers(1, 65_535))
TASKS = st.lists(HOSTS, min_size=1, max_size=4) | st.dictionaries(st.integers(0, 9), HOSTS, min_size=1, max_size=4)


@given(st.dictionaries(NAMES, TASKS, min_size=1, max_size=4), st.data())
def test_what_tf_config_says_of_any_cluster_and_task_is_what_is_found(
    cluster: dict[str, Any], data: st.DataObject
) -> None:
    job = data.draw(st.sampled_from(sorted(cluster)))
    tasks = cluster[job]
    index = data.draw(st.sampled_from(range(len(tasks)) if isinstance(tasks, list) else sorted(tasks)))
    found, task = resolve.tf_config(config(cluster, type=job, index=index))
    assert found == ClusterSpec(cluster) and task == Task(job, index)
    assert found.task_address(job, index) == tasks[index]
    assert resolve.tf_config(config(found.as_dict(), type=job, index=str(index))) == (found, task)


def test_resolvers_are_there_after_import_dps_alone() -> None:
    code = "import dps; print(dps.cluster.resolve.slurm.__name__, dps.cluster.resolve.union.__name__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60) == "slurm union\n"
