"""Remote values: the results that calls will have, and the values that each worker keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dps.calls.arguments import unpack_value

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
        return self._call.over

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
        self._wait(lambda: call.over, f"fetch of {call.function}", timeout)
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
