"""Writes an experiment as a JobSet for Kubernetes (jobset.x-k8s.io/v1alpha2): a Job for each role, a pod for each task.

The tasks find each other by their DNS names (`dps.cluster.resolve.kubernetes`). dps asks Kubernetes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from dps.cluster.resolvers.ranks import PORT
from dps.errors import ConfigError
from dps.launch.experiment.experiment import Experiment
from dps.launch.supervision.plan import DATASET, Job, RunPlan, has_program
from dps.transport.private_folders import private_folder, remove

API = "jobset.x-k8s.io/v1alpha2"
CONTAINER = "dps"
FINAL = [1, 2, 5]
"""Exit codes after which a task is not started again: its program failed, it was started wrongly, or was refused."""
GRACE_S = 60
"""How long a pod may take to end in order, with a last checkpoint."""
SECRET, KEYS = "/run/dps-secret", "/run/dps-keys"
"""The folders where a pod has the Secret with its keys, and to which they are copied before its task starts."""
OWN = f"{KEYS}/own"


def manifests(experiment: Experiment) -> list[dict[str, Any]]:
    """A JobSet for each combination of the parameters' values, each behind the Secrets with the keys of its roles.
    Raises ConfigError for what Kubernetes needs besides."""
    if not experiment.elsewhere.get("image"):
        raise ConfigError(
            f"{experiment.name}: no image; Kubernetes needs image: REGISTRY/NAME:TAG with dps and programs"
        )
    points = experiment.points()
    base = re.sub(r"[^a-z0-9-]+", "-", experiment.name.lower()).strip("-") or "dps"
    names = [base] if len(points) == 1 else [f"{base}-{number}" for number in range(1, len(points) + 1)]
    made = []
    for name, values in zip(names, points, strict=True):
        plan = experiment.make_plan(values, name)
        made += [*secrets(name, plan), manifest(name, plan, experiment.elsewhere)]
    return made


def _roles(plan: RunPlan) -> list[str]:
    return [role for role in ("chief", "ps", "worker", "evaluator", DATASET) if role in plan.jobs]


def secrets(name: str, plan: RunPlan) -> list[dict[str, Any]]:
    """A Secret for each role, with its private key and all public ones: of the folder of keys that the plan names, or
    new ones. None on a trusted network. They are immutable: pods that come later have to have the same keys."""
    if "DPS_TRUSTED_NETWORK" in plan.env:
        return []
    from dps.transport.keys import files as key_files

    with ExitStack() as after:
        path = plan.env.get("DPS_KEYS") or os.environ.get("DPS_KEYS")
        if not path:
            own = private_folder()
            after.callback(remove, own)
            path = os.path.join(own, "keys")
            key_files.new(path)
        parts = {role: key_files.part(path, [role]) for role in _roles(plan)}
    return [
        {
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": _secret(name, role), "labels": {"app.kubernetes.io/managed-by": "dps"}},
            "immutable": True, "type": "Opaque", "stringData": dict(sorted(files.items())),
        }
        for role, files in parts.items()
    ]  # fmt: skip


def _secret(name: str, role: str) -> str:
    return f"{name}-keys-{role}"


def manifest(name: str, plan: RunPlan, where: Mapping[str, Any]) -> dict[str, Any]:
    """The JobSet of one plan. `where`: its image and volumes."""
    volumes = [_volume(text) for text in where.get("volumes", ())]
    return {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "dps"}},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": name},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["chief"]},
            "failurePolicy": {
                "maxRestarts": max(plan.jobs["chief"].restarts, plan.jobs["ps"].restarts),
                "rules": [
                    {"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
                    {"name": "chief", "action": "RestartJobSet", "targetReplicatedJobs": ["chief"]},
                    {"name": "ps", "action": "RestartJob", "targetReplicatedJobs": ["ps"]},
                    {"name": "others", "action": "FailJobSet"},
                ],
            },
            "replicatedJobs": [_role(name, role, plan, str(where["image"]), volumes) for role in _roles(plan)],
        },
    }


def _role(name: str, role: str, plan: RunPlan, image: str, volumes: list[tuple[str, str]]) -> dict[str, Any]:
    job = plan.jobs[role]
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(FINAL)}},
    ]
    made: dict[str, Any] = {"name": role, "replicas": 1}
    if role != "chief":
        made["dependsOn"] = [{"name": "chief", "status": "Ready"}]
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "containers": [_container(name, role, plan, image, volumes)],
    }
    claims = dict.fromkeys(claim for claim, _ in volumes)
    mounted = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    if "DPS_TRUSTED_NETWORK" not in plan.env:
        pod["initContainers"] = [_copies_keys(image)]
        mounted.append({"name": "dps-secret", "secret": {"secretName": _secret(name, role), "defaultMode": 0o400}})
        mounted.append({"name": "dps-keys", "emptyDir": {"medium": "Memory"}})
    if mounted:
        pod["volumes"] = mounted
    spec = {
        "completionMode": "Indexed",
        "completions": job.count,
        "parallelism": job.count,
        "backoffLimitPerIndex": 0 if role == "chief" else max(job.restarts, plan.jobs["ps"].restarts),
        "podFailurePolicy": {"rules": rules},
        "template": {"spec": pod},
    }
    return made | {"template": {"spec": spec}}


def _copies_keys(image: str) -> dict[str, Any]:
    """The container that ends before a task's starts, and the only one that sees the Secret."""
    return {
        "name": "dps-keys", "image": image,
        "command": ["python", "-m", "dps.launch.experiment.pod_keys"], "args": [SECRET, OWN],
        "volumeMounts": [{"name": "dps-secret", "mountPath": SECRET}, {"name": "dps-keys", "mountPath": KEYS}],
    }  # fmt: skip


