"""Reads the cluster from the node list of a SkyPilot job."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dps.cluster.resolvers.ranks import PORT, Jobs, ResolverVariables, deal
from dps.cluster.spec import ClusterSpec, Task


def skypilot(
    environ: Mapping[str, str] | None = None, jobs: Jobs | None = None, port_base: int = PORT
) -> tuple[ClusterSpec, Task | None]:
    """The cluster of a SkyPilot job, one task on each node, and this node's task in it.

    Args:
        environ: The environment to read; any mapping. None: the process's environment.
        jobs: The number of tasks of each job, or the one job of all tasks. Jobs take consecutive nodes, sorted by name.
            None: one ps and workers for the rest.
        port_base: The port of each task.

    Returns:
        The cluster and the task; None for a node without a job.

    Raises:
        ConfigError: A variable is missing or contradicts another one.

    Example:
        ```pycon
        >>> environ = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "2",
        ...            "SKYPILOT_NODE_IPS": "10.0.0.4\\n10.0.0.5"}
        >>> cluster, task = dps.cluster.resolve.skypilot(environ)
        >>> cluster.as_dict(), str(task)
        ({'ps': ['10.0.0.4:8888'], 'worker': ['10.0.0.5:8888']}, 'ps:0')
        ```
    """
    environ = os.environ if environ is None else environ
    read = ResolverVariables("SkyPilot", environ, "run the program in the run section of a task")
    nodes = read.text("SKYPILOT_NODE_IPS").split()
    if len(set(nodes)) < len(nodes):
        raise read.error("SKYPILOT_NODE_IPS", "one address a line, each once")
    if "SKYPILOT_NUM_NODES" in environ and read.number("SKYPILOT_NUM_NODES") != len(nodes):
        raise read.error("SKYPILOT_NUM_NODES", f"{len(nodes)}, the number of addresses in SKYPILOT_NODE_IPS")
    rank = read.rank("SKYPILOT_NODE_RANK", len(nodes), "the number of nodes")
    return deal("SkyPilot", nodes, rank, jobs, port_base)
