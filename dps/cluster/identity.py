"""The identity of a process in the cluster: its job and number, its listening address, and the chief's address."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dps.cluster.address import at_port, check_address, parse, split
from dps.cluster.spec import ClusterSpec, Task, check_job, job_name
from dps.errors import ConfigError
from dps.process.record import record

DEFAULT_CHIEF = "127.0.0.1:2220"
MOST_TASKS = 100_000
"""The most tasks of a job."""


@record
class Identity:
    """Made from a cluster with all addresses (`in_cluster`), or for a task that joins by the chief's (`joining`)."""

    job: str
    task: int
    """The task index; -1: the chief assigns one."""
    bind: str
    """The address to listen on; the port may be 0. "": the interface that reaches the chief."""
    told: str
    """The address that others are told; "": the one that is bound."""
    chief: str
    """The chief's address; for the chief itself, its own."""
    hosts_chief: bool
    cluster: ClusterSpec
    """Empty for a task that joins."""

    @staticmethod
    def in_cluster(cluster: ClusterSpec, job: str | None, task: int | None, bind: str = "") -> Identity:
        """A task whose cluster names all addresses. The chief is the one of `ClusterSpec.chief_task`.

        Job and task may be left out if there is only one choice. Raises ConfigError if there are more. `bind`: where to
        listen instead of the address that the cluster names; others are told the cluster's. An evaluator need not be in
        the cluster.
        """
        cluster.check_servable()
        if job == "evaluator" and job not in cluster.jobs:
            return Identity._outside(cluster, job, task, bind)
        lead = _lead(cluster, "cluster")
        if job is None:
            if len(cluster.jobs) != 1:
                raise ConfigError(
                    f"which job is this task of? The cluster has {', '.join(cluster.jobs)}: give --job or job="
                )
            job = cluster.jobs[0]
        job = job_name(job)
        if task is None:
            indices = cluster.task_indices(job)
            if len(indices) != 1:
                raise ConfigError(f"which task of {job} is this? There are {list(indices)}: give --task or task=")
            task = indices[0]
        check_job(job, cluster)
        told, chief = cluster.task_address(job, task), cluster.task_address(lead.job, lead.index)
        hosts = (job, task) == (lead.job, lead.index)
        return Identity(job, task, bound(bind, told), told if bind else "", chief, hosts, cluster)

    @staticmethod
    def _outside(cluster: ClusterSpec, job: str, task: int | None, bind: str) -> Identity:
        """A task that the cluster does not list."""
        lead = _lead(cluster, job)
        return Identity(job, task or 0, bind, "", cluster.task_address(lead.job, lead.index), False, cluster)

    @staticmethod
    def joining(job: str | None, task: int | None, chief: str | None, bind: str) -> Identity:
        """A task that joins by the chief's address. Raises ConfigError for a missing job or a malformed address."""
        if not job or not isinstance(job, str):
            got = "" if job is None else f" Got job={job!r:.40}."
            raise ConfigError(
                f"which job is this task of?{got} Give job='chief', 'ps' or 'worker' (--job), or TF_CONFIG"
            )
        job = job_name(job)
        check_job(job, ClusterSpec({}))
        if job == "chief":
            return Identity(job, 0, bind, "", bind, True, ClusterSpec({}))
        address = chief or DEFAULT_CHIEF
        check_address(address)
        return Identity(job, -1 if task is None else task, bind, "", address, False, ClusterSpec({}))

    @property
    def listens_as_chief(self) -> bool:
        """Whether its own address is the chief's."""
        return self.job == "chief" or (self.hosts_chief and self.chief in (self.bind, self.told))

    def expected(self, job: str, count: int | None) -> list[int]:
        """The tasks of a job for which the chief waits: the cluster's, else `count`. Raises ConfigError for a count
        that is not the cluster's."""
        if not self.cluster:
            return list(range(count or 0))
        tasks = list(self.cluster.task_indices(job)) if job in self.cluster.jobs else []
        if count not in (None, len(tasks)):
            raise ConfigError(f"got {count} {job} tasks and a cluster that has {len(tasks)}; leave the number out")
        return tasks


def bound(bind: str, told: str) -> str:
    """Where to listen: `bind`, with the port of the address that others are told unless it has one of its own."""
    if not bind or "://" in bind:
        return bind or told
    return at_port(bind, parse(told).port) if split(bind)[1] in (None, "0") else bind


def _lead(cluster: ClusterSpec, who: str) -> Task:
    """The task that hosts the chief. Raises ConfigError if none can."""
    lead = cluster.chief_task()
    if lead is None:
        raise ConfigError(
            f"{who}: got a cluster of {', '.join(cluster.jobs)}, wanted one with a chief or a worker, which leads the "
            'run: add "chief": ["HOST:PORT"] (--chief_hosts), or "worker": ["HOST:PORT"] (--worker_hosts); or give no '
            "addresses but the chief's, with --chief"
        )
    return lead


