"""Reads the cluster from the machine file of a Grid Engine job (SGE, UGE, OGE)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dps.cluster.resolvers.mpi import rank_of
from dps.cluster.resolvers.ranks import PORT, Jobs, ResolverVariables, deal, read_hosts
from dps.cluster.spec import ClusterSpec, Task


def sge(
    environ: Mapping[str, str] | None = None, jobs: Jobs | None = None, port_base: int = PORT, rank: int | None = None
) -> tuple[ClusterSpec, Task | None]:
    """The cluster of a Grid Engine job (`qsub -pe`): each slot of the file that PE_HOSTFILE names is a task.

    Grid Engine itself starts one process and numbers none. Under mpirun the rank is MPI's; elsewhere give it, or job
    and task of each process. Reads the file.

    Args:
        environ: The environment to read; any mapping. None: the process's environment.
        jobs: The number of tasks of each job, or the one job of all tasks. Jobs take consecutive slots, sorted by name.
            None: one ps and workers for the rest.
        port_base: The port of the first task of each host.
        rank: This process's slot. None: MPI's rank, if there is one.

    Returns:
        The cluster and the task; None if the process has no rank.

    Raises:
        ConfigError: PE_HOSTFILE is missing or names no machine file, or the jobs need more tasks than it has slots.

    Example:
        ```pycon
        >>> import pathlib
        >>> text = "n1 1 all.q@n1 UNDEFINED\\nn2 2 all.q@n2 UNDEFINED\\n"
        >>> _ = pathlib.Path("pe_hostfile").write_text(text)
        >>> cluster, task = dps.cluster.resolve.sge({"PE_HOSTFILE": "pe_hostfile"}, rank=1)
        >>> cluster.as_dict(), str(task)
        ({'ps': ['n1:8888'], 'worker': ['n2:8888', 'n2:8889']}, 'worker:0')
        ```
    """
    environ = os.environ if environ is None else environ
    read = ResolverVariables("SGE", environ, "submit the job to a parallel environment: qsub -pe NAME SLOTS")
    hosts = [host for host, slots in read_hosts("SGE", read.text("PE_HOSTFILE")) for _ in range(slots)]
    return deal("SGE", hosts, rank_of(environ) if rank is None else rank, jobs, port_base)
