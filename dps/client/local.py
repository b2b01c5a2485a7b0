"""The calls of a session in local mode: it trains a copy of its own, and pushes the copy's difference once a round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dps.client.loading import check_all_finite
from dps.client.session import Session
from dps.client.waiting import one_at_a_time
from dps.messages.replies import Push, Reply, Version
from dps.training.update_modes import Local
from dps.variables.local_copy import LocalCopy


class LocalSession(Session):
    """A session in local mode. It sends messages to the ps only when it joins and at the end of each round."""

    _own: LocalCopy
    _round: int
    """The number of steps of a round."""

    def _ready(self, timeout: float | None) -> LocalCopy:
        """The session's own copy. At the beginning of a round it takes the common values, and blocks for them."""
        self._waiter.check_open()
        connection = self._connection
        while self._own.ended or self._own.membership is not connection.membership:
            self._pushes.drain()
            common = self._pulls.finish(self._pulls.start(None, None, after=False), timeout)
            if self._own.membership is not connection.membership:
                self._tell_lost()
                self._own = LocalCopy(connection.agreed.plan, connection.membership)
            self._own.begin_round(common)
        return self._own

    def _tell_lost(self) -> None:
        """Tell of the steps of a round that ended without this session: their pushes had been accepted."""
        lost, self._own.steps = self._own.steps, 0
        if lost:
            self._reports.round_lost(self._connection.steps.step, lost)

    # -- training -----------------------------------------------------------------------------------------------

    @one_at_a_time
    def push(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Push:
        """As Session.push: a step of the session's own copy. The last one of a round waits for the other workers."""
        gradients, own = self._gradients(grads, loss), self._ready(timeout)
        check_all_finite(self._connection.agreed, gradients, "gradient")
        own.apply(gradients, self._round * self._connection.steps.local_step + own.steps)
        if own.steps == self._round:
            return self._end_round(loss, timeout)
        result = Push(self.global_step, True)
        self._reports.settled(result, loss)
        return result

    def _end_round(self, loss: Any, timeout: float | None) -> Push:
        """Push the difference of the own copy, and wait for the other workers."""
        moved = self._own.differences()
        self._own.ended = True
        check_all_finite(self._connection.agreed, moved, "movement")
        result = self._pushes.finish(self._pushes.start(moved, loss, timeout), timeout)
        if result.accepted:
            self._own.steps = 0
        return result

    def _finish_pushes(self) -> None:
        """Push the steps since the last round when the session is closed."""
        if self._own.steps and not self._own.ended and self._own.membership is self._connection.membership:
            self._end_round(None, None)
        super()._finish_pushes()
        if self._own.membership is not self._connection.membership:
            self._tell_lost()

    def push_async(self, grads: Any, loss: Any = None) -> Reply[Push]:
        """As Session.push_async; the last push of a round blocks."""
        return _there(self.push(grads, loss))

    def step(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Any:
        """As Session.step."""
        self.push(grads, loss, timeout)
        return self.pull(timeout=timeout)

    @one_at_a_time
    def assign(self, values: Any, timeout: float | None = None) -> None:
        """As Session.assign: sets the own copy at once, and the common values after the round."""
        super().assign(values, timeout)
        self._ready(timeout).assign(values)

    # -- reading ------------------------------------------------------------------------------------------------

    @one_at_a_time
    def pull(
        self, names: Sequence[str] | None = None, out: Any = None, if_newer_than: Version | None = None,
        timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """As Session.pull, of the own copy."""
        own = self._ready(timeout)
        if if_newer_than is not None and own.is_common and if_newer_than == self.version:
            return None
        values = own.values(names)
        return self._saw(values) if out is None else self._filled(out, values)

    def pull_async(self, names: Sequence[str] | None = None) -> Reply[Any]:
        """As Session.pull_async; at the beginning of a round it blocks."""
        return _there(self.pull(names))

    @contextmanager
    def view(self) -> Iterator[Any]:
        """As Session.view, of the own copy; at the beginning of a round it blocks."""
        yield self._saw(self._turns.run("view", lambda: self._ready(None).values(None, still=True)))

    @one_at_a_time
    def lookup(self, name: Any, rows: Any = None, timeout: float | None = None, out: Any = None) -> Any:
        """As Session.lookup, of the own copy."""
        return self._ready(timeout).lookup(name, rows, out)

    def lookup_async(self, name: Any, rows: Any = None, out: Any = None) -> Any:
        """As Session.lookup_async; at the beginning of a round it blocks."""
        return _there(self.lookup(name, rows, None, out))


class DrivingSession(Session):
    """A session of a program that is not a worker. It reads the common values, and has no copy until it pushes."""

    def _take_part(self, timeout: float | None) -> Session:
        """Become a session whose copy is averaged. Blocks."""
        self._connection.joining.take_part(self._deadline(timeout))
        begin(self)
        return self

    def push(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Push:
        """As LocalSession.push."""
        return self._take_part(timeout).push(grads, loss, timeout)

    def push_async(self, grads: Any, loss: Any = None) -> Reply[Push]:
        """As LocalSession.push_async."""
        return self._take_part(None).push_async(grads, loss)

    def step(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Any:
        """As LocalSession.step."""
        return self._take_part(timeout).step(grads, loss, timeout)


def begin(session: Session) -> None:
    """Make the calls of an open session those of local mode."""
    connection, mode = session._connection, session.update
    session.__class__ = LocalSession if connection.joining.averages else DrivingSession
    if isinstance(session, LocalSession) and isinstance(mode, Local):
        session._own, session._round = LocalCopy(connection.agreed.plan, connection.membership), mode.steps


def _there(result: Any) -> Reply[Any]:
    """A reply whose result is there."""
    return Reply(lambda timeout: result, lambda: True, lambda: getattr(result, "accepted", None))
