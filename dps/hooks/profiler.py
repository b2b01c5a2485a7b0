"""Writes Chrome traces: what a worker's calls did, and when, over some of its steps; or what all tasks did."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from dps.checkpoint.files import is_path
from dps.errors import CheckpointError, ConfigError, DpsError
from dps.hooks.hook import Hook
from dps.hooks.scalars import as_number
from dps.hooks.timer import Timer
from dps.messages.replies import Push
from dps.process.telemetry import log
from dps.training.definition import whole_number

if TYPE_CHECKING:
    from dps.hooks.hook import Loop
    from dps.tracing.gathering import TraceClient
    from dps.transport.endpoint import TaskHandle

END_S = 30.0
"""How long the end of a loop waits for a trace of all tasks."""


class Profiler(Hook):
    """Write Chrome traces of some steps, for chrome://tracing and https://ui.perfetto.dev.

    A trace is `DIRECTORY/timeline-STEP-WORKER.json`, such as `timeline-120-worker-0.json`. It has a slice for each
    call of the session, a slice "program" for the time between two calls, and counters of step, staleness and loss. A
    trace begins when the session opens, and again at intervals if one is given. Traces of several workers fit on one
    time axis as far as their machines' clocks agree. While no trace is taken, calls are as quick as without this hook.
    If the disk refuses, dps logs one line and training goes on.

    With `all_tasks` one file has the chief, all ps and all workers, on one clock: also what each handles, each update
    of a ps, and an arrow to it from each push. One hook in one worker is enough for that; a trace that begins while
    another one is taken is left out, with a line in the log. `dps trace` does the same from outside.

    Args:
        directory: The folder. None: the run's checkpoint_dir.
        steps: Begin a trace every so many global steps.
        seconds: Begin a trace every so many seconds. Neither: one trace only.
        length: How many pushes one trace has; with `all_tasks`, how many global steps.
        all_tasks: Whether all tasks of the run are traced.

    Raises:
        ConfigError: Bad arguments; or, when the session opens, neither `directory` nor a checkpoint_dir is given.

    Example:
        ```pycon
        >>> with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
        ...                  hooks=[dps.Profiler("traces", length=3)]) as session:
        ...     for _ in range(3):
        ...         push = session.push({"w": session.pull()["w"] - 1})
        >>> import json, pathlib
        >>> trace = json.loads(pathlib.Path("traces/timeline-3-worker-0.json").read_text())
        >>> [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"][:4]
        ['pull', 'program', 'push', 'program']
        ```
    """

    def __init__(
        self,
        directory: str | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        length: int = 10,
        all_tasks: bool = False,
    ) -> None:
        self._timer = None if steps is None and seconds is None else Timer(steps, seconds, "Profiler")
        if directory is not None and not is_path(directory):
            raise ConfigError(
                f"Profiler: got {directory=!r:.80}, wanted the path of a folder, or None for the checkpoint_dir"
            )
        self._length = whole_number("Profiler: got length=", length, 1, "the pushes of one trace, a whole number")
        self._directory, self._all_tasks = directory, all_tasks
        self._folder = ""
        """That of the session."""
        self._trace: ChromeTrace | RunTrace | None = None

    def begin(self) -> None:
        if isinstance(self._trace, ChromeTrace):  # of a session that an error ended
            self._trace.restore_calls()
        elif self._trace is not None:
            self._trace.stop()
        self._trace = None

    def after_create_session(self, session: Loop) -> None:
        self._folder = str(self._directory or session.checkpoint_dir or "")
        if not self._folder:
            raise ConfigError("Profiler has no directory and the run no checkpoint_dir; give one of them")
        self._begin_trace(session, session.global_step)

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        trace = self._trace
        if isinstance(trace, ChromeTrace):
            if trace.record_push(push, loss) >= self._length:
                trace.calls.over = functools.partial(self._write_trace, session, push.step)
            return
        if trace is not None and not trace.thread.alive:
            self._trace = trace = None
        if trace is None and self._timer is not None and self._timer.is_due(push.step):
            self._begin_trace(session, push.step)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        if isinstance(self._trace, ChromeTrace):
            self._trace.record_instant("rolled back", {"step": step, "lost": lost})
        if self._timer is not None:
            self._timer.record_firing(step)

    def end(self, session: Loop) -> None:
        if isinstance(self._trace, RunTrace):
            self._trace.finish()
        elif self._trace is not None and self._trace.pushes:
            self._write_trace(session, session.global_step)
        elif self._trace is not None:
            self._trace.restore_calls()

    def _begin_trace(self, session: Loop, step: int) -> None:
        if self._timer is not None:
            self._timer.record_firing(step)
        self._trace = RunTrace(session, self._folder, self._length) if self._all_tasks else ChromeTrace(session)

    def _write_trace(self, session: Loop, step: int) -> None:
        assert isinstance(self._trace, ChromeTrace)
        self._trace.restore_calls()
        data, self._trace = json.dumps(self._trace.as_json(), allow_nan=False).encode(), None
        write(session, self._folder, step, data)


def write(session: Loop, directory: str, step: int, data: bytes) -> None:
    """Write a trace that ends at a step. A disk that refuses is one line in the log."""
    path = f"{directory}/timeline-{step}-{session.name.replace(':', '-')}.json"
    try:
        session.runtime.storage.write(path, [data])
    except CheckpointError as error:
        log.error("%s: no trace of the steps up to %d: %s", session.name, step, error)
    else:
        log.info("%s: the trace of the steps up to %d is in %s", session.name, step, path)


class ChromeTrace:
    """One trace of the calls of a session, which go through it while it is taken."""

    def __init__(self, session: Loop) -> None:
        from dps.tracing.calls import SessionCalls  # here: `import dps` stays quick
        from dps.tracing.ring import Ring
        from dps.tracing.taps import Taps

        self._session, self._runtime = session, session.runtime
        self._wall_ns = int((self._runtime.wall() - self._runtime.now()) * 1e9)
        self._ring, self._taps = Ring(self._runtime.now, None), Taps()
        self.calls = SessionCalls(self._ring, self._taps, session)
        self.pushes = 0

    def restore_calls(self) -> None:
        """The session's calls are its own again."""
        self._taps.end()
        self._ring.close()

    def record_push(self, push: Push, loss: Any) -> int:
        """A push has its result; how many there are by now."""
        self.pushes += 1
        counters: dict[str, float] = {"global step": push.step, "staleness": push.staleness}
        if loss is not None and abs(number := as_number(loss, "loss")) < float("inf"):
            counters["loss"] = number
        for name, value in counters.items():
            self._ring.note_value(self.calls.lane, name, value)
        if not push.accepted:
            self.record_instant("push not accepted", {"step": push.step})
        return self.pushes

    def record_instant(self, name: str, about: dict[str, Any]) -> None:
        """Something happened at this moment."""
        self._ring.note_moment(self.calls.lane, name, about)

    def as_json(self) -> dict[str, Any]:
        """The trace as an object of JSON. Its times are whole microseconds since 1970."""
        from dps.tracing.timeline import TaskEvents, timeline

        name = self._session.name
        number = name.rpartition(":")[2]
        lanes = {lane.number: lane.name for lane in self._ring.lanes.values()}
        task = TaskEvents(name, lanes, self._ring.events)
        pid = int(number) if number.isdigit() else 0
        return timeline([task], [0], -self._wall_ns, {"task": name}, [pid], whole=True)


