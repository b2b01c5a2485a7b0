"""The waits of a session: each has a deadline, goes on through rollbacks, and names who did not answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from dps.client.connection import Connection
from dps.errors import Aborted, DeadlineExceeded, checked_seconds
from dps.process.record import record
from dps.process.telemetry import LoopTimes, log

if TYPE_CHECKING:
    from dps.client.transfers import Transfer


@record
class Loss:
    """The steps that a rollback has undone. `certain`: nobody was told of more."""

    steps: int
    certain: bool

    def __str__(self) -> str:
        return f"{'' if self.certain else 'at least '}{self.steps} {'step' if self.steps == 1 else 'steps'} lost"


class Operation:
    """A pull, a push or a lookup: requests to several ps that are complete together."""

    def start(self) -> None:
        """Send the requests that are not sent yet, and again those of an epoch that has ended."""

    def requests(self) -> Iterable[Transfer]:
        """The requests that are sent."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Whether all requests have their answers."""
        raise NotImplementedError

    def waits_for(self) -> list[str]:
        """For whom the ps that have not answered wait, as they say; "" if they say nothing."""
        return [request.waits_for for request in self.requests() if not request.complete]

    def raise_error(self) -> None:
        """Raise the error that a ps answered with, if any."""
        for request in self.requests():
            if request.error is not None:
                raise request.error


class Waiter:
    """The waits of one session. `rejoined(new_epoch, lost)` is called after the session has joined again; what it
    returns is called once the session takes part, and tells the program."""

    def __init__(
        self, connection: Connection, timeout_s: float, rejoined: Callable[[bool, Loss], Callable[[], None]]
    ) -> None:  # fmt: skip
        self._connection, self._timeout_s, self._rejoined = connection, timeout_s, rejoined
        self.closed = False

    def check_open(self) -> None:
        """ValueError when the session is closed."""
        if self.closed:
            raise ValueError("the session is closed; open another dps.Session")

    def deadline(self, timeout: float | None) -> float:
        """The deadline of a call on the caller's clock, which stands still while this process is stopped. `timeout`
        None: the session's. Raises ValueError for what is no number of seconds."""
        return self._connection.caller.now() + checked_seconds(timeout, self._timeout_s)

    @property
    def patience_ms(self) -> int:
        """The session's timeout, which pulls carry; 0 for no limit. A call's own timeout is not sent."""
        return 0 if self._timeout_s == float("inf") else max(1, int(1000 * self._timeout_s))

    def poll(self, operation: Operation) -> bool:
        """Handle what has arrived; whether the operation is complete, or has to be waited for because only that joins
        the run again. Does not block."""
        operation.start()
        self._connection.caller.poll()
        return operation.complete or not self._connection.membership.runs

    def wait(self, operation: Operation, timeout: float | None, what: str) -> None:
        """Send and receive until an operation is complete. Raises DeadlineExceeded, which names who did not answer."""
        self.check_open()
        connection, own = self._connection, self._connection.home.runtime.tuning.client
        started = now = connection.caller.now()
        deadline = started + checked_seconds(timeout, self._timeout_s)
        look_at, report_at = started + own.slice_s, started + own.report_s
        if not connection.membership.entered:  # Ctrl-C has come while it joined again
            self.recover(deadline)
        operation.start()
        while not operation.complete:
            if not connection.membership.runs:
                self.recover(deadline)
                operation.start()
                continue
            connection.check_node()
            if now >= deadline:
                connection.caller.poll()
                if operation.complete:
                    break
                raise DeadlineExceeded(self._late(operation, what, now - started), operation)
            if now >= look_at:
                connection.lookout.look()
                connection.joining.unreached.log_unreached()
                look_at = now + own.slice_s
                if now >= report_at:
                    report_at = now + own.report_s
                    log.warning("%s", self._late(operation, what, now - started))
            connection.caller.turn(max(0.0, min(deadline, look_at, connection.caller.due_at) - now))
            now = connection.caller.now()
        operation.raise_error()

    def _late(self, operation: Operation, what: str, waited_s: float) -> str:
        connection = self._connection
        reasons = [text for text in (*operation.waits_for(), connection.silent()) if text]
        silent = dict.fromkeys(f"ps:{request.ps}" for request in operation.requests() if not request.complete)
        why = "; ".join(dict.fromkeys(reasons)) or f"{', '.join(silent) or 'the ps'} did not answer"
        return f"{connection.home.name}: {what} took more than {waited_s:.1f} s at step {connection.steps.step}: {why}"

    def retrying(self, call: Callable[[float], Any], timeout: float | None) -> Any:
        """The result of `call(deadline)`, repeated in the next run epoch when an epoch ends during the call."""
        deadline = self.deadline(timeout)
        while True:
            if not self._connection.membership.entered:
                self.recover(deadline)
            try:
                return call(deadline)
            except Aborted:
                self.recover(deadline)

    def recover(self, deadline: float) -> None:
        """Join the current run epoch. Blocks. Raises DeadlineExceeded if none begins in time."""
        connection = self._connection
        connection.membership.end()  # if it only settles; now each later call joins again, wherever Ctrl-C comes
        connection.joining.join(deadline)
        membership = connection.membership
        epoch, before = membership.left
        if membership.epoch != epoch:
            loss = Loss(max(0, max(before, membership.reached) - membership.restored), membership.certain)
        else:  # lost steps are reported whatever the epoch's number is
            loss = Loss(max(0, before - connection.steps.step), False)
        tell = self._rejoined(membership.epoch != epoch or loss.steps > 0, loss)
        membership.begin()
        connection.home.runtime.record(
            "rejoined", before=epoch, epoch=membership.epoch, step=membership.restored, lost=loss.steps,
            certain=loss.certain,
        )  # fmt: skip
        tell()


