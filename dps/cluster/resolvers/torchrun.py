"""Reads the cluster from the variables that torchrun gives its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from dps.cluster.resolvers.ranks import PORT, Jobs, ResolverVariables, deal
from dps.cluster.spec import ClusterSpec, Task
from dps.errors import ConfigError


def torchrun(
    environ: Mapping[str, str] | None = None, jobs: Jobs | None = None, port_base: int = PORT,
    hosts: Sequence[str] | None = None,
) -> tuple[ClusterSpec, Task | None]:  # fmt: skip
    """The cluster of the processes that torchrun starts, and this one's task in it.

    torchrun names the first host only, as MASTER_ADDR. If there are more, give all of them.

    Args:
        environ: The environment to read; any mapping. None: the process's environment.
        jobs: The number of tasks of each job, or the one job of all tasks. Jobs take consecutive ranks, sorted by name.
            None: one ps and workers for the rest.
        port_base: The port of the first task of each host.
        hosts: The hosts in the order of GROUP_RANK. None: MASTER_ADDR alone.

    Returns:
        The cluster and the task; None for a rank without a job.

    Raises:
        ConfigError: A variable is missing or contradicts another one, or not all hosts are known.

    Example:
        ```pycon
        >>> environ = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "3",
        ...            "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "0", "MASTER_ADDR": "n1"}
        >>> cluster, task = dps.cluster.resolve.torchrun(environ)
        >>> cluster.as_dict(), str(task)
        ({'ps': ['n1:8888'], 'worker': ['n1:8889', 'n1:8890']}, 'worker:0')
        ```
    """
    environ = os.environ if environ is None else environ
    read = ResolverVariables("torchrun", environ, "start the program with torchrun")
    total, here = read.count("WORLD_SIZE"), read.count("LOCAL_WORLD_SIZE")
    rank = read.rank("RANK", total, "WORLD_SIZE")
    local = read.rank("LOCAL_RANK", here, "LOCAL_WORLD_SIZE")
    expected = read.number("GROUP_RANK") * here + local
    if total % here or rank != expected:
        raise read.error(
            "RANK", f"{expected} from GROUP_RANK, LOCAL_WORLD_SIZE and LOCAL_RANK, with as many processes on each host",
            "give each host the same --nproc-per-node",
        )  # fmt: skip
    names = [read.text("MASTER_ADDR")] if hosts is None else list(hosts)
    if len(names) != total // here:
        raise ConfigError(
            f"torchrun: got {len(names)} hosts ({', '.join(names)}), wanted {total // here} "
            f"(WORLD_SIZE={total}, LOCAL_WORLD_SIZE={here}); give hosts=[...] in the order of GROUP_RANK, or join by "
            "the chief's address (--chief)"
        )
    return deal("torchrun", [host for host in names for _ in range(here)], rank, jobs, port_base)
