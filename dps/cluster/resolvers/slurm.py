"""Reads the cluster from the environment of a Slurm job step."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping

from dps.cluster.resolvers.ranks import PORT, Jobs, ResolverVariables, deal
from dps.cluster.spec import ClusterSpec, Task
from dps.errors import ConfigError

_NEEDED = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_MOST = 1_000_000
"""More tasks or hosts than this are taken for an error, and no lists are made."""
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")


def slurm(
    environ: Mapping[str, str] | None = None, jobs: Jobs | None = None, port_base: int = PORT
) -> tuple[ClusterSpec, Task | None]:
    """The cluster of a Slurm job step, and this process's task in it.

    Node order is rank order. A task's port is `port_base` plus its position on its node.

    Args:
        environ: The environment to read; any mapping. None: the process's environment.
        jobs: The number of tasks of each job, or the one job of all tasks. Jobs take consecutive ranks, sorted by name.
            None: one ps and workers for the rest, or one worker in a step of one task.
        port_base: The port of the first task of each node.

    Returns:
        The cluster and the task; None for a rank without a job.

    Raises:
        ConfigError: A variable is missing or contradicts another, the jobs need more tasks than the step has, or ranks
            are not distributed in blocks.
    """
    environ = os.environ if environ is None else environ
    read = ResolverVariables("Slurm", environ, "start the program with srun, which sets " + ", ".join(_NEEDED))
    rank, total = read.number("SLURM_PROCID"), read.number("SLURM_STEP_NUM_TASKS")
    nodes = expand_hostlist(read.text("SLURM_STEP_NODELIST"))
    per_node = expand_tasks_per_node(read.text("SLURM_STEP_TASKS_PER_NODE"))
    if len(nodes) != len(per_node) or sum(per_node) != total or rank >= total:
        got = ", ".join(f"{key}={environ[key]}" for key in _NEEDED)
        raise ConfigError(
            f"Slurm: got {got}, wanted one task count a node, their sum as the number of tasks, and a rank below it"
        )
    places = [(node, position) for node, count in enumerate(per_node) for position in range(count)]
    _check_blocks(environ, rank, *places[rank])
    return deal("Slurm", [nodes[node] for node, _ in places], rank, jobs, port_base)


def expand_hostlist(text: str) -> list[str]:
    """The hosts of a Slurm host list, in its order: `n[01-03]-ib` is n01-ib, n02-ib, n03-ib.

    Commas separate hosts outside brackets and numbers inside. Zero padding is kept. Several brackets in one name are
    combined, the last varying fastest.

    Args:
        text: The host list.

    Returns:
        The hosts.

    Raises:
        ConfigError: A malformed host list.
    """
    hosts: list[str] = []
    position = 0
    while True:
        pieces: list[list[str]] = []
        while match := _PIECE.match(text, position):
            pieces.append(_numbers(text, match[1]) if match[1] is not None else [match[2].strip()])
            position = match.end()
        if math.prod(len(piece) for piece in pieces) > _MOST:
            raise _bad_hostlist(text)
        names = ["".join(chosen) for chosen in itertools.product(*pieces)]
        if not pieces or not all(names) or (position < len(text) and text[position] != ","):
            raise _bad_hostlist(text)
        hosts += names
        if position == len(text):
            return hosts
        position += 1


def expand_tasks_per_node(text: str) -> list[int]:
    """The number of tasks on each node: `3(x2),1` is [3, 3, 1]. Raises ConfigError for anything else."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"tasks per node: got {text!r}, wanted the form '3(x2),1'")
        if len(counts) + int(match[2] or 1) > _MOST:
            raise ConfigError(f"tasks per node: got {text!r}, wanted at most {_MOST:,} nodes")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _numbers(text: str, inside: str) -> list[str]:
    """The numbers of one bracket, zero padding kept."""
    found: list[str] = []
    for item in inside.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise _bad_hostlist(text)
        first, last = match[1], match[2] or match[1]
        if int(first) > int(last) or int(last) - int(first) >= _MOST:
            raise _bad_hostlist(text)
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found


def _bad_hostlist(text: str) -> ConfigError:
    return ConfigError(f"host list: got {text!r}, wanted names with ranges in brackets, such as 'n[01-03,7],login1'")


def _check_blocks(environ: Mapping[str, str], rank: int, node: int, position: int) -> None:
    """Refuse a step with another distribution of ranks (--distribution=cyclic), because addresses would be wrong."""
    expected = {"SLURM_NODEID": node, "SLURM_LOCALID": position}
    for key, value in expected.items():
        if key in environ and environ[key] != str(value):
            raise ConfigError(
                f"Slurm: got {key}={environ[key]} for rank {rank}, wanted {value}: ranks in blocks, node by node; "
                "start the step with srun --distribution=block"
            )
