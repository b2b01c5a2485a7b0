"""Merges what several resolvers have found into one cluster."""

from __future__ import annotations

from dps.cluster.spec import ClusterSpec, Task
from dps.errors import ConfigError


def union(**found: tuple[ClusterSpec, Task | None]) -> tuple[ClusterSpec, Task | None]:
    """The cluster that several resolvers describe together, and this process's task in it.

    Each argument is what a resolver returned, under a name for messages. The clusters may overlap, if they agree.

    Args:
        **found: Clusters and tasks, such as `sge=dps.cluster.resolve.sge()`.

    Returns:
        The cluster, and the one task that is named; None if none is.

    Raises:
        ConfigError: Two resolvers have different addresses for one task, or different tasks for this process. The
            message says which said what.

    Example:
        ```pycon
        >>> ps = dps.ClusterSpec({"ps": ["a:2222"]}), None
        >>> environ = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.4\\n10.0.0.5"}
        >>> nodes = dps.cluster.resolve.skypilot(environ, "worker")
        >>> cluster, task = dps.cluster.resolve.union(fixed=ps, skypilot=nodes)
        >>> cluster.as_dict(), str(task)
        ({'ps': ['a:2222'], 'worker': ['10.0.0.4:8888', '10.0.0.5:8888']}, 'worker:1')
        ```
    """
    said: dict[Task, tuple[str, str]] = {}
    jobs: dict[str, dict[int, str]] = {}
    own: tuple[str, Task] | None = None
    for name, (cluster, task) in found.items():
        for job in cluster.jobs:
            jobs.setdefault(job, {})
        for one in cluster.tasks():
            address = cluster.task_address(one.job, one.index)
            other, before = said.setdefault(one, (name, address))
            if before != address:
                raise ConfigError(
                    f"union: got {one} at {before} from {other} and at {address} from {name}, wanted one address; give "
                    "one of them another job or other indices"
                )
            jobs[one.job][one.index] = address
        if task is not None and own is not None and own[1] != task:
            raise ConfigError(
                f"union: this process is {own[1]} for {own[0]} and {task} for {name}, wanted one task; leave the task "
                "of one of them out"
            )
        own = (name, task) if own is None and task is not None else own
    return ClusterSpec(jobs), None if own is None else own[1]
