"""Finds the dataset of a dataset task in the task's program, and takes the task's part of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dps.cluster.resolve import load_cluster
from dps.data.dataset import Dataset
from dps.data.serving import Serving, serve
from dps.data.stages import takes_parts
from dps.errors import ConfigError
from dps.functions import find, module_of
from dps.record import record
from dps.server import Server


@record
class Part:
    """The part of a dataset that a task serves. `position`: where to begin; None: at the beginning. `tasks`: how many
    tasks there are, if that is known."""

    dataset: Dataset
    position: dict[str, Any] | None
    tasks: int | None

    def serve(self, server: Server) -> Serving:
        """Begin to serve it."""
        return serve(self.dataset, server, position=self.position, tasks=self.tasks)


def load(program: str | None, arguments: Sequence[str], environ: Mapping[str, str], tasks: int | None) -> Part:
    """The part of the task of this environment of what a program names: FILE:NAME or package.module:NAME.

    The name is that of a dataset, or of a function that returns one, or one and the position where it begins. A
    function of two arguments gets the number of the task and how many there are, and returns its part; of all others
    each task serves its shard. The function finds `arguments` in `sys.argv`. `tasks`: None: as many as the cluster has.

    Raises ConfigError where the program names no dataset, or the number of the task is not known.
    """
    if not program or ":" not in program:
        got = f"--program {program}" if program else "no --program"
        raise ConfigError(f"a dataset task serves the dataset of a program; got {got}, wanted --program FILE:NAME")
    place, known = _place(environ, tasks)
    sys.argv = [program, *arguments]
    found, position, whole = _named(program), None, True
    if callable(found) and not isinstance(found, Dataset):
        whole = takes_parts(found) != 2
        found = found() if whole else found(place, known or 1)
    if isinstance(found, tuple) and len(found) == 2:
        found, position = found
    if not isinstance(found, Dataset):
        raise ConfigError(f"{program}: got {found!r:.60}, wanted {_WANTED}")
    if whole and known and known > 1:
        found = found.shard(known, place)
    return Part(found, position, known)


_WANTED = "a dps.data.Dataset, or a function that returns one"


def _named(program: str) -> Any:
    """What FILE:NAME names. Raises ConfigError, with the datasets and functions of the file, if it has no such name."""
    found = find(program)
    if found is None:
        target, _, name = program.rpartition(":")
        module = module_of(target, program)
        has = [
            each for each, value in vars(module).items()
            if isinstance(value, Dataset) or (callable(value) and getattr(value, "__module__", "") == module.__name__)
        ]  # fmt: skip
        there = f"it has {', '.join(has[:10])}" if has else "it has no dataset and no function"
        raise ConfigError(f"{program}: {os.path.basename(target)} has no {name!r}; {there}; wanted {_WANTED}")
    return found


def _place(environ: Mapping[str, str], tasks: int | None) -> tuple[int, int | None]:
    """The number of this task and how many tasks serve; None: that is not known, and the program has its part."""
    cluster = load_cluster(environ["DPS_CLUSTER"]) if environ.get("DPS_CLUSTER") else None
    if cluster is not None and "dataset" in cluster.jobs:
        numbers = cluster.task_indices("dataset")
    elif tasks:
        numbers = list(range(tasks))
    else:
        return 0, None
    given = environ.get("DPS_TASK", "")
    if (given or len(numbers) > 1) and given not in [str(number) for number in numbers]:
        got = f"--task {given}" if given else "no --task"
        raise ConfigError(f"dataset: got {got} of {len(numbers)} dataset tasks, wanted {numbers[0]} to {numbers[-1]}")
    return numbers.index(int(given)) if given else 0, len(numbers)