if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")


class _NoLock:
    """Stands for the lock of a session in a process that was forked from the session's: nobody gets it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return False

    def release(self) -> None:
        """A call in which the process was forked has ended in the child, too."""


_guards: WeakSet[ThreadGuard] = WeakSet()
"""Those of all sessions of this process, and of those from which it was forked."""


def _leave_to_parent() -> None:
    """This process was forked. Parent and child would push under the same numbers, of which a ps applies each once."""
    for guard in _guards:
        guard.lock = _NoLock()


os.register_at_fork(after_in_child=_leave_to_parent)


class ThreadGuard:
    """The lock of a session. Different threads may use the session, one call at a time; forked processes may not."""

    __slots__ = ("__weakref__", "_name", "_process", "call", "lock", "thread", "times")

    def __init__(self, name: Callable[[], str], times: LoopTimes) -> None:
        """`times`: is told when a call begins and ends."""
        self._name, self.times, self._process = name, times, os.getpid()
        self.lock: Any = threading.RLock()  # a hook calls its session again, in the same thread
        self.call, self.thread = "", 0
        """The current or the last call, and its thread."""
        _guards.add(self)

    @property
    def is_of_parent(self) -> bool:
        """Whether this process was forked from that of the session."""
        return self.lock.__class__ is _NoLock

    def take(self, call: str, wait_s: float) -> None:
        """Begin a call; `lock.release()` ends it. Raises RuntimeError if another thread is in a call for longer than
        `wait_s`, or this process was forked from the session's."""
        if not self.lock.acquire(timeout=wait_s):
            raise self.taken(call)
        self.call, self.thread = call, get_ident()

    def taken(self, call: str) -> RuntimeError:
        """The error for a call while another thread is in one, or in a forked process."""
        if self.is_of_parent:
            return RuntimeError(
                f"{self._name()}: {call}() was called in process {os.getpid()}, which was forked from process "
                f"{self._process}, where the session was opened and belongs; open a dps.Session in each process"
            )
        return RuntimeError(
            f"{self._name()}: {threading.current_thread().name} called {call}() while {self._other()} is in "
            f"{self.call}(); a session serves one thread at a time: give each thread a session of its own, or have "
            "them take turns with a lock"
        )

    def _other(self) -> str:
        names = [thread.name for thread in threading.enumerate() if thread.ident == self.thread]
        return names[0] if names else f"thread {self.thread}"

    def run(self, call: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function under the lock. Raises RuntimeError if another thread is in a call."""
        if not self.lock.acquire(False):
            raise self.taken(call)
        self.call, self.thread, times = call, get_ident(), self.times
        times.at = times.now()
        try:
            return function(*args, **kwargs)
        finally:
            times.inside_s += times.now() - times.at
            self.lock.release()

    def of(self, call: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function as a call of the session, for what a session hands out, such as a reply."""
        return partial(self.run, call, function)

    def each(self, call: str, values: Generator[T, None, None]) -> Iterator[T]:
        """The same values; each `next` is a call of the session."""
        return EachTurn(self, call, values)


class EachTurn(Iterator[Any]):
    """The values of a generator; each `next` is a call of the session. What has ended them is raised again, because
    they are not over."""

    __slots__ = ("_call", "_error", "_guard", "_values")

    def __init__(self, guard: ThreadGuard, call: str, values: Generator[Any, None, None]) -> None:
        self._guard, self._call, self._values = guard, call, values
        self._error: Exception | None = None

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error
        try:
            return self._guard.run(self._call, self._values.__next__)
        except StopIteration:
            raise
        except BaseException as error:
            if self._values.gi_frame is None:  # type: ignore[attr-defined]  # it has ended; else another thread is in a call
                self._error = error if isinstance(error, Exception) else self._ended_by(error)
            raise

    def _ended_by(self, interrupt: BaseException) -> RuntimeError:
        """What Ctrl-C is told as later: it is not kept, for its trace would keep what it has interrupted."""
        return RuntimeError(
            f"{self._call}: {type(interrupt).__name__} has ended these values; begin others with session.{self._call}()"
        )

    def close(self) -> None:
        """End the values. A second call does nothing."""
        self._values.close()


def one_at_a_time(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Mark a method of an object with `_turns`: one thread at a time may be in its marked methods."""
    call = method.__name__

    @wraps(method)
    def taking_turns(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        turns: ThreadGuard = self._turns
        if not turns.lock.acquire(False):  # all of this is `turns.run`, without its call: it is a part of every step
            raise turns.taken(call)
        turns.call, turns.thread, times = call, get_ident(), turns.times
        times.at = times.now()
        try:
            return method(self, *args, **kwargs)
        finally:
            times.inside_s += times.now() - times.at
            turns.lock.release()

    return taking_turns
