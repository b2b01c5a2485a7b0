"""Takes traces on one task, as the chief orders. Lives on the node's thread; sessions are traced on their own.

A trace ends at its step, at its time, by order, or when nobody has asked for it for some seconds. Then its events wait
until they are read. Between traces nothing is kept, and no call is changed.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np

from dps.actors.node import Node
from dps.actors.ref import Sender
from dps.errors import ProtocolError, Unavailable
from dps.messages.runs import (
    AGENT,
    OPERATORS,
    TRACE_BEGIN,
    TRACE_DROP,
    TRACE_END,
    TRACE_LOOK,
    TRACE_READ,
    TraceOrder,
    TraceState,
)
from dps.tracing.calls import NodeCalls, SessionCalls
from dps.tracing.ring import Ring
from dps.tracing.taps import Taps
from dps.transport.wire import Array

SILENT_S = 5.0
"""A trace for which nobody has asked for so long is dropped."""
LONGEST_S = 600
"""The longest time of a trace."""
PART_NBYTES = 256 << 10
"""The bytes of one answer with events, at most."""
CHECK_S = 0.5


class TaskTrace:
    """One trace of one task. As a hook of all sessions of the task it has their calls traced."""

    last_step = batch = None

    def __init__(self, node: Node, hooks: list[Any], number: int, seconds: float) -> None:
        """`hooks`: those that all sessions of the task have."""
        runtime = node.runtime
        self.number, self.heard_at, self.ends_at = number, node.now(), node.now() + seconds
        self.ring, self._taps, self._hooks = Ring(runtime.now), Taps(), hooks
        self._until = 0
        """The global step at which it ends; 0: unknown."""
        self._last_step = -1
        self._sessions: list[tuple[Any, SessionCalls]] = []
        self._lock = threading.Lock()
        """Sessions come on their threads, and the trace ends on any."""
        self._parts: list[Array] = []
        actors = {name: actor for name, actor in node.actors.items() if name not in (AGENT, OPERATORS)}
        self._handled = NodeCalls(self.ring, self._taps, node, actors, self._check_step)
        hooks.append(self)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.ring.closed

    @property
    def step(self) -> int:
        """The step of the task's shard, when the trace was over the last one in it; -1 without one."""
        return self._last_step if self.over else self._handled.step

    def end_at(self, step: int) -> None:
        """Let it end at a global step; 0 changes nothing."""
        self._until = step or self._until
        self._check_step()

    def close(self) -> None:
        """Note nothing more. Any thread may call it, more than once."""
        with self._lock:
            if self in self._hooks:
                self._hooks.remove(self)
            if not self.over:
                self._last_step = self._handled.step
            self.ring.close()
            self._taps.end()
            self._handled.forget_shortcuts()
            self._sessions = []

    def parts(self, name: str) -> list[Array]:
        """The events as bytes, in parts; the trace is over."""
        if not self._parts:
            told = {
                "task": name, "lanes": {str(lane.number): lane.name for lane in self.ring.lanes.values()},
                "dropped": self.ring.dropped, "events": self.ring.events,
            }  # fmt: skip
            data = np.frombuffer(json.dumps(told, separators=(",", ":")).encode(), np.uint8)
            self._parts = [data[at : at + PART_NBYTES] for at in range(0, len(data), PART_NBYTES)]
        return self._parts

    def _check_step(self) -> None:
        if self._until and self._handled.step >= self._until:
            self.close()

    # -- as a hook of the task's sessions -----------------------------------------------------------------------

    def begin(self) -> None:
        """Does nothing: the session is not open yet."""

    def after_create_session(self, session: Any) -> None:
        self._follow_session(session)

    def before_run(self, session: Any) -> None:
        self._follow_session(session)

    def after_run(self, session: Any, push: Any, loss: Any) -> None:
        """A push has its result."""
        calls = next((calls for known, calls in self._sessions if known is session), None)
        if calls is None:
            return
        self.ring.note_value(calls.lane, "global step", push.step)
        self.ring.note_value(calls.lane, "staleness", push.staleness)
        if self._until and push.step >= self._until:
            calls.over = self.close

    def rolled_back(self, session: Any, step: int, lost: int) -> None:
        """The run went back to a checkpoint."""
        for known, calls in self._sessions:
            if known is session:
                self.ring.note_moment(calls.lane, "rolled back", {"step": step, "lost": lost})

    def end(self, session: Any) -> None:
        """Does nothing: other sessions may go on."""

    def _follow_session(self, session: Any) -> None:
        """Trace the calls of a session, from its next one on."""
        with self._lock:
            if not self.over and not any(known is session for known, _ in self._sessions):
                self._sessions.append((session, SessionCalls(self.ring, self._taps, session)))


class TaskTracer:
    """Carries out the orders about traces of one task, one trace at a time."""

    def __init__(self, node: Node, hooks: list[Any]) -> None:
        """`hooks`: as of `TaskTrace`."""
        self._node, self._hooks = node, hooks
        self._trace: TaskTrace | None = None

    def carry_out(self, message: TraceOrder, sender: Sender) -> None:
        """Carry out and answer an order. Raises Unavailable for a trace that is not there, or while another is."""
        order, value, trace = message.order, message.value, self._trace
        now = self._node.now()
        if order == TRACE_BEGIN:
            trace = self._begin_trace(message)
        elif trace is None or trace.number != message.trace:
            raise Unavailable(f"{self._node.name} has no such trace; it is over, or the task was started again")
        trace.heard_at = now
        arrays: tuple[Array, ...] = ()
        if order == TRACE_LOOK:
            trace.end_at(value)
        elif order in (TRACE_END, TRACE_READ):
            trace.close()
            parts = trace.parts(self._node.name)
            if order == TRACE_READ:
                if not 0 <= value < len(parts):
                    raise ProtocolError(f"got part {value} of a trace, wanted 0 to {len(parts) - 1}")
                arrays = (parts[value],)
        elif order == TRACE_DROP:
            self._drop_trace(trace)
        elif order != TRACE_BEGIN:
            raise ProtocolError(f"got the order {order!r:.40} for a trace")
        count = len(trace.parts(self._node.name)) if trace.over else 0
        runtime = self._node.runtime
        machine = runtime.place.boot
        at_s = runtime.now()
        state = TraceState(
            trace.number, at_s, trace.over, trace.step, count, machine, asked_s=at_s, heard_s=at_s, arrays=arrays
        )
        self._node.answer(sender, state)

    def _begin_trace(self, message: TraceOrder) -> TaskTrace:
        if self._trace is not None:
            if self._trace.number == message.trace:
                return self._trace
            if self._node.now() - self._trace.heard_at < SILENT_S:
                raise Unavailable(f"{self._node.name} is traced already; wait for the end of that trace")
            self._drop_trace(self._trace)
        if not 1 <= message.value <= LONGEST_S:
            raise ProtocolError(f"got a trace of {message.value} s, wanted 1 to {LONGEST_S}")
        trace = self._trace = TaskTrace(self._node, self._hooks, message.trace, message.value)
        self._node.after(CHECK_S, lambda: self._check_time(trace))
        return trace

    def _drop_trace(self, trace: TaskTrace) -> None:
        trace.close()
        if self._trace is trace:
            self._trace = None

    def _check_time(self, trace: TaskTrace) -> None:
        """End a trace whose time is over, and drop one that nobody asks for."""
        if self._trace is not trace:
            return
        now = self._node.now()
        if now >= trace.ends_at:
            trace.close()
        if now - trace.heard_at > SILENT_S:
            self._drop_trace(trace)
        else:
            self._node.after(CHECK_S, lambda: self._check_time(trace))
