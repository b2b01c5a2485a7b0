"""The virtual clock and its tasks. One task runs at a time, and the seed alone decides the order."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any, NoReturn

from dps.errors import DpsError, MissingExtra

try:
    from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped, unused-ignore]
except ImportError as _error:
    raise MissingExtra("the simulator needs greenlet, which is not installed: pip install 'dps[sim]'") from _error

__all__ = ["SHORTEST_S", "GreenletExit", "Scheduler", "SimTask", "SimulationError", "TaskGroup"]

SHORTEST_S = 1e-9
"""The shortest wait with a timeout. A shorter one might not advance the clock at all, because of rounding."""

_Entry = tuple[float, float, int, Callable[[Any], object], Any]


class SimulationError(DpsError):
    """The simulation itself went wrong: a task that spins, or a call that only a simulated task may make."""


class TaskGroup:
    """The tasks of one life of a process; they end together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.stalled: list[SimTask] = []
        """Tasks that would run if the process were not paused."""
        self.tasks: dict[SimTask, None] = {}
        self._refusals = 0

    def check(self) -> None:
        """Raise GreenletExit in a task whose process was killed or has ended, so that it has no more effects."""
        if not self.alive:
            self._refusals += 1
            raise GreenletExit

    @property
    def hopeless(self) -> bool:
        """Whether the code of a dead process keeps running despite GreenletExit."""
        return self._refusals > 1000

    def task_ended(self, task: SimTask) -> None:
        """A task's code has returned or raised; called by the scheduler, between tasks."""


