"""A dataset that dataset tasks read and prepare, as a worker uses it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Self
from weakref import WeakMethod

from dps.actors.answers import is_last
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.data.messages import AskPosition, PositionIs, feed_name
from dps.data.stage import OneReader
from dps.data.stream import Stream
from dps.errors import Aborted, ConfigError, DeadlineExceeded, TaskLost, positive_seconds
from dps.hooks.hook import Hook
from dps.hooks.scalars import is_name
from dps.messages.replies import Push
from dps.process.telemetry import log, timed_read
from dps.queues.directory import DIRECTORY, Find, FoundAddresses
from dps.queues.messages import LONGEST_NAME
from dps.task.server import Server
from dps.training.definition import whole_number
from dps.variables.items import unpack

LOOK_S = 0.2


class Finder:
    """Finds the tasks that serve under one name. `tasks`: how many are wanted; None: as many as they report, else
    one."""

    def __init__(self, server: Server, name: str, tasks: int | None, timeout_s: float) -> None:
        self._server, self._name, self._tasks, self._timeout_s = server, name, tasks, timeout_s

    def find_tasks(self, caller: Caller) -> list[Ref]:
        """The tasks, when as many as are wanted are there. Blocks. Raises DeadlineExceeded with how many are."""
        began, there, wanted = caller.now(), 0, self._tasks or 1
        while True:
            left = self._timeout_s - (caller.now() - began)
            if left <= 0:
                raise DeadlineExceeded(
                    f"{self._server.name}: dataset {self._name!r} is served by {there} of {wanted} tasks after "
                    f"{self._timeout_s:.1f} s; start one with --job dataset, or dps.data.serve"
                )
            if self._server.exit_code is not None:
                raise TaskLost(f"dataset {self._name!r}: {self._server.reason or 'the run has ended'}")
            found, said = self.ask_directory(caller, left)
            there, wanted = len(found), self._tasks or said or 1
            if there >= wanted:
                return found
            self._server.runtime.sleep(min(LOOK_S, left))

    def ask_directory(self, caller: Caller, timeout_s: float) -> tuple[list[Ref], int]:
        """The tasks that serve now, and how many there are to be, as they report it; 0 if they do not. Blocks."""
        answer = caller.ask(Ref(self._server.target, DIRECTORY), Find(self._name), timeout_s)
        assert isinstance(answer, FoundAddresses), answer
        for address, role in zip(answer.addresses, answer.keys, strict=False):
            caller.expect(address, role or "chief")  # of the chief's own node it is not known
        return [Ref(address, feed_name(self._name)) for address in answer.addresses], answer.tasks


_taken_from: ContextVar[frozenset[Finishing]] = ContextVar("dps_taken_from", default=frozenset())
"""The hooks of the passes from which the running thread has taken batches."""


class Finishing(Hook):
    """The hook of one pass. It acts only if the push is certainly one of the batch in use: the thread that pushes took
    the batch, has none of another pass in use, and the push began after that, with no other one in flight."""

    def __init__(self, confirm: Callable[[], None], pushes_in_flight: Callable[[], int]) -> None:
        """`confirm`: a method of the pass; a pass that is dropped ends. `pushes_in_flight`: how many pushes of the task
        have no result yet."""
        self._confirm, self._pushes_in_flight = WeakMethod(confirm), pushes_in_flight
        self._in_flight, self._certain = 0, False
        """`in_flight`: below 0 after the result of a push that began before the pass did."""
        self._in_use = False
        """Whether the loop has a batch. One that a push has confirmed counts: the next push may be of it, too."""

    def is_in_use(self) -> bool:
        """Whether a push may be one of a batch of the pass."""
        return self._in_use and self._confirm() is not None

    def release_batch(self) -> None:
        """The loop is done with its batch, or over."""
        self._in_use = False

    def record_batch(self) -> None:
        """The loop has got another batch."""
        self._certain = self._pushes_in_flight() == 0
        self._in_use = True
        _taken_from.set(frozenset(hook for hook in _taken_from.get() if hook.is_in_use()) | {self})

    def has_other_pass(self) -> bool:
        """Whether the running thread has a batch of another pass in use."""
        return any(hook.is_in_use() for hook in _taken_from.get() if hook is not self)

    def before_run(self, session: Any) -> None:
        # Asked for: there may be pushes from before the pass, and those that are refused have no result.
        self._in_flight = self._pushes_in_flight() + 1
        if self in _taken_from.get() and self.has_other_pass():
            self._certain = False  # the push may be of the other pass

    def after_run(self, session: Any, push: Push, loss: Any) -> None:
        self._in_flight -= 1  # not asked for: hooks hear of results one after the other that came together
        confirm = self._confirm()
        certain = self._certain and not self._in_flight and self in _taken_from.get()
        if push.accepted and certain and confirm is not None:
            confirm()


def has_batch_in_use() -> bool:
    """Whether the running thread has a batch of a remote dataset in use, which it finishes when it asks for the next
    one."""
    return any(hook.is_in_use() for hook in _taken_from.get())


HAS_OTHER = "; this thread has a batch of another loop in use, which the next one of that loop finishes, or its done()"

LEAVE_S = 2.0
"""How long a pass that ends waits until the tasks know it."""
REPORT_S = 10.0
"""How often a loop that waits says for whom."""
CONFIRM_S = 10.0
"""How long a task may take to confirm that a batch is finished."""
FOLLOW_S = 1.0
"""How often it is asked where a task serves whose connection is broken."""


class Remote(NamedTuple):
    """What the passes over one remote dataset share."""

    server: Server
    name: str
    finder: Finder
    window: int
    """The most batches that are here or on their way."""
    timeout: float
    """Seconds that a loop waits for a batch at most."""
    epochs: dict[str, int]
    """The next epoch, by the address of the task that serves; 0 at first."""


class RemotePass:
    """One pass over a remote dataset. It belongs to one thread at a time; a ConfigError tells another one.

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

    def __init__(self, remote: Remote) -> None:
        self._remote, self._server = remote, remote.server
        self._caller = Caller(self._server.runtime, self._server.name, self._server.home().keys)
        self._closed = False
        self._one_reader = OneReader(f"{self._server.name}: dataset {remote.name!r}")
        self._using: tuple[Stream, int] | None = None
        """The batch that the loop has, and the stream that it came from."""
        self._finishing = Finishing(self.confirm, self._server.home().pushes_in_flight)
        self._streams: list[Stream] = []
        over = []
        for to in remote.finder.find_tasks(self._caller):
            stream = Stream(self._caller, to, self._server, remote.window)
            over.append(stream.join_epoch(remote.timeout, remote.epochs.get(to.address, 0)))
            self._streams.append(stream)
        if all(over) and not remote.epochs:
            log.warning(
                "%s: dataset %r: epoch 0 is over, so this first pass has no batches; unless this worker has "
                "joined late, use one dps.data.remote for all its epochs", self._server.name, remote.name
            )  # fmt: skip
        self._server.home().hooks.append(self._finishing)

    def __iter__(self) -> Self:
        return self

    def done(self) -> None:
        """The batch in use is finished, as an accepted push or asking for the next one says, too. Does not wait.

        Call it where batches are used for anything but pushes of a `dps.Session`, and much is done before the next one.
        """
        with self._one_reader:
            self._finish_batch()

    def _finish_batch(self) -> None:
        self._finishing.release_batch()
        if self._using is not None and not self._closed:
            stream, number = self._using
            self._using = None
            stream.finish_batch(number)

    def confirm(self) -> None:
        """As `done`, and wait until the task that serves has heard it: from then on nobody else gets the batch. Blocks.

        When a push of the batch is accepted, the session calls it before it returns.
        """
        if self._using is None or self._closed:
            return
        stream, number = self._using
        self._using = None
        told, away = stream.confirm_batch(number), self._caller.away

        def stop() -> bool:
            return self._server.exit_code is not None or stream.to.address in away

        if not self._caller.wait([told], CONFIRM_S, stop) and self._server.exit_code is None:
            log.warning("%s has not confirmed that a batch is finished; it may be given again", self._named(stream))

    def __next__(self) -> Any:
        with self._one_reader:
            return timed_read(self._server.runtime.now, self._read_batch)

    def _read_batch(self) -> Any:
        if self._closed:
            raise StopIteration
        self._finish_batch()
        self._caller.poll()
        while True:
            for stream in self._streams:
                found = stream.take_batch()
                if found is not None:
                    self._using = stream, found[0]
                    self._finishing.record_batch()
                    self._streams.append(self._streams.pop(self._streams.index(stream)))  # the others come first now
                    return unpack(found[1].form, found[1].arrays)
            self._rejoin_restarted()
            if all(stream.ended for stream in self._streams):
                self._remote.epochs.update({stream.to.address: stream.epoch + 1 for stream in self._streams})
                self._leave()
                raise StopIteration
            self._wait_for_batch()

    def _named(self, stream: Stream) -> str:
        return f"{self._server.name}: dataset {self._remote.name!r}: {stream.task} ({stream.to.address})"

    def _rejoin_restarted(self) -> None:
        for stream in self._streams:
            if isinstance(stream.error, Aborted):
                log.warning("%s: %s; the batches that it had given are read again", self._server.name, stream.error)
                stream.join_epoch(self._remote.timeout, stream.epoch)
            elif stream.error is not None:
                raise stream.error

    def _join_moved(self) -> bool:
        """Join tasks that were started again at another address; returns whether there were any."""
        lost = [stream for stream in self._going() if stream.to.address in self._caller.away]
        found: list[Ref] = []
        if lost:
            with contextlib.suppress(DeadlineExceeded):  # who does not serve is named when the time is over
                found, _ = self._remote.finder.ask_directory(self._caller, FOLLOW_S)
        known = {stream.to.address for stream in self._streams}
        moved = list(zip(lost, [to for to in found if to.address not in known], strict=False))
        for stream, to in moved:
            log.warning(
                "%s serves at %s now; the batches that it had given are read again", self._named(stream), to.address
            )
            stream.to = to
            stream.join_epoch(self._remote.timeout, stream.epoch)
        return bool(moved)

    def _going(self) -> Sequence[Stream]:
        return [stream for stream in self._streams if not stream.ended]

    def _wait_for_batch(self) -> None:
        """Until something comes. Raises DeadlineExceeded that names who is waited for."""
        began = self._caller.now()
        report_at, end_at = began + REPORT_S, began + self._remote.timeout
        going, server = self._going(), self._server
        requests = [request for stream in going for request in stream.open.values()]
        own = HAS_OTHER if self._finishing.has_other_pass() else ""

        def stop() -> bool:
            changed = any(stream.came or stream.ended or stream.error is not None for stream in going)
            return changed or server.exit_code is not None

        while not stop():
            now = self._caller.now()
            least = min(report_at, end_at, now + FOLLOW_S if self._caller.away else end_at)
            if self._caller.wait(requests, max(0.0, least - now), stop) or stop() or self._join_moved():
                break
            now = self._caller.now()
            who = "; ".join(stream.reason or f"{stream.task} ({stream.to.address}) does not answer" for stream in going)
            text = f"{server.name}: dataset {self._remote.name!r}: {who}{own}"
            if now >= end_at:
                raise DeadlineExceeded(f"{text}; waited {now - began:.1f} s")
            if now >= report_at:
                report_at += REPORT_S
                log.warning("%s; has waited %.0f s", text, now - began)
        if server.exit_code is not None:
            raise TaskLost(f"dataset {self._remote.name!r}: {server.reason or 'the run has ended'}")

    def close(self) -> None:
        """End the pass: batches that this worker has not finished go to others.

        Blocks until the tasks that serve have answered, for a short time at most. A second call does nothing.
        """
        with self._one_reader:
            self._leave()

    def _leave(self) -> None:
        if not self._closed:
            self._end_pass()
            asked = [self._caller.start(s.to, s.end_stream(), is_last) for s in self._streams]
            self._caller.wait(asked, LEAVE_S, lambda: self._server.exit_code is not None)
            self._caller.close()

    def _end_pass(self) -> None:
        self._closed = True
        self._finishing.release_batch()
        with contextlib.suppress(ValueError):  # a pass that could not begin is not there
            self._server.home().hooks.remove(self._finishing)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter ends, modules are gone (also the name `sys`), and the sockets end with the process.
        if not self._closed and not is_finalizing():
            self._end_pass()
            for stream in self._streams:
                self._caller.post(stream.to, stream.end_stream())
            self._caller.close()


