"""Takes a trace of all tasks of a run, through its chief, and writes one file.

Orders and answers go through the chief, which reaches every task. Each answer carries the task's clock and the times of
the chief around it: with these, and with the pushes in the trace, the clocks are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from dps.actors.answers import Failed, Waiting
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.actors.requests import Request
from dps.errors import ConfigError, DeadlineExceeded, ProtocolError, Unavailable
from dps.messages.runs import (
    CHIEF,
    OPERATORS,
    TRACE_BEGIN,
    TRACE_DROP,
    TRACE_END,
    TRACE_LOOK,
    TRACE_READ,
    AskCluster,
    AskTrace,
    ClusterIs,
    TraceState,
)
from dps.tracing.clocks import ClockBound, compare_clocks
from dps.tracing.recording import LONGEST_S, PART_NBYTES
from dps.tracing.timeline import TaskEvents, flows, read_events, timeline
from dps.transport.endpoint import Runtime
from dps.transport.message import Message

ANSWER_S = 5.0
"""How long a task may take to answer an order."""
LOOK_S = 0.1
"""How often the tasks are asked how far they are."""
READ_S = 15.0
"""How long all events may take to come."""
WORKERS_S = 0.5
"""How long a worker may go on when all ps have made the steps."""
MOST_PARTS = 200
REFERENCE = "the chief's clock"


class TraceWish(NamedTuple):
    """What is to be traced: so many global steps, for at most so many seconds."""

    steps: int = 100
    seconds: int = 60


class Traced(NamedTuple):
    """A trace that was taken."""

    trace: dict[str, Any]
    """In Chrome's Trace Event Format."""
    tasks: list[str]
    left_out: dict[str, str]
    """The tasks that are not in it, and why."""
    steps: int
    """How many steps were made while it was taken, as far as a ps has said."""
    first: int
    """The step at which it began."""


