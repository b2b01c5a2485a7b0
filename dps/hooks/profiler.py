"""Writes Chrome traces: what a worker's calls did, and when, over some of its steps."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dps.errors import CheckpointError, ConfigError
from dps.hooks.hook import Hook
from dps.hooks.scalars import as_number
from dps.hooks.timer import Timer
from dps.messages.replies import Push
from dps.process.telemetry import log

if TYPE_CHECKING:
    from dps.hooks.hook import Loop


CALLS = ("pull", "push", "step", "lookup", "gradients", "averages", "save", "restore", "stats")
REPLIES = ("pull_async", "push_async", "lookup_async")


class Profiler(Hook):
    """Write Chrome traces of some steps of this worker, for chrome://tracing and https://ui.perfetto.dev.

    A trace is `DIRECTORY/timeline-STEP-WORKER.json`, such as `timeline-120-worker-0.json`. It has a slice for each
    call of the session, a slice "program" for the time between two calls, and counters of step, staleness and loss. A
    trace begins when the session opens, and again at intervals if one is given. Traces of several workers fit on one
    time axis as far as their machines' clocks agree. While no trace is taken, calls are as quick as without this hook.
    If the disk refuses, dps logs one line and training goes on.

    Args:
        directory: The folder. None: the run's checkpoint_dir.
        steps: Begin a trace every so many global steps.
        seconds: Begin a trace every so many seconds. Neither: one trace only.
        length: How many pushes one trace has.

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
        self, directory: str | None = None, steps: int | None = None, seconds: float | None = None, length: int = 10
    ) -> None:
        self._timer = None if steps is None and seconds is None else Timer(steps, seconds, "Profiler")
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ConfigError(f"Profiler: got length={length!r}, wanted the pushes of one trace, a whole number from 1")
        self._directory, self._length = directory, length
        self._trace: ChromeTrace | None = None

    def after_create_session(self, session: Loop) -> None:
        self._directory = self._directory or session.checkpoint_dir
        if not self._directory:
            raise ConfigError("Profiler has no directory and the run no checkpoint_dir; give one of them")
        self._begin_trace(session, session.global_step)

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        if self._trace is not None:
            if self._trace.record_push(push, loss) >= self._length:
                self._trace.over = functools.partial(self._write_trace, session, push.step)
        elif self._timer is not None and self._timer.is_due(push.step):
            self._begin_trace(session, push.step)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        if self._trace is not None:
            self._trace.record_instant("rolled back", {"step": step, "lost": lost})
        if self._timer is not None:
            self._timer.record_firing(step)

    def end(self, session: Loop) -> None:
        if self._trace is not None and self._trace.pushes:
            self._write_trace(session, session.global_step)
        elif self._trace is not None:
            self._trace.restore_calls()

    def _begin_trace(self, session: Loop, step: int) -> None:
        if self._timer is not None:
            self._timer.record_firing(step)
        self._trace = ChromeTrace(session)

    def _write_trace(self, session: Loop, step: int) -> None:
        assert self._trace is not None
        self._trace.restore_calls()
        data, self._trace = json.dumps(self._trace.as_json(), allow_nan=False).encode(), None
        path = f"{self._directory}/timeline-{step}-{session.name.replace(':', '-')}.json"
        try:
            session.runtime.storage.write(path, [data])
        except CheckpointError as error:
            log.error("%s: no trace of the steps up to %d: %s", session.name, step, error)
        else:
            log.info("%s: the trace of the steps up to %d is in %s", session.name, step, path)