def server_arguments(environ: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `dps.Server` by name.

    Reads DPS_JOB, DPS_TASK, DPS_CHIEF or else DPS_CLUSTER, DPS_BIND, DPS_ADVERTISE, DPS_PORTS, DPS_TRUSTED_NETWORK,
    DPS_KEYS, DPS_WORKERS, DPS_PS, DPS_UPDATE, DPS_DEVICE, DPS_THREADS, DPS_CHECKPOINT_ROOT; without DPS_JOB, the
    variables that `resolve` reads and the five of where to listen. Raises ConfigError if no task is named.
    """
    found = arguments_found(environ)
    if found is None:
        raise ConfigError(
            "this program was not started as a task: neither DPS_JOB nor TF_CONFIG is set; start it with "
            "`dps launch` or `python -m dps.role --program`, or use Server.from_env(local=True) to run it alone, too"
        )
    return found


def arguments_found(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Like `server_arguments`, but None if the environment names no cluster."""
    if "DPS_JOB" not in environ:
        return _resolved(environ)
    cluster: ClusterSpec | None = None
    if environ.get("DPS_CLUSTER") and not environ.get("DPS_CHIEF"):
        from dps.cluster.resolve import load_cluster

        cluster = load_cluster(environ["DPS_CLUSTER"])
    return {
        "cluster": cluster,
        "job": environ["DPS_JOB"],
        "task": number_of(environ, "DPS_TASK"),
        "chief": environ.get("DPS_CHIEF") or None,
        "workers": number_of(environ, "DPS_WORKERS"),
        "ps": number_of(environ, "DPS_PS"),
        "update": environ.get("DPS_UPDATE") or None,
        "device": environ.get("DPS_DEVICE", ""),
        "threads": environ.get("DPS_THREADS") or "auto",
        "checkpoint_root": environ.get("DPS_CHECKPOINT_ROOT") or None,
        **_addresses(environ),
    }


def tf_config_of(environ: Mapping[str, str]) -> dict[str, str]:
    """TF_CONFIG and DPS_CLUSTER for a program that runs as the task that these variables name; {} if cluster or task is
    not known.

    Tasks of a cluster that is joined by the chief's address choose their ports themselves; they are listed with port 0.
    """
    if not environ.get("DPS_TASK"):
        return {}
    if environ.get("DPS_CLUSTER"):
        cluster = json.loads(environ["DPS_CLUSTER"])
    elif environ.get("DPS_WORKERS") and environ.get("DPS_PS") and environ.get("DPS_CHIEF"):
        counts = {"ps": int(environ["DPS_PS"]), "worker": int(environ["DPS_WORKERS"])}
        cluster = {job: ["127.0.0.1:0"] * count for job, count in counts.items()}
        cluster = {"chief": [environ["DPS_CHIEF"]], **cluster}
    else:
        return {}
    task = {"type": environ["DPS_JOB"], "index": int(environ["DPS_TASK"])}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task}), "DPS_CLUSTER": json.dumps(cluster)}


def _resolved(environ: Mapping[str, str]) -> dict[str, Any] | None:
    from dps.cluster.resolve import resolve

    cluster, found = resolve(environ)
    if found is None and not cluster:
        return None
    if found is None or not cluster:
        got, wanted = ("a cluster", "task of it") if cluster else (f"the task {found}", "cluster")
        raise ConfigError(f"the environment names {got} and no {wanted}; give TF_CONFIG both `cluster` and `task`")
    return {"cluster": cluster, "job": found.job, "task": found.index, **_addresses(environ)}


def _addresses(environ: Mapping[str, str]) -> dict[str, Any]:
    names = {"bind": "DPS_BIND", "advertise": "DPS_ADVERTISE", "ports": "DPS_PORTS"}
    found = {argument: environ.get(name, "") for argument, name in names.items()}
    return {**found, "trusted_network": trusts_network(environ), "keys": environ.get("DPS_KEYS") or None}


def trusts_network(environ: Mapping[str, str]) -> bool:
    """Whether DPS_TRUSTED_NETWORK lets tasks listen beyond this machine without keys. ConfigError for a value that is
    neither 1 nor 0."""
    value = environ.get("DPS_TRUSTED_NETWORK", "").strip()
    if value not in ("", "0", "1"):
        raise ConfigError(f"got DPS_TRUSTED_NETWORK={value!r}, wanted 1 (listen beyond this machine without keys) or 0")
    return value == "1"


def number_of(environ: Mapping[str, str], name: str) -> int | None:
    """The number in a variable; None if it is not set or empty. Raises ConfigError for other text."""
    text = environ.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MOST_TASKS):
        raise ConfigError(f"got {name}={text!r:.40}, wanted a number from 0 to {MOST_TASKS}")
    return int(text) if text else None


def check_number(what: str, value: Any) -> None:
    """Raise ConfigError for what is no index of a task and no number of tasks. `what` begins the message."""
    if value is None:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value <= MOST_TASKS:
        raise ConfigError(f"got {what}{value!r:.40}; wanted a whole number from 0 to {MOST_TASKS}")