class RunTrace:
    """One trace of all tasks, which a thread of this task takes through the chief."""

    def __init__(self, session: Loop, directory: str, steps: int) -> None:
        self._session, self._directory, self._steps = session, directory, steps
        self._gathering: TraceClient | None = None
        self._stopped = False
        self.thread: TaskHandle = session.runtime.spawn("trace of all tasks", self._take)

    def _take(self) -> None:
        from dps.tracing.gathering import TraceClient, TraceWish, as_bytes

        session = self._session
        caller, chief = session._chief_caller()
        try:
            self._gathering = TraceClient(session.runtime, caller, chief, TraceWish(self._steps))
            self._gathering.stopped = self._stopped
            made = self._gathering.take_trace()
        except DpsError as error:
            log.warning("%s: no trace of all tasks: %s", session.name, error)
            return
        finally:
            caller.close()
        for why in made.left_out.values():
            log.warning("%s: the trace lacks a task: %s", session.name, why)
        write(session, self._directory, made.first + made.steps, as_bytes(made.trace))

    def stop(self) -> None:
        """The trace is to end. Does not wait."""
        self._stopped = True
        if self._gathering is not None:
            self._gathering.stopped = True

    def finish(self) -> None:
        """The loop ends: so does the trace. Blocks until it is written."""
        self.stop()
        self.thread.join(END_S)
