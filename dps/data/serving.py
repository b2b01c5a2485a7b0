"""Serves a dataset from this task to the workers of the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from dps.cluster.resolve import load_cluster
from dps.data.dataset import Dataset
from dps.data.feeder import DatasetActor
from dps.data.messages import feed_name
from dps.data.remote_dataset import check_served
from dps.data.stages import takes_parts
from dps.errors import ConfigError
from dps.process.functions import find, module_of
from dps.process.record import record
from dps.task.server import Server
from dps.training.definition import whole_number

JOIN_S = 60.0

_served: WeakKeyDictionary[Server, set[str]] = WeakKeyDictionary()
"""The names under which tasks of this process serve."""


class Serving:
    """A dataset that this task serves, until the task ends.

    Made by `dps.data.serve`.

    Args:
        actor: Who serves it.

    Example:
        ```pycon
        >>> numbers = dps.data.from_arrays(np.arange(4)).batch(2)
        >>> serving = dps.data.serve(numbers, server, "more numbers")
        >>> serving.position["finished"], serving.error
        ([], None)
        ```
    """

    def __init__(self, actor: DatasetActor) -> None:
        self._actor = actor

    @property
    def position(self) -> dict[str, Any]:
        """Which batches are finished: `serve(position=...)` gives the others. As of `remote.position()`."""
        return self._actor.feed.position

    @property
    def error(self) -> Exception | None:
        """What ended the reading; workers get it as a `dps.DataError`."""
        return self._actor.error

    def stats(self) -> dict[str, Any]:
        """What the task does now. Any thread may call it; it does not block.

        Returns:
            `epoch`; `finished`: batches of it that workers have finished; `ready`: batches that wait for a worker;
            `given`: by worker, the batches that it was given and has not finished.

        Example:
            ```pycon
            >>> pairs = dps.data.from_arrays(np.arange(6)).batch(2)
            >>> serving = dps.data.serve(pairs, server, "some")
            >>> len(list(dps.data.remote(server, "some")))
            3
            >>> serving.stats()["finished"]
            3
            ```
        """
        return self._actor.feed.counts()


def serve(
    dataset: Dataset, server: Server, name: str = "dataset", ahead: int = 8, position: dict[str, Any] | None = None,
    tasks: int | None = None,
) -> Serving:  # fmt: skip
    """Read a dataset once, in this process, and feed all workers of the run. Returns at once.

    A thread reads and prepares batches ahead of the workers; the task's node gives them out. At most `ahead` batches
    are kept ready, beside two in the reader's hands and those that workers have asked for, so memory is bounded.

    Args:
        dataset: What is served: its elements are whole batches, as a rule.
        server: This task. Its job may be any; `--job dataset` has one of its own.
        name: The name under which workers find it. Several tasks may serve under one name, each its own part.
        ahead: How many batches are kept ready.
        position: Where an earlier run was: what `remote.position()` or `dps.data.saved_position` said.
        tasks: How many tasks serve under this name: workers wait for all of them. None: as many as the cluster has of
            a job of this name; where it has none, workers take who is there.

    Returns:
        A handle, to be read.

    Raises:
        ConfigError: No dataset, a name under which this task serves already, or a position of another dataset, or of
            another number of tasks.

    Example:
        ```pycon
        >>> dataset = dps.data.from_arrays(np.arange(6)).batch(2)
        >>> serving = dps.data.serve(dataset, server, "six")
        >>> [batch.tolist() for batch in dps.data.remote(server, "six")]
        [[0, 1], [2, 3], [4, 5]]
        ```
    """
    if not isinstance(dataset, Dataset):
        raise ConfigError(f"serve: got a {type(dataset).__name__}, wanted a dataset, as dps.data.from_arrays makes it")
    check_served("serve", server, name)
    if name in _served.get(server, ()):
        raise ConfigError(f"serve: {server.name} serves {name!r} already, wanted another name for another dataset")
    ahead = whole_number("serve: ahead: got ", ahead, 1)
    if tasks is not None:
        tasks = whole_number("serve: tasks: got ", tasks, 1)
    else:
        tasks = server.cluster.num_tasks(name) if name in server.cluster.jobs else 0
    own = Dataset(dataset.stage)  # passes of this process are no epochs of the workers
    actor = DatasetActor(own, name, ahead, _own_position(position, server, tasks), server.target, tasks)
    server.host(feed_name(name), actor)
    _served.setdefault(server, set()).add(name)
    return Serving(actor)


def _own_position(position: dict[str, Any] | None, server: Server, tasks: int) -> dict[str, Any] | None:
    """This task's part of the positions of all tasks that serve. Blocks until the task has its number."""
    if not isinstance(position, dict) or "from" in position or not all(":" in str(task) for task in position):
        return position
    server.wait_joined(server.runtime.now() + JOIN_S)
    if server.name not in position:
        raise ConfigError(
            f"position: got those of {', '.join(position) or 'no task'}, wanted that of {server.name}; give the task "
            "the same --task as in the run before"
        )
    if tasks and tasks != len(position):
        raise ConfigError(
            f"position: got those of {len(position)} tasks ({', '.join(position)}), and {tasks} serve now, each "
            "another part; start as many as in the run before"
        )
    found: dict[str, Any] = position[server.name]
    return found


@record
class ServedPart:
    """The part of a dataset that a task serves. `position`: where to begin; None: at the beginning. `tasks`: how many
    tasks there are, if that is known."""

    dataset: Dataset
    position: dict[str, Any] | None
    tasks: int | None

    def serve(self, server: Server) -> Serving:
        """Begin to serve it."""
        return serve(self.dataset, server, position=self.position, tasks=self.tasks)


def load_part(
    program: str | None, arguments: Sequence[str], environ: Mapping[str, str], tasks: int | None
) -> ServedPart:
    """The part of the task of this environment of what a program names: FILE:NAME or package.module:NAME.

    The name is that of a dataset, or of a function that returns one, or one and the position where it begins. A
    function of two arguments gets the number of the task and how many there are, and returns its part; of all others
    each task serves its shard. The function finds `arguments` in `sys.argv`. `tasks`: None: as many as the cluster has.

    Raises ConfigError where the program names no dataset, or the number of the task is not known.
    """
    if not program or ":" not in program:
        got = f"--program {program}" if program else "no --program"
        raise ConfigError(f"a dataset task serves the dataset of a program; got {got}, wanted --program FILE:NAME")
    place, known = _task_number(environ, tasks)
    sys.argv = [program, *arguments]
    found, position, whole = _load_named(program), None, True
    if callable(found) and not isinstance(found, Dataset):
        whole = takes_parts(found) != 2
        found = found() if whole else found(place, known or 1)
    if isinstance(found, tuple) and len(found) == 2:
        found, position = found
    if not isinstance(found, Dataset):
        raise ConfigError(f"{program}: got {found!r:.60}, wanted {_WANTED}")
    if whole and known and known > 1:
        found = found.shard(known, place)
    return ServedPart(found, position, known)


_WANTED = "a dps.data.Dataset, or a function that returns one"


def _load_named(program: str) -> Any:
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


def _task_number(environ: Mapping[str, str], tasks: int | None) -> tuple[int, int | None]:
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