def check_wish(steps: int, seconds: float) -> TraceWish:
    """Raises ConfigError for numbers that cannot be."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"got {steps!r} steps for a trace, wanted a whole number from 1")
    if not 1 <= seconds <= LONGEST_S:
        raise ConfigError(f"got {seconds!r} seconds for a trace, wanted 1 to {LONGEST_S}")
    return TraceWish(steps, int(seconds))


class TraceClient:
    """One trace of all tasks of a run. Belongs to one thread, whose caller it uses."""

    def __init__(self, runtime: Runtime, caller: Caller, chief: str, wish: TraceWish) -> None:
        self._runtime, self._caller, self._chief, self._wish = runtime, caller, chief, wish
        self._number = runtime.random.getrandbits(61) + 1
        self._states: dict[str, TraceState] = {}
        """The last answer of each task that is traced."""
        self._bounds: list[ClockBound] = []
        self.left_out: dict[str, str] = {}
        self.stopped = False
        """Whether the trace is to end now, with what there is."""

    def take_trace(self, begun: Callable[[list[str]], None] = lambda tasks: None) -> Traced:
        """Take the trace. `begun` is called with the tasks, once they are traced. Blocks. Ctrl-C ends the trace early;
        a second one raises KeyboardInterrupt. Raises DeadlineExceeded without a chief, and Unavailable if no task can
        be traced, or if the run ends meanwhile."""
        try:
            first = self._begin_trace()
            try:
                begun(list(self._states))
                self._wait_steps(first)
            except KeyboardInterrupt:
                self.stopped = True
            self._order(self._states, TRACE_END, ANSWER_S)
            steps = max((state.step for state in self._states.values()), default=-1) - first
            tasks = self._read_all()
            if not tasks:
                gone = f"the run has ended while it was traced, or has lost its chief at {self._chief}"
                why = "; ".join(self.left_out.values())
                raise Unavailable(gone if self._chief in self._caller.away else f"nothing was traced: {why}")
            return self._made(tasks, max(0, steps), max(0, first))
        finally:
            for task in self._states:
                self._caller.start(Ref(self._chief, OPERATORS), self._ask(task, TRACE_DROP), lambda answer: True)
            self._caller.poll()

    # -- orders -------------------------------------------------------------------------------------------------

    def _begin_trace(self) -> int:
        """Have all tasks begin; returns the step of the run, -1 if no ps has said one."""
        try:
            found = self._caller.ask(Ref(self._chief, CHIEF), AskCluster(), ANSWER_S)
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"no chief answered at {self._chief} for {ANSWER_S:g} s; is a run there? dps list has those of dps "
                "launch"
            ) from None
        assert isinstance(found, ClusterIs), found
        tasks = [
            CHIEF,
            *(f"{job}:{task}" for job in ("ps", "worker") for task in sorted(found.cluster.get(job, {}), key=int)),
        ]
        self._order(tasks, TRACE_BEGIN, ANSWER_S, self._wish.seconds)
        if not self._states:
            raise Unavailable(
                f"no task of the run can be traced: {'; '.join(self.left_out.values()) or 'there is none'}"
            )
        self._order(list(self._states), TRACE_LOOK, ANSWER_S)  # steps count from where all have begun
        return max((state.step for state in self._states.values()), default=-1)

    def _wait_steps(self, first: int) -> None:
        """Wait until the tasks have ended the trace: its steps are made, or its time is over."""
        runtime, deadline = self._runtime, self._runtime.now() + self._wish.seconds
        until = first + self._wish.steps if first >= 0 else 0
        late = deadline
        while self._states and not self.stopped and runtime.now() < min(deadline, late):
            open_tasks = [task for task, state in self._states.items() if not state.over]
            counts = [task for task, state in self._states.items() if state.step >= 0]
            if counts and all(self._states[task].over for task in counts):
                late = min(late, runtime.now() + WORKERS_S)
            if not open_tasks or all(task == CHIEF for task in open_tasks):
                return
            self._order(open_tasks, TRACE_LOOK, ANSWER_S, until)
            runtime.sleep(LOOK_S)

    def _order(self, tasks: Iterable[str], order: str, within_s: float, value: int = 0) -> dict[str, TraceState]:
        """Give an order to several tasks at once; returns the answers. A task that does not answer is left out."""
        answers: dict[str, Message] = {}
        requests: list[Request] = []

        def ask(task: str) -> Request:
            def feed(answer: Message) -> bool:
                if isinstance(answer, Waiting):
                    return False
                answers[task] = answer
                return True

            return self._caller.start(Ref(self._chief, OPERATORS), self._ask(task, order, value), feed)

        asked = list(tasks)
        try:
            requests.extend(map(ask, asked))
            self._caller.wait(requests, within_s, lambda: self._chief in self._caller.away)
        finally:
            for request in requests:
                self._caller.drop(request)
        return {task: state for task in asked if (state := self._accept(task, answers.get(task), order)) is not None}

    def _ask(self, task: str, order: str, value: int = 0) -> AskTrace:
        return AskTrace(task, self._number, order, value)

    def _accept(self, task: str, answer: Message | None, order: str) -> TraceState | None:
        """The state of a task, noted; None for a task that is left out from now on."""
        if isinstance(answer, TraceState) and answer.trace == self._number:
            self._states[task] = answer
            if answer.asked_s <= answer.heard_s:
                at, asked, heard = (int(s * 1e9) for s in (answer.at_s, answer.asked_s, answer.heard_s))
                self._bounds.append(ClockBound(REFERENCE, task, at - heard, at - asked))
            return answer
        self._states.pop(task, None)
        if task == CHIEF and isinstance(answer, Failed) and isinstance(answer.exception(), ConfigError):
            return None  # a worker hosts it
        if isinstance(answer, Failed):
            self.left_out[task] = f"{task}: {answer.exception()}"
        else:
            self.left_out[task] = f"{task} did not answer within {ANSWER_S:g} s"
        return None

    # -- what they send -----------------------------------------------------------------------------------------

    def _read_all(self) -> list[TaskEvents]:
        """The events of all tasks."""
        deadline = self._runtime.now() + READ_S
        data: dict[str, list[bytes]] = {task: [] for task in self._states}
        while open_tasks := [t for t in self._states if len(data[t]) < min(self._states[t].parts, MOST_PARTS)]:
            left_s = deadline - self._runtime.now()
            if left_s <= 0:
                for task in open_tasks:
                    self._leave_out(task, f"{task} did not send its events within {READ_S:g} s")
                break
            part = min(len(data[task]) for task in open_tasks)
            turn = [task for task in open_tasks if len(data[task]) == part]
            for task, state in self._order(turn, TRACE_READ, min(ANSWER_S, left_s), part).items():
                nbytes = sum(array.nbytes for array in state.arrays)
                if len(state.arrays) != 1 or nbytes > PART_NBYTES:
                    self._leave_out(task, f"{task} sent no part of a trace")
                else:
                    data[task].append(state.arrays[0].tobytes())
        found = []
        for task in list(self._states):
            try:
                found.append(read_events(task, b"".join(data[task])))
            except ProtocolError as error:
                self._leave_out(task, str(error))
        return found

    def _leave_out(self, task: str, why: str) -> None:
        self._states.pop(task, None)
        self.left_out[task] = why

    def _made(self, tasks: Sequence[TaskEvents], steps: int, first: int) -> Traced:
        """One trace of the events of all tasks."""
        names = [task.name for task in tasks]
        clocks = compare_clocks(
            [REFERENCE, *names], [*(bound for bound in self._bounds if bound.ahead in names), *push_bounds(tasks)],
            {name: state.machine for name, state in self._states.items()},
        )  # fmt: skip
        ahead = [clocks[name].ahead_ns for name in names]
        began = min(
            (event.began_ns - own for task, own in zip(tasks, ahead, strict=True) for event in task.events), default=0
        )
        about = {
            "tasks": names, "left out": self.left_out, "first step": first, "steps": steps,
            "clocks may differ by us": {name: round(clocks[name].error_ns / 1000, 1) for name in names},
            "older events dropped": {task.name: task.dropped for task in tasks if task.dropped},
        }  # fmt: skip
        return Traced(timeline(tasks, ahead, began, about), names, dict(self.left_out), steps, first)


def push_bounds(tasks: Sequence[TaskEvents]) -> list[ClockBound]:
    """What the pushes of a trace say of the clocks: a ps applies one after its session sent it, and before that had the
    result."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for leaves_in, leaves, arrives_in, arrives in flows(tasks).values():
        if leaves_in == arrives_in:
            continue
        key = tasks[leaves_in].name, tasks[arrives_in].name
        least, most = found.get(key, (-float("inf"), float("inf")))
        if leaves.ended_ns:
            least = max(least, float(arrives.began_ns - leaves.ended_ns))
        found[key] = least, min(most, float(arrives.began_ns - leaves.began_ns))
    return [ClockBound(*key, *bounds) for key, bounds in found.items()]


def as_bytes(trace: dict[str, Any]) -> bytes:
    """A trace as a file."""
    return json.dumps(trace, allow_nan=False, separators=(",", ":")).encode()