MOST_AHEAD = 32


class RemoteDataset:
    """A dataset that dataset tasks read and prepare for all workers. Each `for` over it is an epoch that workers share.

    The first `for` is epoch 0 in every worker; for one that comes late, epochs that are over are empty. So a worker
    makes one remote dataset, and uses it for all epochs.

    A worker asks for batches ahead, under a credit: it does not wait while there is data, and a slow worker holds up no
    other. A batch is finished when a push of it is accepted, or when the loop asks for the next one. The push is one of
    a session of the same server, in the thread of the loop; of several pushes for one batch the first accepted one
    counts. While a thread has batches of two loops at once (of `zip`, say), a push finishes none: it may be of either.
    What a worker has not finished when it dies, or when its loop ends, goes to another worker; an epoch ends
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
        found = {}
        with contextlib.closing(Caller(server.runtime, server.name, server.home().keys)) as caller:
            for to in self._remote.finder.find_tasks(caller):
                answer = caller.ask(to, AskPosition(), self._remote.timeout)
                assert isinstance(answer, PositionIs), answer
                found[answer.task] = answer.position
        return found


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
        ConfigError: A prefetch below 0 or above 32, or another argument that makes no sense.

    Example:
        ```pycon
        >>> rows = dps.data.from_arrays(np.arange(4), np.arange(4) * 10)
        >>> serving = dps.data.serve(rows.shuffle(4, seed=1).batch(2), server)
        >>> sorted(int(y) for x, y in dps.data.remote(server) for y in y)
        [0, 10, 20, 30]
        ```
    """
    check_served("remote", server, name)
    if whole_number("remote: prefetch: got ", prefetch, 0) > MOST_AHEAD:
        raise ConfigError(f"remote: prefetch: got {prefetch}, wanted 0 to {MOST_AHEAD}")
    if tasks is not None:
        whole_number("remote: tasks: got ", tasks, 1)
    return RemoteDataset(server, name, prefetch, tasks, positive_seconds("remote: timeout: got ", timeout, 60.0))


def check_served(call: str, server: object, name: object) -> None:
    """Raise ConfigError unless these are a server and a name under which datasets are served."""
    if not isinstance(server, Server) or not is_name(name) or len(str(name)) > LONGEST_NAME:
        raise ConfigError(
            f"{call}: got {server!r:.60} and {name!r:.60}, wanted this process's dps.Server and a name of 1 to "
            f"{LONGEST_NAME} characters in one line"
        )
