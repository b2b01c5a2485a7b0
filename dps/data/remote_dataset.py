"""A dataset that dataset tasks read and prepare, as a worker uses it."""

from __future__ import annotations

from typing import Any

from dps.actors.caller import Caller
from dps.data.finding import Finder
from dps.data.messages import AskPosition, PositionIs
from dps.data.remote_pass import Remote, RemotePass
from dps.errors import ConfigError
from dps.server import Server

MOST_AHEAD = 32


class RemoteDataset:
    """A dataset that dataset tasks read and prepare for all workers. Each `for` over it is an epoch that workers share.

    The first `for` is epoch 0 in every worker; for one that comes late, epochs that are over are empty.

    A worker asks for batches ahead, under a credit: it does not wait while there is data, and a slow worker holds up no
    other. A batch is finished when a push of it is accepted, or when the loop asks for the next one. The push is one of
    a session of the same server, in the thread of the loop; of several pushes for one batch the first accepted one
    counts. What a worker has not finished when it dies, or when its loop ends, goes to another worker; an epoch ends
    for all when all of its batches are finished.

    Made by `dps.data.remote`.

    Args:
        server: The worker.
        name: The name under which the dataset is served.
        prefetch: Batches that are on their way or here, beside the one in use.
        tasks: How many tasks serve it. None: as many as they say themselves, else 1.
        timeout: Seconds that a loop waits for a batch at most.

    Example:
        ```pycon
        >>> batches = dps.data.from_arrays(np.arange(6)).batch(3)
        >>> serving = dps.data.serve(batches, server, "numbers")
        >>> remote = dps.data.remote(server, "numbers")
        >>> [batch.tolist() for batch in remote], [batch.tolist() for batch in remote]
        ([[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, 4, 5]])
        ```
    """

    def __init__(self, server: Server, name: str, prefetch: int, tasks: int | None, timeout: float) -> None:
        listed = server.cluster.num_tasks(name) if server.cluster and name in server.cluster.jobs else None
        finder = Finder(server, name, listed if tasks is None else tasks, timeout)
        self._remote = Remote(server, name, finder, prefetch + 1, timeout, {})

    def __iter__(self) -> RemotePass:
        return RemotePass(self._remote)

    def position(self) -> dict[str, Any]:
        """Which batches are finished, for `dps.data.serve(position=...)` after a restart. Blocks.

        Returns:
            The position of each task that serves, by its name, such as "dataset:0": numbers, text, lists and dicts.

        Raises:
            DeadlineExceeded: A task does not answer.
        """
        server = self._remote.server
        caller = Caller(server.runtime, server.name, server.home().keys)
        try:
            found = {}
            for to in self._remote.finder.find(caller):
                answer = caller.ask(to, AskPosition(), self._remote.timeout)
                assert isinstance(answer, PositionIs), answer
                found[answer.task] = answer.position
            return found
        finally:
            caller.close()


def remote(
    server: Server, name: str = "dataset", prefetch: int = 2, tasks: int | None = None, timeout: float = 60.0
) -> RemoteDataset:
    """The dataset that other tasks of the run serve under a name.

    Args:
        server: The worker.
        name: The name, as of `serve`.
        prefetch: Batches that are on their way or here, beside the one in use, from each task: the worker's credit.
        tasks: How many tasks serve it. None: as many as the cluster has under this name, or as they say themselves;
            else 1.
        timeout: Seconds that a loop waits for a batch, or for those who serve, at most.

    Returns:
        The dataset. Each `for` over it is one epoch.

    Raises:
        ConfigError: A prefetch below 0 or above 32.

    Example:
        ```pycon
        >>> rows = dps.data.from_arrays(np.arange(4), np.arange(4) * 10)
        >>> serving = dps.data.serve(rows.shuffle(4, seed=1).batch(2), server)
        >>> sorted(int(y) for x, y in dps.data.remote(server) for y in y)
        [0, 10, 20, 30]
        ```
    """
    if not 0 <= prefetch <= MOST_AHEAD:
        raise ConfigError(f"remote: prefetch: got {prefetch}, wanted 0 to {MOST_AHEAD}")
    return RemoteDataset(server, name, prefetch, tasks, timeout)
