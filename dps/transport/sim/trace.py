"""The trace of a simulated world: its events in order, for people to read and for comparing replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing that happened to one process at a virtual time; str() is one readable line."""

    time_s: float
    process: str
    what: str
    detail: dict[str, Any]

    def __str__(self) -> str:
        detail = "".join(f" {name}={value}" for name, value in self.detail.items())
        return f"{self.time_s:13.7f} {self.process:<10} {self.what}{detail}"


class Trace:
    """The events of one world, and the number of each kind. Events are counted even if recording is off."""

    def __init__(self, record: bool, deliveries: bool) -> None:
        self.events: list[TraceEvent] = []
        self.deliveries = deliveries
        """Whether each message that arrives gets a line too."""
        self.counts: dict[str, int] = {}
        self._record = record

    def add(self, time_s: float, process: str, what: str, detail: dict[str, Any]) -> None:
        """Count the event, and keep it if recording is on."""
        self.counts[what] = self.counts.get(what, 0) + 1
        if self._record:
            self.events.append(TraceEvent(time_s, process, what, detail))

    def text(self, last: int | None) -> str:
        """The `last` events, or all with None, one a line."""
        events = self.events if last is None else self.events[max(0, len(self.events) - last) :]
        return "\n".join(str(event) for event in events)
