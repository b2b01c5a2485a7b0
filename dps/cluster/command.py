"""The command that starts a task, for messages that say who is missing."""

from __future__ import annotations

from dps import config
from dps.cluster.spec import ClusterSpec


def start_command(job: str, task: int | None, where: str) -> str:
    """`task` None: any task. `where`: the flags for the cluster, "--chief HOST:PORT" or "--cluster CLUSTER"."""
    index = "" if task is None or job == "chief" else f" --task {task}"
    program = " --program PROGRAM" if job == "worker" else ""
    return f"python -m dps.role --job {job}{index} {where}{program}"


def where_flags(cluster: ClusterSpec, chief: str, network: str = "") -> str:
    """The flags by which other tasks find the cluster, or its chief; "" if people do not start them. `network`: more
    flags that they need, --keys or --trusted-network."""
    if config.launched.is_set() or chief.startswith("inproc://"):
        return ""
    return ("--cluster CLUSTER" if cluster else f"--chief {chief}") + (network and f" {network}")


def chief_command(cluster: ClusterSpec, chief: str, network: str = "") -> str:
    """The command that starts the chief, or the worker that hosts it; "" as of `where_flags`."""
    where, lead = where_flags(cluster, chief, network), cluster.chief_task() if cluster else None
    return where and start_command(lead.job if lead else "chief", lead.index if lead else None, where)
