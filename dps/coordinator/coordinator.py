"""The coordinator: one program schedules calls of functions, and the workers that serve run them."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from dps.calls.functions import RESOURCE, SESSION, VALUE, pack_arguments, unpack_value
from dps.client.session import Session
from dps.coordinator.dispatcher import Dispatcher
from dps.coordinator.schedule import CallSchedule, ScheduledCall
from dps.errors import Cancelled, ConfigError, DeadlineExceeded, TaskLost, checked_seconds, positive_seconds
from dps.process import config
from dps.process.functions import import_path
from dps.process.telemetry import LogThrottle, log
from dps.queues.directory import Announcer
from dps.task.server import Server
from dps.training.definition import whole_number

if TYPE_CHECKING:
    from dps.coordinator.schedule import ScheduledCall


Wait = Callable[[Callable[[], bool], str, "float | None"], None]
"""`wait(ready, what, timeout)` returns when `ready()` is true; see `Coordinator`."""


class RemoteValue:
    """The value of a call, which may not be there yet. `Coordinator.schedule` returns it.

    It may be an argument of later calls, which then wait for it; the program need not fetch it.

    Args:
        wait: Waits for a call of the coordinator that has scheduled it.
        call: The call.

    Example:
        ```pycon
        >>> value = coordinator.schedule("operator:add", args=(1, 2))
        >>> later = coordinator.schedule("operator:mul", args=(value, 10))
        >>> later.fetch(), value.done()
        (30, True)
        ```
    """

    def __init__(self, wait: Wait, call: ScheduledCall) -> None:
        self._wait, self._call = wait, call

    def __repr__(self) -> str:
        return f"<RemoteValue of {self._call.function}: {self._call.state.value}>"

    def done(self) -> bool:
        """Whether the call has ended. Does not block.

        Returns:
            True if `fetch` would return, or raise, at once.
        """
        return self._call.is_over

    def fetch(self, timeout: float | None = None) -> Any:
        """Wait for the value. Blocks. Each call returns a copy of its own.

        Args:
            timeout: Seconds; None: as of `Coordinator.join`.

        Returns:
            What the function returned: plain values and arrays.

        Raises:
            RemoteError: The function raised on the worker: `remote_traceback` has its traceback there. The error is of
                the class that was raised, too, where that is one of dps or a usual one of Python.
            Cancelled: Another call had failed before this one ran.
            DeadlineExceeded: No value in time. The call goes on.
        """
        call = self._call
        self._wait(lambda: call.is_over, f"fetch of {call.function}", timeout)
        if call.error is not None:
            raise call.error()
        assert call.value is not None, call.state
        return unpack_value(*call.value)


class PerWorkerValue:
    """A value that each worker makes for itself and keeps. `Coordinator.create_per_worker_value` returns it.

    As an argument of a call it arrives as the value of the worker that runs the call. It never travels, so it may be
    anything: an open file, a compiled function, a model.

    Args:
        number: By which workers know it.
        function: The path of the function that makes it.

    Example:
        ```pycon
        >>> counts = coordinator.create_per_worker_value("collections:Counter")
        >>> coordinator.schedule("builtins:len", args=(counts,)).fetch()
        0
        ```
    """

    def __init__(self, number: int, function: str) -> None:
        self._mark = ["value", number, function]


class PerWorkerDataset:
    """A dataset that each worker makes for itself. `Coordinator.create_per_worker_dataset` returns it.

    As an argument of a call it arrives as the dataset. `iter()` of it arrives as an iterator that the worker keeps from
    call to call, so that `next()` of it gives one batch after the other.

    Args:
        number: By which workers know it.
        function: The path of the function that makes it.
        numbers: Gives the next free number.

    Example:
        ```python
        batches = iter(coordinator.create_per_worker_dataset("builtins:list"))
        ```
    """

    def __init__(self, number: int, function: str, numbers: Callable[[], int]) -> None:
        self._mark, self._numbers = ["dataset", number, function], numbers

    def __iter__(self) -> PerWorkerIterator:
        return PerWorkerIterator(self._numbers(), self)


class PerWorkerIterator:
    """A pass over a dataset on each worker, as an argument of calls. The worker keeps it from call to call.

    Args:
        number: By which workers know it.
        dataset: Of what it is a pass.
    """

    def __init__(self, number: int, dataset: PerWorkerDataset) -> None:
        self._mark = ["iterator", number, dataset._mark]

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> Any:
        raise TypeError("a worker's iterator gives its batches on the worker: pass it to a call, and call next() there")


QUEUE = 262_144
LOOK_S = 0.5
"""How often a wait looks whether the run has ended, and whether somebody should be told."""
LEAVE_S = 0.2
"""How long `close` leaves its own node the time to tell the workers, before it ends that node."""
Function = Callable[..., Any] | str


class Coordinator:
    """Schedules calls of functions on the workers that serve (`--serve MODULE`), from one program elsewhere.

    Any free worker runs a call, at least once: the call of a worker that is lost runs again on another one. A function
    that pushes does so exactly once each time that it runs. Functions go by their import path; arguments and results
    are plain values and arrays. A `dps.Session` among the arguments arrives as the worker's own session, a
    `RemoteValue` as the value of that call. Threads may share a coordinator.

    Args:
        target: A server of this process, or the chief's address, such as `server.target`.
        timeout: Seconds that `schedule`, `join` and `fetch` wait while no call ends.
        queue_size: How many calls may wait for a worker. `schedule` blocks while there are as many.
        ps_errors: How often a call that failed because a ps did not answer is run again.
        keys: With an address: the folder of a worker's keys. None: as DPS_KEYS says.

    Raises:
        ConfigError: A malformed target, or a number that makes no sense.
        ValueError: A timeout that is no number of seconds.
        DeadlineExceeded: The chief does not answer.

    Example:
        ```python
        cluster = dps.LocalCluster(workers=2, processes=False, serve="operator:add")
        with cluster as local:
            with dps.Coordinator(local.target) as coordinator:
                values = [coordinator.schedule("operator:add", args=(n, 1)) for n in range(5)]
                coordinator.join()
                assert coordinator.fetch(values) == [1, 2, 3, 4, 5]
        ```
    """

    def __init__(
        self, target: Server | str, *, timeout: float = 60.0, queue_size: int = QUEUE, ps_errors: int = 5,
        keys: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        queue_size = whole_number("Coordinator: got queue_size=", queue_size, 1)
        ps_errors = whole_number("Coordinator: got ps_errors=", ps_errors, 0)
        seconds = positive_seconds("Coordinator: got timeout=", timeout, 60.0)
        self._own_server = isinstance(target, str)
        self._server = Server.client(target, keys) if isinstance(target, str) else target
        runtime = self._server.runtime
        self._timeout, self._queue_size, self._closed = seconds, queue_size, False
        self._lock, self._changed = threading.RLock(), runtime.condition()
        self._schedule = CallSchedule(ps_errors)
        self._numbers = itertools.count(1)
        self._dispatcher = Dispatcher(self._schedule, self._lock, self._changed.notify)
        self._join_run(runtime.random.getrandbits(61))

    def _join_run(self, client: int) -> None:
        """Take part in the run, as a node that workers know by a number. Blocks until the chief answers."""
        try:
            self._server.wait_joined(self._server.runtime.now() + self._timeout)
        except BaseException:
            self._end_own_server()
            raise
        self._dispatcher.set_target(client, self._server.target)
        self._server.host(f"coordinator/{client}", self._dispatcher)
        if self._server.job == "client":  # the chief does not count it, and so does not tell it of the run's end
            self._server.host("announcer", Announcer("coordinator", self._server.target))

    # -- calls -------------------------------------------------------------------------------------------------

    def schedule(
        self, function: Function, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> RemoteValue:
        """Have a free worker run a function. Returns at once; blocks only while the queue is full.

        Args:
            function: A function at the top of a module that the workers serve, or its path, "module:function".
            args: Its arguments: numbers, text, bytes, arrays, in lists, tuples and dicts; remote values, what
                `create_per_worker_value` and `create_per_worker_dataset` return, and sessions. Arrays are copied.
            kwargs: Its arguments by name.

        Returns:
            The value to come.

        Raises:
            ConfigError: A function without a path.
            TypeError: An argument that cannot travel.
            DeadlineExceeded: The queue is full, and no call has ended for `timeout`. The message names who is waited
                for.
            TaskLost: The run has ended.
        """
        if self._closed:
            raise ConfigError("schedule: the coordinator is closed; make a new one")
        path = import_path(function)
        needs: list[ScheduledCall] = []
        packed = pack_arguments(path, tuple(args), dict(kwargs or {}), lambda leaf: self._encode_argument(leaf, needs))
        call = ScheduledCall(path, packed, needs)
        full = f"schedule of {path}: the queue is full"
        self._wait(lambda: self._schedule.queued_count < self._queue_size, full, None)
        with self._lock:
            assigned = self._schedule.add_call(call)
        if assigned:
            self._post(lambda: self._dispatcher.carry_out(assigned))
        return RemoteValue(self._wait, call)

    def _encode_argument(self, leaf: Any, needs: list[ScheduledCall]) -> tuple[int, Any] | None:
        """Encode an argument that is neither plain nor an array."""
        if isinstance(leaf, RemoteValue):
            if leaf._wait != self._wait:
                raise ConfigError(f"{leaf!r} is of another coordinator; fetch it there, and pass what it returns")
            needs.append(leaf._call)
            return VALUE, len(needs) - 1
        if isinstance(leaf, PerWorkerValue | PerWorkerDataset | PerWorkerIterator):
            return RESOURCE, leaf._mark
        if isinstance(leaf, Session):
            return SESSION, None
        return None

    def _post(self, call: Callable[[], None]) -> None:
        self._dispatcher.node.post(call)

    def join(self, timeout: float | None = None) -> None:
        """Wait until all scheduled calls have ended. Blocks.

        When a call has failed, calls that have not begun are cancelled, those that run are waited for, and the first
        error is raised. It is raised once: afterwards everything works again.

        Args:
            timeout: Seconds. None: as long as calls end; without any for the coordinator's `timeout`, the wait is over.

        Raises:
            RemoteError: The error of the first call that failed, as of `RemoteValue.fetch`.
            Cancelled: Ctrl-C or SIGTERM asks this program, which dps has started as a task, to stop.
            DeadlineExceeded: The message names the workers that have not ended their calls; they go on.
            TaskLost: The run has ended.
        """
        with self._lock:
            if self._schedule.error is not None:
                self._schedule.cancel_calls("another call had failed")
        self._wait(lambda: not self._schedule.open_count, "join", timeout)
        self._raise_first_error()

    def done(self) -> bool:
        """Whether all scheduled calls have ended. Does not block.

        Returns:
            False while a call waits or runs.

        Raises:
            RemoteError: The error of the first call that failed, as `join` raises it.
        """
        self._raise_first_error()
        return not self._schedule.open_count

    def _raise_first_error(self) -> None:
        """Raise the first error, once. Calls that no worker has are cancelled."""
        with self._lock:
            error, self._schedule.error = self._schedule.error, None
            if error is not None:
                self._schedule.cancel_calls("another call had failed")
        if error is not None:
            self._changed.notify()
            raise error()

    def fetch(self, values: Any, timeout: float | None = None) -> Any:
        """Wait for the values of remote values, in any nesting of dicts, lists and tuples. Blocks.

        Args:
            values: The nested remote values; everything else stays as it is.
            timeout: As of `join`, for each.

        Returns:
            The values in the same nesting.

        Raises:
            RemoteError: As of `RemoteValue.fetch`.
            DeadlineExceeded: As of `join`.
        """
        if isinstance(values, RemoteValue):
            return values.fetch(timeout)
        if isinstance(values, dict):
            return {key: self.fetch(value, timeout) for key, value in values.items()}
        if isinstance(values, list | tuple):
            found = [self.fetch(value, timeout) for value in values]
            return found if isinstance(values, list) else tuple(found)
        return values

    # -- what workers keep -------------------------------------------------------------------------------------

    def create_per_worker_value(self, function: Function) -> PerWorkerValue:
        """A value that each worker makes for itself, before the first of its calls that needs it, and keeps.

        Returns at once.

        Args:
            function: Makes it, without arguments or with one: the worker's number. As of `schedule`.

        Returns:
            What stands for it among the arguments of calls. A worker that was started again makes it anew.

        Raises:
            ConfigError: A function without a path.
        """
        return PerWorkerValue(next(self._numbers), import_path(function))

    def create_per_worker_dataset(self, function: Function) -> PerWorkerDataset:
        """A dataset that each worker makes for itself, before the first of its calls that needs it. Returns at once.

        Args:
            function: Returns the dataset, or anything else that `iter()` takes. As of `create_per_worker_value`.

        Returns:
            What stands for it among the arguments of calls; `iter()` of it stands for an iterator that each worker
            keeps. A worker that was started again makes both anew.

        Raises:
            ConfigError: A function without a path.
        """
        return PerWorkerDataset(next(self._numbers), import_path(function), lambda: next(self._numbers))

    # -- waiting -----------------------------------------------------------------------------------------------

    def _wait(self, ready: Callable[[], bool], what: str, timeout: float | None) -> None:
        """Wait until `ready()`. Raises DeadlineExceeded that says who is waited for, and TaskLost after the run."""
        throttle, limit_s = LogThrottle(), checked_seconds(timeout, self._timeout)
        began = self._server.runtime.now()
        while not self._changed.wait(ready, max(0.0, min(LOOK_S, limit_s))):
            if self._closed:
                raise Cancelled(f"{what}: the coordinator was closed before the call had ended")
            if config.stop_requested.is_set():
                raise Cancelled(f"{what}: this program was told to stop; {self._waiting_text()}")
            if self._server.exit_code is not None:
                raise TaskLost(f"{what}: {self._server.reason or 'the run has ended'}")
            now = self._server.runtime.now()
            waited_s = now - (began if timeout is not None else max(began, self._dispatcher.moved_at))
            text = f"{what}: {self._waiting_text()}"
            if waited_s >= limit_s:
                raise DeadlineExceeded(f"{text}; waited {now - began:.1f} s")
            if throttle.is_due(now):
                log.info("%s: %s; has waited %.0f s", self._server.name, text, now - began)

    def _waiting_text(self) -> str:
        """For whom the program waits."""
        dispatcher, queued = self._dispatcher, self._schedule.queued_count
        wait = "call waits" if queued == 1 else "calls wait"
        text = [*dispatcher.running_texts(), *([f"{queued} {wait} for a worker"] if queued else [])]
        if not dispatcher.names:
            there = ", ".join(dispatcher.known_workers) or "no workers"
            text.append(
                dispatcher.refusal
                or f"no worker serves (the chief at {self._server.target} knows of {there}); start one with "
                "--job worker --serve MODULE"
            )
        return "; ".join(text) or "waits for an answer"

    def close(self) -> None:
        """End the coordinator: calls that have not begun are cancelled, and workers forget what they keep for it.

        Does not wait for calls that run: `join` before. A second call does nothing.
        """
        if self._closed:
            return
        self._closed = True
        with self._lock:
            self._schedule.cancel_calls("the coordinator was closed")
        self._post(self._dispatcher.leave_workers)
        self._changed.notify()
        self._server.runtime.sleep(LEAVE_S if self._own_server else 0.0)
        self._end_own_server()

    def _end_own_server(self) -> None:
        if self._own_server:
            self._server.stop()
            self._server.join(2.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
