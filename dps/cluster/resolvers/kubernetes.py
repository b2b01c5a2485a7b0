"""Reads the cluster from the environment of a pod of an Indexed Job, or of a JobSet."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from dps.cluster.resolvers.ranks import PORT, Jobs, ResolverVariables, deal
from dps.cluster.spec import ClusterSpec, Task, job_name
from dps.errors import ConfigError

_ADVICE = "run the program in a pod of a Job with completionMode: Indexed, or of a JobSet"


def kubernetes(
    environ: Mapping[str, str] | None = None, jobs: Jobs | None = None, port_base: int = PORT,
    service: str | None = None,
) -> tuple[ClusterSpec, Task | None]:  # fmt: skip
    """The cluster of an Indexed Job or a JobSet, one task in each pod, and this pod's task in it.

    Reads JOB_COMPLETION_INDEX and HOSTNAME, which each such pod has: JOB-INDEX in an Indexed Job,
    JOBSET-NAME-0-INDEX in a JobSet whose replicated jobs have the names of `jobs`, one replica, and a completion for
    each task. Kubernetes is not asked. The pods' names need a headless Service, which a JobSet has of its own.

    Args:
        environ: The environment to read; any mapping. None: the process's environment.
        jobs: The number of tasks of each job. In an Indexed Job they take consecutive indices, sorted by name. A pod
            does not know how many others there are, so this is required.
        port_base: The port of each task.
        service: The headless Service (`subdomain` of the pods). None: DPS_SERVICE, or the name of the Job or JobSet.

    Returns:
        The cluster and the task; None for an index without a job.

    Raises:
        ConfigError: A variable is missing or malformed, `jobs` is missing, or the pod is none of those described.

    Example:
        ```pycon
        >>> jobs = {"ps": 1, "worker": 2}
        >>> pod = {"HOSTNAME": "train-2", "JOB_COMPLETION_INDEX": "2"}
        >>> cluster, task = dps.cluster.resolve.kubernetes(pod, jobs, service="svc")
        >>> cluster.job_tasks("worker"), str(task)
        (['train-1.svc:8888', 'train-2.svc:8888'], 'worker:1')
        >>> pod = {"HOSTNAME": "train-worker-0-1", "JOB_COMPLETION_INDEX": "1"}
        >>> cluster, task = dps.cluster.resolve.kubernetes(pod, jobs)
        >>> cluster.job_tasks("worker"), str(task)
        (['train-worker-0-0.train:8888', 'train-worker-0-1.train:8888'], 'worker:1')
        ```
    """
    environ = os.environ if environ is None else environ
    read = ResolverVariables("Kubernetes", environ, _ADVICE)
    index, host = read.number("JOB_COMPLETION_INDEX"), read.text("HOSTNAME").partition(".")[0]
    if jobs is None or isinstance(jobs, str) or not any(jobs.values()):
        raise ConfigError(
            f"Kubernetes: got jobs {jobs!r}, wanted the number of tasks of each job, for a pod does not know others; "
            "give jobs={'ps': 1, 'worker': 3} (--jobs ps=1,worker=3)"
        )
    if not host.endswith(f"-{index}"):
        raise read.error("HOSTNAME", f"a name that ends in -{index}, as JOB_COMPLETION_INDEX says")
    subdomain = environ.get("DPS_SERVICE", "") if service is None else service
    replicated = "|".join(re.escape(name) for name in sorted(jobs, key=len, reverse=True))
    pod = re.fullmatch(rf"(?P<set>.+)-(?P<job>{replicated})-(?P<replica>[0-9]+)-[0-9]+", host)
    if pod is None:
        name = host.removesuffix(f"-{index}")
        hosts = [f"{name}-{i}.{subdomain or name}" for i in range(sum(jobs.values()))]
        return deal("Kubernetes", hosts, _below(read, index, len(hosts)), jobs, port_base)
    if pod["replica"] != "0":
        raise read.error("HOSTNAME", "a pod of replica 0", "give each replicated job replicas: 1, and completions")
    suffix = f"{subdomain or pod['set']}:{port_base}"
    cluster = ClusterSpec(
        {job: [f"{pod['set']}-{job}-0-{i}.{suffix}" for i in range(count)] for job, count in jobs.items()}
    )
    return cluster, Task(job_name(pod["job"]), _below(read, index, jobs[pod["job"]]))


def _below(read: ResolverVariables, index: int, total: int) -> int:
    if index >= total:
        raise read.error("JOB_COMPLETION_INDEX", f"less than the {total} tasks of jobs", "set completions to as many")
    return index
