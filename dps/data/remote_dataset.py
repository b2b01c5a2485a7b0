"""A dataset that other tasks read and prepare, as a worker gets its batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Self

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.data.messages import AskPosition, PositionIs, feed_name
from dps.data.stream import Stream
from dps.errors import Aborted, ConfigError, DeadlineExceeded, TaskLost
from dps.queues.directory import DIRECTORY, Find, Found
from dps.server import Server
from dps.variables.items import unpack

log = logging.getLogger("dps")

LEAVE_S = 2.0
LOOK_S = 0.2
REPORT_S = 10.0
MOST_AHEAD = 32


class RemotePass:
    """One pass over a remote dataset. It belongs to one thread.

    Made by `iter(remote)`.

    Args:
        remote: The dataset.

    Example:
        ```pycon
        >>> letters = dps.data.from_arrays(np.arange(5)).batch(2)
        >>> serving = dps.data.serve(letters, server, "letters")
        >>> batches = iter(dps.data.remote(server, "letters"))
        >>> next(batches), next(batches)
        (array([0, 1]), array([2, 3]))
        >>> batches.close()  # the second batch was not finished: the next one gets it
        >>> [batch.tolist() for batch in dps.data.remote(server, "letters")]
        [[2, 3], [4]]
        ```
    """

    def __init__(self, remote: RemoteDataset) -> None:
        self._remote, server = remote, remote.server
        self._caller = Caller(server.runtime, server.name, server.home().keys)
        self._closed = False
        self._using: tuple[Stream, int] | None = None
        """The batch that the loop has, and where it came from."""
        self._streams: list[Stream] = []
        for to in remote._find(self._caller):
            stream = Stream(self._caller, to, server, remote.window)
            stream.join(remote.timeout, remote.epochs.get(to.address, 0))
            self._streams.append(stream)

    def __iter__(self) -> Self:
        return self

    def done(self) -> None:
        """The batch in use is finished, as asking for the next one says, too. Does not wait.

        Call it when the push of the batch was accepted, where much is done before the next batch.
        """
        if self._using is not None and not self._closed:
            stream, number = self._using
            self._using = None
            stream.finish(number)

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        self.done()
        self._caller.poll()
        while True:
            for stream in self._streams:
                found = stream.take()
                if found is not None:
                    self._using = stream, found[0]
                    self._streams.append(self._streams.pop(self._streams.index(stream)))  # the others come first now
                    return unpack(found[1].form, found[1].arrays)
            self._mend()
            if all(stream.ended for stream in self._streams):
                self._remote.epochs |= {stream.to.address: stream.epoch + 1 for stream in self._streams}
                self.close()
                raise StopIteration
            self._wait()

    def _mend(self) -> None:
        for stream in self._streams:
            if isinstance(stream.error, Aborted):
                log.warning("%s: %s; what it had given is read again", self._remote.server.name, stream.error)
                stream.join(self._remote.timeout, stream.epoch)
            elif stream.error is not None:
                raise stream.error

    def _ready(self) -> bool:
        return self._remote.server.exit_code is not None or any(
            stream.came or stream.error is not None or (stream.ended and not stream.open) for stream in self._going()
        )

    def _going(self) -> Sequence[Stream]:
        return [stream for stream in self._streams if not stream.ended]

    def _wait(self) -> None:
        """Until something comes. Raises DeadlineExceeded that names who is waited for."""
        began, server = self._caller.now(), self._remote.server
        going = self._going()
        requests = [request for stream in going for request in stream.open.values()]

        def stop() -> bool:
            return self._ready() or any(stream.ended for stream in going)

        while not stop():
            left = began + self._remote.timeout - self._caller.now()
            if self._caller.wait(requests, max(0.0, min(left, REPORT_S)), stop) or stop():
                break
            waited_s = self._caller.now() - began
            who = "; ".join(stream.reason or f"{stream.task} ({stream.to.address}) does not answer" for stream in going)
            text = f"{server.name}: dataset {self._remote.name!r}: {who}"
            if self._caller.now() >= began + self._remote.timeout:
                raise DeadlineExceeded(f"{text}; waited {waited_s:.1f} s")
            log.warning("%s; waits since %.0f s", text, waited_s)
        if server.exit_code is not None:
            raise TaskLost(f"dataset {self._remote.name!r}: {server.reason or 'the run has ended'}")

    def close(self) -> None:
        """End the pass: batches that this worker has not finished go to others. A second call does nothing."""
        if not self._closed:
            self._closed = True
            asked = [self._caller.start(s.to, s.leave(), lambda answer: True) for s in self._streams]
            self._caller.wait(asked, LEAVE_S)
            self._caller.close()

    def __del__(self) -> None:
        if not self._closed:
            self._closed = True
            for stream in self._streams:
                self._caller.post(stream.to, stream.leave())
            self._caller.close()


class RemoteDataset:
    """A dataset that dataset tasks read and prepare for all workers. Each `for` over it is an epoch that workers share.

    The first `for` is epoch 0 in every worker; for one that comes late, epochs that are over are empty.

    A worker asks for batches ahead, under a credit: it does not wait while there is data, and a slow worker holds up no
    other. A batch is finished when the loop asks for the next one. What a worker has not finished when it dies, or when
    its loop ends, goes to another worker; an epoch ends for all when all of its batches are finished.

    Made by `dps.data.remote`.

    Args:
        server: The worker.
        name: The name under which the dataset is served.
        prefetch: Batches that are on their way or here, beside the one in use.
        tasks: How many tasks serve it.
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
        self.server, self.name, self.timeout, self.window = server, name, timeout, prefetch + 1
        listed = server.cluster.num_tasks(name) if server.cluster and name in server.cluster.jobs else 1
        self._tasks = listed if tasks is None else tasks
        self.epochs: dict[str, int] = {}
        """The next epoch, by the address of who serves; 0 at first."""

    def __iter__(self) -> RemotePass:
        return RemotePass(self)

    def position(self) -> dict[str, Any]:
        """Which batches are finished, for `dps.data.serve(position=...)` after a restart. Blocks.

        Returns:
            The position of each task that serves, by its name, such as "dataset:0": numbers, text, lists and dicts.

        Raises:
            DeadlineExceeded: A task does not answer.
        """
        caller = Caller(self.server.runtime, self.server.name, self.server.home().keys)
        try:
            found = {}
            for to in self._find(caller):
                answer = caller.ask(to, AskPosition(), self.timeout)
                assert isinstance(answer, PositionIs), answer
                found[answer.task] = answer.position
            return found
        finally:
            caller.close()

    def _find(self, caller: Caller) -> list[Ref]:
        """The tasks that serve the dataset, when as many as are wanted are there. Blocks."""
        began, there = caller.now(), 0
        while True:
            left = self.timeout - (caller.now() - began)
            if left <= 0:
                raise DeadlineExceeded(
                    f"{self.server.name}: dataset {self.name!r} is served by {there} of {self._tasks} tasks after "
                    f"{self.timeout:.1f} s; start one with --job dataset, or dps.data.serve"
                )
            if self.server.exit_code is not None:
                raise TaskLost(f"dataset {self.name!r}: {self.server.reason or 'the run has ended'}")
            answer = caller.ask(Ref(self.server.target, DIRECTORY), Find(self.name), left)
            assert isinstance(answer, Found), answer
            there = len(answer.addresses)
            for address, role in zip(answer.addresses, answer.keys, strict=False):
                caller.expect(address, role or "chief")  # of the chief's own node it is not known
            if there >= self._tasks:
                return [Ref(address, feed_name(self.name)) for address in answer.addresses]
            self.server.runtime.sleep(min(LOOK_S, left))


def remote(
    server: Server, name: str = "dataset", prefetch: int = 2, tasks: int | None = None, timeout: float = 60.0
) -> RemoteDataset:
    """The dataset that other tasks of the run serve under a name.

    Args:
        server: The worker.
        name: The name, as of `serve`.
        prefetch: Batches that are on their way or here, beside the one in use, from each task: the worker's credit.
        tasks: How many tasks serve it. None: as many as the cluster has under this name, else 1.
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
