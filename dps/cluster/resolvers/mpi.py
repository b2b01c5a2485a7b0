"""Reads the cluster from the ranks that an MPI launcher gives its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from dps.cluster.resolvers.ranks import PORT, Hosts, Jobs, ResolverVariables, deal, read_hosts
from dps.cluster.spec import ClusterSpec, Task
from dps.errors import ConfigError

_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Rank, size, rank and size on the host: Open MPI, MVAPICH2, and Hydra (MPICH, Intel MPI)."""
_FILES = ("PE_HOSTFILE", "PBS_NODEFILE")
"""Machine files of batch systems around MPI."""
_ADVICE = "start the program with mpirun or mpiexec"


def mpi(
    environ: Mapping[str, str] | None = None, jobs: Jobs | None = None, port_base: int = PORT,
    hosts: Hosts | None = None,
) -> tuple[ClusterSpec, Task | None]:  # fmt: skip
    """The cluster of an MPI job, and this rank's task in it: Open MPI, MPICH, Intel MPI, MVAPICH2.

    MPI's variables say nothing about other hosts, so the machine file that mpirun had is read.

    Args:
        environ: The environment to read; any mapping. None: the process's environment.
        jobs: The number of tasks of each job, or the one job of all tasks. Jobs take consecutive ranks, sorted by name.
            None: one ps and workers for the rest.
        port_base: The port of the first task of each host.
        hosts: The machine file, or its lines, such as "n1 slots=2" or "n1:2". None: the file that PE_HOSTFILE or
            PBS_NODEFILE names, or this machine alone if all ranks are on it.

    Returns:
        The cluster and the task; None for a rank without a job.

    Raises:
        ConfigError: A variable is missing, or contradicts another one or the hosts; the hosts are not known; ranks do
            not fill the hosts one by one.

    Example:
        ```pycon
        >>> environ = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}
        >>> cluster, task = dps.cluster.resolve.mpi(environ, hosts=["n1 slots=2", "n2 slots=2"])
        >>> cluster.as_dict(), str(task)
        ({'ps': ['n1:8888'], 'worker': ['n1:8889', 'n2:8888']}, 'worker:1')
        ```
    """
    environ = os.environ if environ is None else environ
    names = next((found for found in _LAUNCHERS if found[0] in environ), None)
    if names is None:
        wanted = ", ".join(found[0] for found in _LAUNCHERS)
        raise ConfigError(f"MPI: got no rank, wanted one of the variables {wanted}; {_ADVICE}")
    read = ResolverVariables("MPI", environ, _ADVICE)
    total = read.count(names[1])
    rank = read.rank(names[0], total, names[1])
    places = _hosts_of_ranks(read, environ, names, total, hosts)
    if names[2] in environ and read.number(names[2]) != (here := places[:rank].count(places[rank])):
        raise read.error(
            names[2], f"{here} for rank {rank}: ranks that fill the hosts one by one", "use mpirun --map-by slot"
        )
    return deal("MPI", places, rank, jobs, port_base)


def rank_of(environ: Mapping[str, str]) -> int | None:
    """The rank in an MPI job, or None outside of one. Raises ConfigError for a rank that is no number."""
    found = next((names[0] for names in _LAUNCHERS if names[0] in environ), None)
    return None if found is None else ResolverVariables("MPI", environ, _ADVICE).number(found)


def _hosts_of_ranks(
    read: ResolverVariables, environ: Mapping[str, str], names: Sequence[str], total: int, hosts: Hosts | None
) -> list[str]:
    """The host of each rank."""
    given = hosts if hosts is not None else next((environ[name] for name in _FILES if environ.get(name)), None)
    if given is None:
        if names[3] in environ and read.count(names[3]) == total:
            return ["127.0.0.1"] * total
        raise ConfigError(
            f"MPI: got {total} ranks and no hosts, wanted the machine file that mpirun had; give hosts=FILE, or set "
            f"{' or '.join(_FILES)} to its path"
        )
    places = [host for host, slots in read_hosts("MPI", given) for _ in range(slots)]
    if len(places) < total:
        raise read.error(
            names[1], f"at most the {len(places)} slots of the hosts", "give the machine file that mpirun had"
        )
    return places[:total]
