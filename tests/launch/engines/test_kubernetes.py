"""The JobSet of an experiment: its text, the schema of the CRD, and what the resolver makes of its pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dps import cli, role
from dps.cluster.resolvers.kubernetes import kubernetes
from dps.cluster.resolvers.ranks import parse_jobs
from dps.launch.experiment import pod_keys
from dps.transport.keys import files as key_files
from dps.transport.keys.keyring import read
from dps.transport.message import ROLES

HERE = Path(__file__).parent
SCHEMA = json.loads((HERE / "jobset-v1alpha2.json").read_text())
"""`spec` of the CRD of kubernetes-sigs/jobset (Apache-2.0) at 08dfbdfd, without descriptions and parts of pods that dps
does not use."""
FILE = """
name: My MNIST
image: registry/name:tag
volumes: ["claim:/data", "claim:/more"]
output: /data/{{ id }}
keys: keys
update: sync
restarts: 2
env: {A: "$(B) {{ steps }}"}
resources: {cpus: 1, memory: 1GiB}
parameters: {steps: 400}
roles:
  ps: {count: 2, threads: 2, resources: {memory: 4GiB}}
  worker: {count: 3, resources: {gpus: 1}, run: [train.py, "--steps={{ steps }}", "a b", "$(C)"]}
  evaluator: {run: train.py}
"""


def printed(capsys: pytest.CaptureFixture[str], folder: Path, text: str = FILE, *more: str, code: int = 0) -> str:
    (folder / "train.py").touch()
    (folder / "e.yaml").write_text(text)
    keys = folder / "keys"
    keys.mkdir(mode=0o700, exist_ok=True)
    for each in ROLES:
        (keys / f"{each}-1.pub").write_text(f"{each:0<39}P")
        (keys / f"{each}-1.key").write_text(f"{each:0<39}S")
        (keys / f"{each}-1.key").chmod(0o600)
    assert cli.main(["manifest", "kubernetes", str(folder / "e.yaml"), *more]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def check(value: Any, schema: dict[str, Any], path: str = "spec") -> None:
    """The value has the form of an OpenAPI schema, and no key that is not in it."""
    kind = schema.get("type")
    if kind == "object":
        assert isinstance(value, dict), path
        assert not [key for key in schema.get("required", ()) if key not in value], path
        for key, below in value.items():
            known = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            assert known, f"{path}.{key} is not known"
            check(below, known, f"{path}.{key}")
    elif kind == "array":
        assert isinstance(value, list) and len(value) <= schema.get("maxItems", len(value)), path
        for i, below in enumerate(value):
            check(below, schema["items"], f"{path}[{i}]")
    else:
        wanted = {"integer": int, "boolean": bool, "string": str}.get(str(kind), (int, str))
        assert isinstance(value, wanted), path  # type: ignore[arg-type]
        assert "enum" not in schema or value in schema["enum"], path


def test_the_manifest_is_that_of_the_golden_file_and_has_the_form_of_the_crd(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = printed(capsys, tmp_path)
    assert made == (HERE / "jobset.yaml").read_text()
    *_, found = yaml.safe_load_all(made)
    assert (found["apiVersion"], found["kind"], found["metadata"]["name"]) == (
        "jobset.x-k8s.io/v1alpha2", "JobSet", "my-mnist",
    )  # fmt: skip
    check(found["spec"], SCHEMA)


def test_the_check_is_strict_about_unknown_keys() -> None:
    with pytest.raises(AssertionError, match="spec.network.subdomains is not known"):
        check({"network": {"subdomains": "x"}}, SCHEMA)


def test_every_pod_finds_itself_and_the_others_with_its_own_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, found = yaml.safe_load_all(printed(capsys, tmp_path))
    seen = []
    for replicated in found["spec"]["replicatedJobs"]:
        job, spec = replicated["name"], replicated["template"]["spec"]
        args = role.parser().parse_command(spec["template"]["spec"]["containers"][0]["args"])
        if job == "evaluator":
            assert (args.job, args.chief, args.program) == ("evaluator", "my-mnist-chief-0-0.my-mnist:8888", "train.py")
            continue
        for index in range(spec["completions"]):
            pod = {"HOSTNAME": f"my-mnist-{job}-0-{index}", "JOB_COMPLETION_INDEX": str(index)}
            cluster, task = kubernetes(pod, parse_jobs(args.jobs))
            seen.append(str(task))
            assert cluster.task_address("ps", 1) == "my-mnist-ps-0-1.my-mnist:8888"
        assert args.update == "sync" and (args.program == "train.py") == (job == "worker")
    assert seen == ["chief:0", "ps:0", "ps:1", "worker:0", "worker:1", "worker:2"]


def test_dataset_tasks_are_a_job_of_the_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = FILE + '  dataset: {count: 2, run: "train.py:dataset {{ steps }}"}\n'
    *_, found = yaml.safe_load_all(printed(capsys, tmp_path, text))
    check(found["spec"], SCHEMA)
    *_, made = found["spec"]["replicatedJobs"]
    args = role.parser().parse_command(made["template"]["spec"]["template"]["spec"]["containers"][0]["args"])
    assert (made["name"], args.program, args.arguments) == ("dataset", "train.py:dataset", ["400"])
    pod = {"HOSTNAME": "my-mnist-dataset-0-1", "JOB_COMPLETION_INDEX": "1"}
    cluster, task = kubernetes(pod, parse_jobs(args.jobs))
    assert str(task) == "dataset:1" and cluster.num_tasks("dataset") == 2


def test_a_grid_is_a_jobset_for_each_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = list(yaml.safe_load_all(printed(capsys, tmp_path, FILE, "--set", "steps=1", "--set", "steps=2")))
    jobsets = [each["metadata"]["name"] for each in made if each["kind"] == "JobSet"]
    assert jobsets == ["my-mnist-1", "my-mnist-2"]


SECRET = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "stringData"],
    "properties": {
        "apiVersion": {"type": "string", "enum": ["v1"]},
        "kind": {"type": "string", "enum": ["Secret"]},
        "metadata": {"type": "object", "additionalProperties": {}},
        "immutable": {"type": "boolean"},
        "type": {"type": "string"},
        "stringData": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
"""What dps uses of a Secret of Kubernetes's core API, v1."""