class SimTask:
    """A simulated thread: a greenlet that the scheduler resumes."""

    __slots__ = (
        "_joiners", "_scheduler", "_target", "alive", "context", "deadline", "error", "green", "group", "name",
        "timers", "waiting",
    )  # fmt: skip

    def __init__(
        self, scheduler: Scheduler, group: TaskGroup, name: str, target: Callable[[], None], context: Context
    ) -> None:
        self.name = name
        self.group = group
        self.context = context
        self.alive = True
        self.error: BaseException | None = None
        self.green: greenlet | None = None
        self.waiting = False
        """Whether the task is blocked in a wait that `Scheduler.rouse` or its deadline may end."""
        self.deadline = inf
        self.timers: list[float] = []
        """Times at which timers of this task fire, in falling order."""
        self._scheduler = scheduler
        self._target = target
        self._joiners: list[SimTask] = []

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end, in virtual time; returns whether it has ended."""
        scheduler = self._scheduler
        deadline = inf if timeout_s is None else scheduler.now + timeout_s
        while self.alive:
            if scheduler.now >= deadline:
                return False
            caller = scheduler.task()
            self._joiners.append(caller)
            try:
                scheduler.block(caller, deadline)
            finally:
                if caller in self._joiners:
                    self._joiners.remove(caller)
        return True

    def body(self) -> None:
        """The code of the greenlet. KeyboardInterrupt is passed on to the scheduler, as to a main thread."""
        try:
            self._target()
        except GreenletExit:
            pass
        except SimulationError as error:
            self._scheduler.fail(error)
        except (Exception, SystemExit) as error:
            self.error = error
        finally:
            self.alive = False

    def finish(self) -> None:
        """Wake the tasks that wait for the end, and notify the process."""
        self.alive = False
        self.timers.clear()
        self.group.tasks.pop(self, None)
        joiners, self._joiners = self._joiners, []
        for joiner in joiners:
            self._scheduler.rouse(joiner)
        self.group.task_ended(self)


class Scheduler:
    """A heap of timed events. Events at the same time run in random order, drawn from the seed.

    More than 12 attributes: two are bound methods that the hot loop keeps; the others are one state of the clock and
    of who runs, which one loop changes.
    """

    def __init__(self, seed: int | str, steps_at_one_instant: int) -> None:
        self.now = 0.0
        self.current: SimTask | None = None
        self.expected = 0
        """How many sources of events remain: processes, restarts, calls of the user."""
        self._limit = steps_at_one_instant
        self._heap: list[_Entry] = []
        self._draw = Random(f"{seed}/schedule").random
        self._sequence = 0
        self._hub: greenlet | None = None
        self._running = False
        self._last: SimTask | None = None
        self._doomed: list[TaskGroup] = []
        self._failure: BaseException | None = None
        self._stuck: list[SimTask] = []
        self._fire = self._timer_fired
        self.resume = self._resume

    def push(self, time_s: float, call: Callable[[Any], object], argument: Any) -> None:
        """Call something between tasks at a virtual time, at the earliest now."""
        self._sequence += 1
        heappush(self._heap, (max(self.now, time_s), self._draw(), self._sequence, call, argument))

    def draw(self) -> float:
        """A random number from [0, 1), from the stream that decides the order of events."""
        return self._draw()

    def run(self, until_s: float, stop: Callable[[], bool] | None) -> None:
        """Run events until there are none, `stop()` is true or the clock would pass `until_s`."""
        if self._running:
            raise SimulationError("run was called from inside the simulation; it belongs outside")
        self._running = True
        self._hub = getcurrent()
        try:
            self._loop(until_s, stop)
        finally:
            self._running = False
            self.current = None

    def _loop(self, until_s: float, stop: Callable[[], bool] | None) -> None:
        heap, fire, steps, instant_ends = self._heap, self._fire, 0, -1.0
        while heap and self.expected:
            if stop is not None and stop():
                return
            time, _, _, call, argument = heap[0]
            if time > until_s:
                self.now = max(self.now, until_s)
                return
            heappop(heap)
            if call is fire and not self._timer_counts(argument, time):
                continue
            self.now = time
            if time > instant_ends:
                instant_ends, steps = time + SHORTEST_S, 0
            else:
                steps += 1
                if steps > self._limit:
                    raise SimulationError(self._spinning(steps))
            call(argument)
            if self._doomed:
                self.reap()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure

    def _spinning(self, steps: int) -> str:
        who = "nobody" if self._last is None else f"task {self._last.name!r} of {self._last.group.name}"
        return (
            f"{steps} steps at virtual time {self.now:.6f} s and the clock does not move; {who} ran last: "
            "it seems to loop without waiting; let it block in receive or sleep"
        )

    def fail(self, error: BaseException) -> None:
        """Make `run` raise this error; the first one counts."""
        if self._failure is None:
            self._failure = error

    # Tasks

    def task(self) -> SimTask:
        """The running task, which may block. Raises GreenletExit if it must end, SimulationError if there is none."""
        current = self.current
        if current is None:
            if getcurrent().parent is not None:
                raise GreenletExit  # the garbage collector frees a task of an abandoned world
            raise SimulationError("only a simulated task may wait; this call came from outside of all tasks")
        group = current.group
        if not group.alive:
            if group.hopeless:
                self._abandon(current)
            group.check()
        return current

    def start(self, task: SimTask) -> None:
        """Start a new task at the current time, in random order with other events."""
        task.group.tasks[task] = None
        self.push(self.now, self.resume, task)

    def rouse(self, task: SimTask) -> None:
        """End a task's wait; it continues at the current time."""
        if task.waiting:
            task.waiting = False
            self.push(self.now, self.resume, task)

    def block(self, task: SimTask, deadline: float) -> None:
        """Block the current task until it is roused or the deadline comes. It may return early: check again."""
        task.waiting = True
        task.deadline = deadline
        timers = task.timers
        if deadline != inf and (not timers or deadline < timers[-1]):
            timers.append(deadline)
            self.push(deadline, self._fire, task)
        self._switch()

    def pass_time(self, task: SimTask, seconds: float) -> None:
        """Resume the current task `seconds` later; nothing can shorten the wait."""
        self.push(self.now + (max(seconds, SHORTEST_S) if seconds > 0 else 0.0), self.resume, task)
        self._switch()

    def hand_over(self) -> None:
        """Let others run until the current task is resumed. The caller has arranged that; nothing else wakes it."""
        self._switch()

    def _switch(self) -> None:
        assert self._hub is not None
        self._hub.switch()

    def _timer_counts(self, task: SimTask, time: float) -> bool:
        """Whether a due timer ends a wait. One timer serves many waits, each with a later deadline."""
        if not task.alive or not task.timers:
            return False
        task.timers.pop()
        if not task.waiting:
            return False
        if task.deadline <= time:
            return True
        if task.deadline != inf and (not task.timers or task.deadline < task.timers[-1]):
            task.timers.append(task.deadline)
            self.push(task.deadline, self._fire, task)
        return False

    def _timer_fired(self, task: SimTask) -> None:
        task.waiting = False
        self._resume(task)

    def _resume(self, task: SimTask) -> None:
        """Run a task until it blocks or ends. Only between tasks."""
        group = task.group
        if not task.alive or not group.alive:
            return
        if group.paused:
            group.stalled.append(task)
            return
        green = task.green
        if green is None:
            green = task.green = greenlet(task.body, parent=self._hub)
            green.gr_context = task.context
        self.current = self._last = task
        green.switch()
        self.current = None
        if not task.alive:
            task.finish()

    # The end of a process

    @property
    def between_tasks(self) -> bool:
        """Whether no task runs now."""
        return self.current is None

    def doom(self, group: TaskGroup) -> None:
        """End the tasks of a dead group as soon as no task runs."""
        self._doomed.append(group)
        if self.current is None:
            self.reap()

    def reap(self) -> None:
        """Throw GreenletExit into the tasks of the groups that have ended, oldest first."""
        while self._doomed:
            group = self._doomed.pop(0)
            group.stalled.clear()
            for task in list(group.tasks):
                if task.green is not None and task.alive:
                    self.current = task
                    try:
                        task.green.throw(GreenletExit)
                    finally:
                        self.current = None
                task.finish()

    def _abandon(self, task: SimTask) -> NoReturn:
        """Never resume a task that ignores GreenletExit."""
        self._stuck.append(task)
        self.fail(
            SimulationError(
                f"task {task.name!r} of {task.group.name} goes on after its process ended: it catches GreenletExit "
                "in a loop; catch Exception there, not BaseException"
            )
        )
        while True:
            self._switch()


class SimCondition:
    """As `dps.transport.endpoint.Condition`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[SimTask] = []

    def notify(self) -> None:
        """As Condition.notify."""
        for task in self._waiting:
            self._scheduler.rouse(task)

    def wait(self, ready: Callable[[], bool], timeout_s: float = inf) -> bool:
        """As Condition.wait."""
        scheduler = self._scheduler
        deadline = scheduler.now + (max(timeout_s, SHORTEST_S) if timeout_s > 0 else 0.0)
        while not ready() and scheduler.now < deadline:
            task = scheduler.task()
            self._waiting.append(task)
            try:
                scheduler.block(task, deadline)
            finally:
                self._waiting.remove(task)
        return ready()
