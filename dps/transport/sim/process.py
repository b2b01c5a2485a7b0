"""Simulated processes: starting, ending, killing, pausing and restarting them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Literal

from dps.transport.current import current_runtime
from dps.transport.sim.runtime import SharedWorld, SimRuntime
from dps.transport.sim.scheduler import GreenletExit, SimTask

Main = Callable[[], int | None]

LINGER_S = 0.5
"""How long messages have to leave after a process ends by itself."""


@dataclass(slots=True, eq=False)
class SimProcess:
    """One process of a world, through all its lives. Read-only for users; the world changes it."""

    name: str
    state: Literal["running", "ended", "killed", "waiting to restart"]
    exit_code: int | None
    """None while it runs and after a kill."""
    error: BaseException | None
    """The error that `main` raised, except SystemExit."""
    incarnation: int
    """How often it was restarted."""
    runtime: SimRuntime
    restarts: int
    """How often it may still be started again after a kill."""
    restart_delay_s: float
    task_errors: list[BaseException] = field(default_factory=list)
    """Errors of tasks other than `main`, over all lives."""


class SimulatedProcesses:
    """Starts and ends the processes of one world."""

    def __init__(self, setting: SharedWorld) -> None:
        self.processes: dict[str, SimProcess] = {}
        self._setting = setting
        self._scheduler = setting.scheduler
        self._programs: dict[str, tuple[Main, Context]] = {}
        self._results: dict[SimTask, list[int | None]] = {}
        self._pauses: dict[SimRuntime, int] = {}

    def add(self, name: str, main: Main, restarts: int, restart_delay_s: float) -> SimProcess:
        """Add a process, which begins now. Each life gets a copy of the caller's context variables."""
        if name in self.processes:
            raise ValueError(f"there is a process {name!r} already; each needs a name of its own")
        self._programs[name] = (main, copy_context())
        runtime = SimRuntime(self._setting, name, 0, self._task_ended)
        process = SimProcess(name, "running", None, None, 0, runtime, restarts, restart_delay_s)
        self.processes[name] = process
        self._scheduler.expected += 1
        self._begin_process(process)
        return process

    def _begin_process(self, process: SimProcess) -> None:
        main, context = self._programs[process.name]
        context, result = context.copy(), []
        context.run(current_runtime.set, process.runtime)
        task = SimTask(self._scheduler, process.runtime, "main", lambda: result.append(main()), context)
        self._results[task] = result
        self._scheduler.start(task)

    def _restart_process(self, process: SimProcess) -> None:
        if process.state != "waiting to restart":
            return
        process.incarnation += 1
        process.runtime = SimRuntime(self._setting, process.name, process.incarnation, self._task_ended)
        process.state, process.exit_code, process.error = "running", None, None
        self.record_event(process.name, "restart", incarnation=process.incarnation)
        self._begin_process(process)

    def _task_ended(self, runtime: SimRuntime, task: SimTask) -> None:
        result = self._results.pop(task, None)
        if not runtime.alive:
            return
        process = self.processes[runtime.name]
        if result is None:
            if task.error is not None and not isinstance(task.error, SystemExit):
                process.task_errors.append(task.error)
                self.record_event(process.name, "task failed", task=task.name, error=repr(task.error))
            return
        process.state = "ended"
        process.exit_code = _exit_code(result, task.error)
        process.error = None if isinstance(task.error, SystemExit) else task.error
        detail = {} if process.error is None else {"error": repr(process.error)}
        self.record_event(process.name, "exit", code=process.exit_code, **detail)
        self._scheduler.expected -= 1
        self._end_process(runtime, LINGER_S)

    def _end_process(self, runtime: SimRuntime, linger_s: float) -> None:
        """End a process: from now on its code has no effect."""
        runtime.alive = False
        runtime.paused = False  # a kill also closes the connections of a stopped process
        for endpoint in runtime.endpoints:
            if endpoint.open:
                self._setting.fabric.close(endpoint, linger_s)
        runtime.endpoints.clear()
        runtime.disk.process_ended()
        self._pauses.pop(runtime, None)
        self._scheduler.doom(runtime)

    def kill(self, name: str, restart_after: float | None) -> None:
        """Kill a process, as by `kill -9`. A task of the process itself does not return from this call."""
        process = self._running(name, "kill")
        if process is None:
            return
        runtime = process.runtime
        self.record_event(name, "kill")
        if restart_after is None and process.restarts > 0:
            process.restarts -= 1
            restart_after = process.restart_delay_s
        if restart_after is None:
            process.state = "killed"
            self._scheduler.expected -= 1
        else:
            process.state = "waiting to restart"
            self._scheduler.push(self._scheduler.now + restart_after, self._restart_process, process)
        self._end_process(runtime, 0.0)
        current = self._scheduler.current
        if current is not None and current.group is runtime:
            raise GreenletExit

    def pause(self, name: str, seconds: float) -> None:
        """Stop a process, and continue it `seconds` later. A task of the process itself runs until it blocks."""
        process = self._running(name, "pause")
        if process is None:
            return
        runtime = process.runtime
        self._pauses[runtime] = self._pauses.get(runtime, 0) + 1
        runtime.paused = True
        self.record_event(name, "pause", seconds=seconds)
        self._setting.fabric.look_again()
        self._scheduler.push(self._scheduler.now + seconds, self._go_on, runtime)

    def _go_on(self, runtime: SimRuntime) -> None:
        pauses = self._pauses.pop(runtime, 0)
        if pauses > 1:
            self._pauses[runtime] = pauses - 1
        elif pauses == 1:
            runtime.paused = False
            self.record_event(runtime.name, "resume")
            stalled, runtime.stalled = runtime.stalled, []
            for task in stalled:
                self._scheduler.push(self._scheduler.now, self._scheduler.resume, task)
            self._setting.fabric.look_again()

    def end_all(self) -> None:
        """Kill all living processes, without restarts."""
        for process in self.processes.values():
            if process.state == "running":
                process.state = "killed"
                self._scheduler.expected -= 1
                self._end_process(process.runtime, 0.0)
            elif process.state == "waiting to restart":
                process.state = "killed"
                self._scheduler.expected -= 1

    def record_event(self, name: str, what: str, **detail: object) -> None:
        """Add a line to the trace."""
        self._setting.trace.add(self._scheduler.now, name, what, detail)

    def _running(self, name: str, doing: str) -> SimProcess | None:
        process = self.processes[name]
        if process.state != "running":
            self.record_event(name, f"{doing} ignored", state=process.state)
            return None
        return process


def _exit_code(result: list[int | None], error: BaseException | None) -> int:
    """The exit code that the Python interpreter would give."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if error is not None:
        return 1
    return (result[0] if result else None) or 0