def test_each_role_has_a_secret_with_its_own_private_key_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *secrets, jobset = yaml.safe_load_all(printed(capsys, tmp_path))
    for secret, job in zip(secrets, jobset["spec"]["replicatedJobs"], strict=True):
        own, files = job["name"], secret["stringData"]
        check({**secret, "metadata": {}}, SECRET, "secret")
        assert secret["metadata"]["name"] == f"my-mnist-keys-{own}" and secret["immutable"] is True
        assert {name for name in files if name.endswith(".key")} == {f"{own}-1.key"}
        assert {name for name in files if name.endswith(".pub")} == {f"{each}-1.pub" for each in ROLES}
        pod = job["template"]["spec"]["template"]["spec"]
        (of_secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert of_secret == {"secretName": f"my-mnist-keys-{own}", "defaultMode": 0o400}
        ((copies,), (task,)) = pod["initContainers"], pod["containers"]
        assert {mount["name"] for mount in copies["volumeMounts"]} == {"dps-secret", "dps-keys"}
        assert "dps-secret" not in {mount["name"] for mount in task["volumeMounts"]}
        assert {"name": "DPS_KEYS", "value": copies["args"][1]} in task["env"]
        assert not any(key in yaml.safe_dump(pod) for key in files.values()), "keys are in Secrets alone"


def test_with_keys_auto_each_output_has_new_ones_and_a_trusted_network_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "dps-own"
    monkeypatch.setattr("dps.launch.experiment.kubernetes.private_folder", lambda: own.mkdir() or str(own))
    auto = FILE.replace("keys: keys\n", "keys: auto\n")
    first, second = (next(yaml.safe_load_all(printed(capsys, tmp_path, auto)))["stringData"] for _ in range(2))
    assert first.keys() == second.keys() and first["chief-1.key"] != second["chief-1.key"]
    assert not own.exists(), "the new keys are nowhere else"
    (jobset,) = yaml.safe_load_all(printed(capsys, tmp_path, FILE.replace("keys: keys\n", "keys: trusted-network\n")))
    check(jobset["spec"], SCHEMA)
    assert "initContainers" not in str(jobset) and "DPS_KEYS" not in str(jobset)


def test_a_pod_copies_its_keys_to_a_private_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key_files.new(str(tmp_path / "keys"))
    secret, to = tmp_path / "secret", tmp_path / "own"
    (secret / "..data").mkdir(parents=True)
    for name, key in key_files.part(str(tmp_path / "keys"), ["ps"]).items():
        (secret / "..data" / name).write_text(key)
        (secret / name).symlink_to(f"..data/{name}")  # as Kubernetes shows them
    assert pod_keys.main([str(secret), str(to)]) == 0
    assert list(read(str(to)).pairs) == ["ps"] and to.stat().st_mode & 0o777 == 0o700
    assert pod_keys.main([str(secret), str(to)]) == 2
    assert capsys.readouterr().err.endswith(f"cannot be copied to {to}: File exists: {to}\n")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("image: registry/name:tag\n", "", "no image"),
        ('"claim:/data"', '"claim"', "wanted CLAIM:/PATH"),
    ],
)
def test_what_kubernetes_needs_besides_is_one_line(
    old: str, new: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = printed(capsys, tmp_path, FILE.replace(old, new), code=2)
    assert words in said and said.count("\n") == 1
