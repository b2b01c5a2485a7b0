"""One pass of a worker over a remote dataset: the batches that have come, that are in use and that are finished."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from dps.actors.caller import Caller
from dps.actors.messages import ends
from dps.actors.ref import Ref
from dps.data.finishing import Finishing
from dps.data.stream import Stream
from dps.errors import Aborted, DeadlineExceeded, TaskLost
from dps.telemetry import log
from dps.variables.items import unpack

if TYPE_CHECKING:
    from dps.data.finding import Finder
    from dps.server import Server


LEAVE_S = 2.0
REPORT_S = 10.0
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

    def __init__(self, remote: Remote) -> None:
        self._remote, self._server = remote, remote.server
        self._caller = Caller(self._server.runtime, self._server.name, self._server.home().keys)
        self._closed = False
        self._using: tuple[Stream, int] | None = None
        """The batch that the loop has, and the stream that it came from."""
        self._finishing = Finishing(self.confirm)
        self._streams: list[Stream] = []
        for to in remote.finder.find(self._caller):
            stream = Stream(self._caller, to, self._server, remote.window)
            stream.join(remote.timeout, remote.epochs.get(to.address, 0))
            self._streams.append(stream)
        self._server.home().hooks.append(self._finishing)

    def __iter__(self) -> Self:
        return self

    def done(self) -> None:
        """The batch in use is finished, as an accepted push or asking for the next one says, too. Does not wait.

        Call it where batches are used for anything but pushes of a `dps.Session`, and much is done before the next one.
        """
        if self._using is not None and not self._closed:
            stream, number = self._using
            self._using = None
            stream.finish(number)

    def confirm(self) -> None:
        """As `done`, and wait until the task that serves has heard it: from then on nobody else gets the batch. Blocks.

        When a push of the batch is accepted, the session calls it before it returns.
        """
        if self._using is None or self._closed:
            return
        stream, number = self._using
        self._using = None
        told, away = stream.confirm(number), self._caller.away

        def stop() -> bool:
            return self._server.exit_code is not None or stream.to.address in away

        if not self._caller.wait([told], CONFIRM_S, stop) and self._server.exit_code is None:
            log.warning("%s has not confirmed that a batch is finished; it may be given again", self._named(stream))

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
                    self._finishing.taken()
                    self._streams.append(self._streams.pop(self._streams.index(stream)))  # the others come first now
                    return unpack(found[1].form, found[1].arrays)
            self._mend()
            if all(stream.ended for stream in self._streams):
                self._remote.epochs.update({stream.to.address: stream.epoch + 1 for stream in self._streams})
                self.close()
                raise StopIteration
            self._wait()

    def _named(self, stream: Stream) -> str:
        return f"{self._server.name}: dataset {self._remote.name!r}: {stream.task} ({stream.to.address})"

    def _mend(self) -> None:
        for stream in self._streams:
            if isinstance(stream.error, Aborted):
                log.warning("%s: %s; the batches that it had given are read again", self._server.name, stream.error)
                stream.join(self._remote.timeout, stream.epoch)
            elif stream.error is not None:
                raise stream.error

    def _follow(self) -> bool:
        """Join tasks that were started again at another address; returns whether there were any."""
        lost = [stream for stream in self._going() if stream.to.address in self._caller.away]
        found: list[Ref] = []
        if lost:
            with contextlib.suppress(DeadlineExceeded):  # who does not serve is named when the time is over
                found, _ = self._remote.finder.now(self._caller, FOLLOW_S)
        known = {stream.to.address for stream in self._streams}
        moved = list(zip(lost, [to for to in found if to.address not in known], strict=False))
        for stream, to in moved:
            log.warning(
                "%s serves at %s now; the batches that it had given are read again", self._named(stream), to.address
            )
            stream.to = to
            stream.join(self._remote.timeout, stream.epoch)
        return bool(moved)

    def _going(self) -> Sequence[Stream]:
        return [stream for stream in self._streams if not stream.ended]

    def _wait(self) -> None:
        """Until something comes. Raises DeadlineExceeded that names who is waited for."""
        began = self._caller.now()
        report_at, end_at = began + REPORT_S, began + self._remote.timeout
        going, server = self._going(), self._server
        requests = [request for stream in going for request in stream.open.values()]

        def stop() -> bool:
            changed = any(stream.came or stream.ended or stream.error is not None for stream in going)
            return changed or server.exit_code is not None

        while not stop():
            now = self._caller.now()
            least = min(report_at, end_at, now + FOLLOW_S if self._caller.away else end_at)
            if self._caller.wait(requests, max(0.0, least - now), stop) or stop() or self._follow():
                break
            now = self._caller.now()
            who = "; ".join(stream.reason or f"{stream.task} ({stream.to.address}) does not answer" for stream in going)
            text = f"{server.name}: dataset {self._remote.name!r}: {who}"
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
        if not self._closed:
            self._end()
            asked = [self._caller.start(s.to, s.leave(), ends) for s in self._streams]
            self._caller.wait(asked, LEAVE_S)
            self._caller.close()

    def _end(self) -> None:
        self._closed = True
        with contextlib.suppress(ValueError):  # a pass that could not begin is not there
            self._server.home().hooks.remove(self._finishing)

    def __del__(self) -> None:
        if not self._closed:
            self._end()
            for stream in self._streams:
                self._caller.post(stream.to, stream.leave())
            self._caller.close()
