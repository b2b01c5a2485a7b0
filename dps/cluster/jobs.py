"""Reports the jobs of a cluster that nothing uses, and those that it needs and does not have."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from dps.cluster.spec import ClusterSpec
from dps.telemetry import log

JOBS = ("chief", "ps", "worker", "evaluator", "dataset")
"""The jobs whose tasks dps has work for."""


def unknown(cluster: ClusterSpec) -> list[str]:
    """A line for each job that dps has no work for. A lone job of a name of its own is none: its first task leads."""
    lines = []
    for job in cluster.jobs:
        if job not in JOBS and cluster.num_tasks(job):
            close = difflib.get_close_matches(job, JOBS, 1, 0.6)
            if len(cluster.jobs) == 1 and not close:
                continue
            hint = f"did you mean {close[0]!r}?" if close else f"the jobs of dps are {', '.join(JOBS)}"
            lines.append(f"cluster: dps does not use the job {job!r} ({tasks(cluster, job)}); {hint}")
    return lines


def unfit(cluster: ClusterSpec, who: str, needs: Sequence[str], leaves: Sequence[str]) -> list[str]:
    """A line for each job that a strategy needs and a cluster lacks, and for each that the strategy leaves idle. None
    for an empty cluster: its tasks join by the chief's address, and nobody knows them yet."""
    if not cluster:
        return []
    has = ", ".join(f"{job} ({tasks(cluster, job)})" for job in cluster.jobs)
    lacking = [
        f"{who} needs a {job}, and the cluster has none: {has}; add one, or take another strategy"
        for job in needs
        if job not in cluster.jobs or not cluster.num_tasks(job)
    ]
    idle = [
        f"{who} does not use the job {job!r} of the cluster ({tasks(cluster, job)}); leave it out"
        for job in leaves
        if job in cluster.jobs and cluster.num_tasks(job)
    ]
    return lacking + idle


def tasks(cluster: ClusterSpec, job: str) -> str:
    """How many tasks a job has, for messages."""
    count = cluster.num_tasks(job)
    return "1 task" if count == 1 else f"{count} tasks"


def warn(lines: Sequence[str]) -> None:
    """Log lines as warnings."""
    for line in lines:
        log.warning("%s", line)
