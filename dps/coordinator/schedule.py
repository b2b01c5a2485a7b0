"""The schedule of calls on workers, as a state machine: no clock, no sockets, no threads.

    scheduled -> (WAITING for the values of its arguments ->) QUEUED -> RUNNING -> RETURNED or FAILED
    WAITING or QUEUED -> CANCELLED, when another call has failed;  RUNNING -> QUEUED, when its worker is lost

A call's outcome is set once. What comes from a worker that no longer has the call is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from dps.errors import Cancelled

if TYPE_CHECKING:
    from dps.calls.functions import Packed

MakeError = Callable[[], Exception]
"""Makes the error of a call, a new one each time it is raised."""


class ScheduledState(Enum):
    """The state of a call."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    RETURNED = "returned"
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER = (ScheduledState.RETURNED, ScheduledState.FAILED, ScheduledState.CANCELLED)


class ScheduledCall:
    """A call of a function, until it has its outcome."""

    def __init__(self, function: str, arguments: Packed, needs: Sequence[ScheduledCall] = ()) -> None:
        """`needs`: the calls whose values are among the arguments, in the order of their marks."""
        self.function, self.arguments, self.needs = function, arguments, list(needs)
        self.dependents: list[ScheduledCall] = []
        """The calls that need the value of this one."""
        self.state = ScheduledState.WAITING
        self.ps_errors = 0
        """How often it failed because a ps did not answer."""
        self.value: Packed | None = None
        self.error: MakeError | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has its outcome."""
        return self.state in OVER

    def set_outcome(
        self, state: ScheduledState, value: Packed | None = None, error: MakeError | None = None
    ) -> list[ScheduledCall]:
        """The call has its outcome. Returns the calls that need the value. Nothing else of it is kept."""
        dependents, self.dependents, self.needs, self.arguments = self.dependents, [], [], (b"", ())
        self.state, self.value, self.error = state, value, error
        return dependents


Assignment = tuple[str, ScheduledCall]
"""A worker, and the call that it has to run now."""


class CallSchedule:
    """The calls that are not over, and the workers. Each event returns the calls that workers have to begin now."""

    def __init__(self, most_ps_errors: int = 5) -> None:
        """`most_ps_errors`: how often a call is run again when a ps does not answer it."""
        self._most_ps_errors = most_ps_errors
        self.queue: deque[ScheduledCall] = deque()
        self.waiting: dict[ScheduledCall, None] = {}
        self.running: dict[str, ScheduledCall] = {}
        self.free: deque[str] = deque()
        """The workers without a call; the first has been free for longest."""
        self.error: MakeError | None = None
        """The error of the first call that failed since an error was reported."""

    @property
    def queued_count(self) -> int:
        """How many calls no worker has."""
        return len(self.queue) + len(self.waiting)

    @property
    def open_count(self) -> int:
        """How many calls are not over."""
        return self.queued_count + len(self.running)

    # -- calls -------------------------------------------------------------------------------------------------

    def add_call(self, call: ScheduledCall) -> list[Assignment]:
        """A call is scheduled."""
        self.waiting[call] = None
        for need in call.needs:
            if not need.is_over:
                need.dependents.append(call)
        self._check_needs(call)
        return self._assign_calls()

    def _check_needs(self, call: ScheduledCall) -> None:
        lost = next((need for need in call.needs if need.is_over and need.state is not ScheduledState.RETURNED), None)
        if lost is not None:
            why = f"{call.function} was not run: {lost.function}, whose value it needs, has none"
            del self.waiting[call]
            self._fail_call(call, lambda: Cancelled(why))
        elif all(need.is_over for need in call.needs):
            del self.waiting[call]
            call.state = ScheduledState.QUEUED
            self.queue.append(call)

    def record_value(self, worker: str, call: ScheduledCall, value: Packed) -> list[Assignment]:
        """A worker has the value of a call."""
        if self._free_worker(worker, call):
            for dependent in call.set_outcome(ScheduledState.RETURNED, value):
                if dependent in self.waiting:
                    self._check_needs(dependent)
        return self._assign_calls()

    def record_error(self, worker: str, call: ScheduledCall, error: MakeError, of_ps: bool) -> list[Assignment]:
        """A call has raised on a worker; `of_ps`: because a ps did not answer."""
        if self._free_worker(worker, call):
            call.ps_errors += of_ps
            if of_ps and call.ps_errors <= self._most_ps_errors:
                self._run_again(call)
            else:
                self._fail_call(call, error)
        return self._assign_calls()

    def _free_worker(self, worker: str, call: ScheduledCall) -> bool:
        """A worker has ended a call, and is free; False where the call was no longer the worker's."""
        if self.running.get(worker) is not call:
            return False
        del self.running[worker]
        self.free.append(worker)
        return True

    def _run_again(self, call: ScheduledCall) -> None:
        call.state = ScheduledState.QUEUED
        self.queue.appendleft(call)

    def _fail_call(self, call: ScheduledCall, error: MakeError) -> None:
        call.set_outcome(ScheduledState.FAILED, error=error)
        if self.error is None:
            self.error = error
        self.cancel_calls(f"{call.function} had failed: {error()}")

    def cancel_calls(self, why: str) -> None:
        """End the calls that no worker has."""
        cancelled = [*self.queue, *self.waiting]
        self.queue.clear()
        self.waiting.clear()
        for call in cancelled:
            text = f"{call.function} was cancelled before it ran, for {why}"
            call.set_outcome(ScheduledState.CANCELLED, error=lambda text=text: Cancelled(text))  # type: ignore[misc]

    # -- workers -----------------------------------------------------------------------------------------------

    def add_worker(self, worker: str) -> list[Assignment]:
        """A worker can run calls."""
        if worker not in self.free and worker not in self.running:
            self.free.append(worker)
        return self._assign_calls()

    def remove_worker(self, worker: str) -> list[Assignment]:
        """A worker is gone: its call goes to another one, before those that no worker has had."""
        if worker in self.free:
            self.free.remove(worker)
        call = self.running.pop(worker, None)
        if call is not None:
            self._run_again(call)
        return self._assign_calls()

    def _assign_calls(self) -> list[Assignment]:
        found: list[Assignment] = []
        while self.queue and self.free:
            worker, call = self.free.popleft(), self.queue.popleft()
            self.running[worker], call.state = call, ScheduledState.RUNNING
            found.append((worker, call))
        return found
