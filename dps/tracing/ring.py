"""The events of one task while a trace is taken: slices of its lanes, moments, counters and ends of flows, bounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

MOST = 50_000
"""The most events that a task keeps; the oldest go first."""
LONGEST = 200
"""The most characters of a text in an event."""
SLICE, MOMENT, COUNTER, LEAVES, ARRIVES = "X", "i", "C", "s", "f"
"""The kinds of events, as in Chrome's Trace Event Format. A flow leaves one slice and arrives in another."""


class TracedEvent(NamedTuple):
    """One event; times are in nanoseconds on the clock of its task. Of a flow that leaves, `ended_ns` is when its
    sender knew that it had arrived, 0 for never; of all others but a slice it is `began_ns`."""

    kind: str
    lane: int
    name: str
    """Of a flow: its number, the same at both ends."""
    began_ns: int
    ended_ns: int
    about: dict[str, Any]


class TraceLane:
    """What follows each other on one thread. Its slices lie within each other."""

    __slots__ = ("left_ns", "name", "number", "opened")

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.opened: list[tuple[str, int, dict[str, Any]]] = []
        """The slices that have not ended, the outermost first: name, beginning, and what is told of it."""
        self.left_ns = 0
        """When the last outermost slice ended; 0: there was none."""


class Ring:
    """The newest events of a task. Each lane has one writer; any thread may close the ring."""

    def __init__(self, now: Callable[[], float], most: int | None = MOST) -> None:
        """`now`: the clock, in seconds. `most`: the most events; None: any number."""
        self._now, self._lock = now, threading.Lock()
        self._events: deque[TracedEvent] = deque(maxlen=most)
        self._added = 0
        self.lanes: dict[Any, TraceLane] = {}
        """By who writes them."""
        self.closed = False

    def __len__(self) -> int:
        return len(self._events)

    @property
    def dropped(self) -> int:
        """How many events were older than those that are kept."""
        return self._added - len(self._events)

    @property
    def events(self) -> list[TracedEvent]:
        """The events that are kept, in the order of their ends."""
        with self._lock:
            return list(self._events)

    def now_ns(self) -> int:
        """The time in nanoseconds."""
        return int(self._now() * 1e9)

    def lane(self, key: object, name: str) -> TraceLane:
        """The lane of a writer. It is made when it is asked for first, with this name, or, for another one of the same
        name, with a number behind it."""
        with self._lock:
            if key not in self.lanes:
                same = sum(lane.name.startswith(name) for lane in self.lanes.values())
                self.lanes[key] = TraceLane(len(self.lanes) + 1, f"{name} {same + 1}" if same else name)
            return self.lanes[key]

    @contextmanager
    def slice(self, lane: TraceLane, name: str, between: str = "") -> Iterator[dict[str, Any]]:
        """A slice for the block, which may add to what is told of it; its error is told, too. `between`: the name of a
        slice for the time since the last one, where this is an outermost one."""
        about: dict[str, Any] = {}
        if self.closed:
            yield about
            return
        began = self.now_ns()
        if between and not lane.opened and 0 < lane.left_ns < began:
            self._add(TracedEvent(SLICE, lane.number, between, lane.left_ns, began, {}))
        lane.opened.append((name, began, about))
        try:
            yield about
        except BaseException as error:
            about["error"] = f"{type(error).__name__}: {error}"[:LONGEST]
            raise
        finally:
            ended = self.now_ns()
            with self._lock:
                if not self.closed:
                    lane.opened.pop()
                    self._keep(TracedEvent(SLICE, lane.number, name, began, ended, about))
            if not lane.opened:
                lane.left_ns = ended

    def note_moment(self, lane: TraceLane, name: str, about: dict[str, Any]) -> None:
        """Something happened now."""
        at = self.now_ns()
        self._add(TracedEvent(MOMENT, lane.number, name, at, at, about))

    def note_value(self, lane: TraceLane, name: str, value: float) -> None:
        """A counter has this value from now on."""
        at = self.now_ns()
        self._add(TracedEvent(COUNTER, lane.number, name, at, at, {name: value}))

    def note_flow(self, lane: TraceLane, kind: str, number: str, at_ns: int = 0, heard_ns: int = 0) -> None:
        """One end of a flow, now or at a time within a slice of the lane."""
        at = at_ns or self.now_ns()
        self._add(TracedEvent(kind, lane.number, number, at, heard_ns if kind == LEAVES else at, {}))

    def close(self) -> None:
        """Keep nothing from now on. Slices that have not ended end now, and say so. A second call does nothing."""
        with self._lock:
            if self.closed:
                return
            self.closed, at = True, self.now_ns()
            for lane in self.lanes.values():
                for name, began, about in reversed(lane.opened):
                    self._keep(TracedEvent(SLICE, lane.number, name, began, max(began, at), about | {"goes on": True}))

    def _add(self, event: TracedEvent) -> None:
        with self._lock:
            if not self.closed:
                self._keep(event)

    def _keep(self, event: TracedEvent) -> None:
        self._added += 1
        self._events.append(event)