def _container(name: str, role: str, plan: RunPlan, image: str, volumes: list[tuple[str, str]]) -> dict[str, Any]:
    env = plan.environment(f"{role}:0")
    mounts = [{"name": claim, "mountPath": path} for claim, path in volumes]
    if "DPS_TRUSTED_NETWORK" not in plan.env:
        env["DPS_KEYS"] = OWN
        mounts.append({"name": "dps-keys", "mountPath": KEYS})
    if role == "chief" and "OUTPUT_DIR" in env:
        env.setdefault("DPS_CHECKPOINT_ROOT", env["OUTPUT_DIR"])
    made: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "command": ["python", "-m", "dps.role"],
        "args": _flags(name, role, plan),
        "env": [{"name": variable, "value": _escaped(value)} for variable, value in env.items()],
        "ports": [{"containerPort": PORT}],
    }
    if mounts:
        made["volumeMounts"] = mounts
    wanted = _resources(plan.jobs[role])
    return made | ({"resources": {"requests": wanted, "limits": dict(wanted)}} if wanted else {})


def _flags(name: str, role: str, plan: RunPlan) -> list[str]:
    """The flags of a role. An evaluator is outside of the cluster, and joins by the chief's address."""
    job = plan.jobs[role]
    if role == "evaluator":
        flags = ["--job", role, "--chief", f"{name}-chief-0-0.{name}:{PORT}"]
    else:
        members = [each for each in ("chief", DATASET, "ps", "worker") if each in plan.jobs]
        counts = ",".join(f"{each}={plan.jobs[each].count}" for each in members)
        flags = ["--resolver", "kubernetes", "--jobs", counts, *job.flags]
        flags += ["--update", plan.update] if plan.update else []
    if has_program(role):
        program, *arguments = job.run
        flags += ["--program", program, "--", *arguments]
    return [_escaped(flag) for flag in flags]


def _escaped(text: str) -> str:
    """A text in which Kubernetes replaces nothing: it would read $(NAME) as a variable."""
    return text.replace("$(", "$$(")


def _resources(job: Job) -> dict[str, str]:
    kept = job.resources
    found = {"cpu": kept.cpus, "memory": kept.memory, "nvidia.com/gpu": kept.gpus or None}
    return {name: str(value) for name, value in found.items() if value is not None}


def _volume(text: str) -> tuple[str, str]:
    """A claim, and where it is mounted."""
    claim, colon, path = text.partition(":")
    if not claim or not colon or not path.startswith("/"):
        raise ConfigError(
            f"volumes: got {text!r}, wanted CLAIM:/PATH, a persistent volume claim and where it is mounted"
        )
    return claim, path
