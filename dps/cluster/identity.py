"""The identity of a process in the cluster: its job and number, its listening address, and the chief's address."""

from __future__ import annotations

from dps.cluster.address import check_address
from dps.cluster.spec import ClusterSpec, job_name
from dps.errors import ConfigError
from dps.record import record

DEFAULT_CHIEF = "127.0.0.1:2220"


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
        """A task whose cluster names all addresses. The chief is the chief job's task, else the first worker.

        Job and task may be left out if there is only one choice. Raises ConfigError if there are more. `bind`: where to
        listen instead of the address that the cluster names; others are told the cluster's. An evaluator need not be in
        the cluster.
        """
        cluster.check_servable()
        if job == "evaluator" and job not in cluster.jobs:
            return Identity._outside(cluster, job, task, bind)
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
        told, lead = cluster.task_address(job, task), cluster.chief_task()
        chief = told if lead is None else cluster.task_address(lead.job, lead.index)
        hosts = _hosts_chief(cluster, job, task)
        return Identity(job, task, _bound(bind, told), told if bind else "", chief, hosts, cluster)

    @staticmethod
    def _outside(cluster: ClusterSpec, job: str, task: int | None, bind: str) -> Identity:
        """A task that the cluster does not list."""
        lead = cluster.chief_task()
        if lead is None:
            raise ConfigError(
                f"{job}: got a cluster of {', '.join(cluster.jobs)}, wanted one with a chief or a worker to follow"
            )
        return Identity(job, task or 0, bind, "", cluster.task_address(lead.job, lead.index), False, cluster)

    @staticmethod
    def joining(job: str | None, task: int | None, chief: str | None, bind: str) -> Identity:
        """A task that joins by the chief's address. Raises ConfigError for a missing job or a malformed address."""
        if job is None:
            raise ConfigError("which job is this task of? Give job='chief', 'ps' or 'worker' (--job), or TF_CONFIG")
        job = job_name(job)
        if job == "chief":
            if bind:
                check_address(bind)  # the others have to know its port
            return Identity(job, 0, bind, "", bind, True, ClusterSpec({}))
        address = chief or DEFAULT_CHIEF
        check_address(address)
        return Identity(job, -1 if task is None else task, bind, "", address, False, ClusterSpec({}))

    @property
    def listens_as_chief(self) -> bool:
        """Whether its own address is the chief's."""
        return self.job == "chief" or (self.hosts_chief and self.chief in (self.bind, self.told))

    def expected(self, job: str, count: int | None) -> list[int]:
        """The tasks of a job for which the chief waits: the cluster's, else `count` tasks."""
        if self.cluster:
            return list(self.cluster.task_indices(job)) if job in self.cluster.jobs else []
        return list(range(count or 0))


def _bound(bind: str, told: str) -> str:
    """Where to listen: `bind`, with the port of the address that others are told unless it has one of its own."""
    host, mark, port = bind.rpartition(":")
    if not bind or "://" in bind:
        return bind or told
    if mark and not bind.endswith("]"):
        return bind if port != "0" else f"{host}:{told.rpartition(':')[2]}"
    return f"{bind}:{told.rpartition(':')[2]}"


def _hosts_chief(cluster: ClusterSpec, job: str, task: int) -> bool:
    """Whether a task hosts the chief: if there is no chief job, the first worker; without workers, the first task."""
    if "chief" in cluster.jobs:
        return job == "chief"
    lead = "worker" if "worker" in cluster.jobs else cluster.jobs[0]
    return job == lead and task == cluster.task_indices(lead)[0]