class ChromeTrace:
    """The events of one trace, in Chrome's Trace Event Format. While it is taken, the session's calls go through it."""

    def __init__(self, session: Loop) -> None:
        self._session, self._runtime = session, session.runtime
        self._wall_s = self._runtime.wall() - self._runtime.now()
        self._events: list[dict[str, Any]] = []
        self._depth, self._left_at = 0, self._runtime.now()
        self.pushes = 0
        self.over: Callable[[], None] | None = None
        """The action for the return of the present call."""
        for name in (*CALLS, *REPLIES):
            setattr(session, name, self._trace_call(name, getattr(session, name)))  # before the method of the class
        setattr(session, "view", self._trace_view(getattr(session, "view")))  # noqa: B009, B010

    def restore_calls(self) -> None:
        """The session's calls are its own again."""
        for name in (*CALLS, *REPLIES, "view"):
            self._session.__dict__.pop(name, None)

    def record_push(self, push: Push, loss: Any) -> int:
        """A push has its result; how many there are by now."""
        self.pushes += 1
        counters = {"global step": push.step, "staleness": push.staleness}
        if loss is not None and abs(number := as_number(loss, "loss")) < float("inf"):
            counters["loss"] = number  # type: ignore[assignment]
        for name, value in counters.items():
            self._add_event("C", name, self._runtime.now(), args={name: value})
        if not push.accepted:
            self.record_instant("push not accepted", {"step": push.step})
        return self.pushes

    def record_instant(self, name: str, about: dict[str, Any]) -> None:
        """Something happened at this moment."""
        self._add_event("i", name, self._runtime.now(), s="t", args=about)

    def as_json(self) -> dict[str, Any]:
        """The trace as an object of JSON."""
        name, task = self._session.name, self._task
        about = [
            {"ph": "M", "name": "process_name", "pid": task, "tid": 0, "args": {"name": name}},
            {"ph": "M", "name": "process_sort_index", "pid": task, "tid": 0, "args": {"sort_index": task}},
        ]
        events = sorted(self._events, key=lambda event: (event["ts"], -event.get("dur", 0)))
        return {"traceEvents": about + events, "displayTimeUnit": "ms", "otherData": {"task": name}}

    @property
    def _task(self) -> int:
        number = self._session.name.rpartition(":")[2]
        return int(number) if number.isdigit() else 0

    def _add_event(self, phase: str, name: str, at: float, **more: Any) -> None:
        event = {"ph": phase, "name": name, "cat": "dps", "pid": self._task, "tid": threading.get_ident() % 100_000}
        self._events.append(event | {"ts": self._microseconds(at), **more})

    def _microseconds(self, at: float) -> int:
        """A moment in whole microseconds since 1970; no fraction, so that ends and beginnings meet."""
        return int((self._wall_s + at) * 1e6)

    def _trace_call(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def traced(*arguments: Any, **named: Any) -> Any:
            with self._trace_slice(name) as about:
                result = call(*arguments, **named)
                if isinstance(result, Push):
                    about |= {"step": result.step, "accepted": result.accepted, "staleness": result.staleness}
            if name in REPLIES:
                result.result = self._trace_call(f"result of {name}", result.result)
            return result

        return traced

    def _trace_view(self, view: Callable[[], Any]) -> Callable[[], Any]:
        @contextmanager
        def viewed() -> Iterator[Any]:
            with view() as values, self._trace_slice("view"):
                yield values

        return viewed

    @contextmanager
    def _trace_slice(self, name: str) -> Iterator[dict[str, Any]]:
        """A slice for the block, and one for the program before it, where this is no call within a call."""
        runtime, about, began = self._runtime, dict[str, Any](), self._runtime.now()
        if self._depth == 0 and began > self._left_at and self._events:
            self._add_event(
                "X",
                "program",
                self._left_at,
                dur=self._microseconds(began) - self._microseconds(self._left_at),
                args={},
            )
        self._depth += 1
        try:
            yield about
        except BaseException as error:
            about["error"] = f"{type(error).__name__}: {error}"[:200]
            raise
        finally:
            self._depth -= 1
            ended = runtime.now()
            self._add_event("X", name, began, dur=self._microseconds(ended) - self._microseconds(began), args=about)
            if self._depth == 0:
                self._left_at = ended
                if self.over is not None:
                    over, self.over = self.over, None
                    over()
