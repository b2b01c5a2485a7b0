"""The reports of a run on itself: the log, one progress row for each push, and what the time of a loop goes to."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from math import isfinite
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import logging


T = TypeVar("T")


class _Log:
    """The logger "dps", which loads `logging` at its first use: it costs as much as a tenth of dps's own modules."""

    def __getattr__(self, name: str) -> Any:
        import logging

        return getattr(logging.getLogger("dps"), name)


log = cast("logging.Logger", _Log())
"""The log of everything in dps, and the only one."""


def stack() -> str:
    """The error that is handled now, with its traceback, as text."""
    import traceback

    return traceback.format_exc()


LOSE_LESS = "dps.CheckpointSaver(seconds=...) among a session's hooks sets how often checkpoints are saved"
"""Advice for a rollback that has undone steps."""

Listener = Callable[[dict[str, Any]], None]

on_progress: list[Listener] = []
"""Called after every push of this process with worker, step, loss, accepted, staleness and seconds since the last
push. Must not block."""

on_opened: list[Listener] = []
"""Called when a session of this process is open, with worker, step, variables (how many the run has), placement (of
each ps the task, the bytes of its values and those of their slots), last_step (at which its hooks end it) and batch
(examples in one push); the last two are None if no hook knows them. Must not block."""


def listen(pushed: Listener, opened: Listener) -> None:
    """Add listeners for every push and every opened session, until `forget`."""
    on_progress.append(pushed)
    on_opened.append(opened)


def forget(pushed: Listener, opened: Listener) -> None:
    """Remove listeners. It is not an error if a listener was removed before."""
    for listeners, listener in ((on_progress, pushed), (on_opened, opened)):
        if listener in listeners:
            listeners.remove(listener)


def progress(row: dict[str, Any]) -> None:
    """Pass a progress row to all listeners."""
    _tell_listeners(on_progress, row)


def opened(session: dict[str, Any]) -> None:
    """Tell all listeners that a session is open."""
    _tell_listeners(on_opened, session)


def _tell_listeners(listeners: list[Listener], row: dict[str, Any]) -> None:
    """Pass a row to each listener. A listener that raises is removed, and its error logged."""
    for listener in list(listeners):
        try:
            listener(row)
        except Exception:
            log.exception("the progress listener %r raised an error and is not called any more", listener)
            listeners.remove(listener)


FIRST_S = 2.0
AGAIN_S = 10.0
"""After how long a wait is told at first, so that usual waits are not, and how often from then on."""


class LogThrottle:
    """Reporting times for one task that waits now and then. Times are the runtime's."""

    def __init__(self, first_s: float = FIRST_S) -> None:
        self._first_s = first_s
        self._since: float | None = None
        self._tell_at = 0.0

    def is_due(self, now: float) -> bool:
        """Whether to report the current wait now. The first call of a wait begins it."""
        if self._since is None:
            self._since, self._tell_at = now, now + self._first_s
        if now < self._tell_at:
            return False
        self._tell_at = now + AGAIN_S
        return True

    def end_wait(self) -> None:
        """End the current wait."""
        self._since = None


_read_s: ContextVar[float] = ContextVar("dps_read_s", default=0.0)
"""Seconds for which the running thread has read data. A thread that is started with a copy of this context goes on from
the same number, and changes only its own."""


def timed_read(now: Callable[[], float], read: Callable[[], T]) -> T:
    """What `read()` returns. The time that it takes is reading data, for the session that this thread uses.

    `now`: the runtime's clock. Of a reading inside another one the outer one counts.
    """
    before, began = _read_s.get(), now()
    try:
        return read()
    finally:
        _read_s.set(before + now() - began)


TOLD_S = 0.05
"""How often a session tells its sums, at most."""


class LoopTimes:
    """What the time of a session's loop goes to: reading data, computing, and the session's calls.

    A loop is in a call of its session (`inside_s`), or outside, where it reads data or computes. `enter` and `leave`
    are called in turn at each change, or what they do is written there, for it is a part of every step. The code of
    hooks is outside. The sums grow from the last `begin_sums` on and never fall, so that a sum which is lost or told
    twice changes nothing. One thread at a time.
    """

    __slots__ = (
        "_began", "_outside_told", "_read_seen", "_thread", "at", "computed_s", "due_at", "inside_s", "now",
        "patience_s", "read_s",
    )  # fmt: skip

    def __init__(self, now: Callable[[], float], patience_s: float) -> None:
        """`now`: the runtime's clock. `patience_s`: the longest wait of the session's calls."""
        self.now, self.patience_s = now, patience_s
        self.begin_sums()

    def begin_sums(self) -> None:
        """The session has a new incarnation: all sums begin anew."""
        self._began = self.at = self.now()
        self.due_at = self.at + TOLD_S
        self.inside_s = self.read_s = self.computed_s = self._outside_told = 0.0
        self._thread, self._read_seen = get_ident(), _read_s.get()

    def enter(self) -> None:
        """The loop enters a call."""
        self.at = self.now()

    def leave(self) -> None:
        """The loop leaves a call."""
        self.inside_s += self.now() - self.at

    def count_computed(self, seconds: float) -> None:
        """So much of the time since the loop has entered the call was computing. In the simulator a call stands for
        it."""
        self.at += seconds

    def take_told(self) -> list[Any]:
        """The sums up to the last `enter`, as `Push.times` has them. What this thread has read since it told them last
        was reading data. Call it in a call of the session, when `due_at` has come."""
        self.due_at = self.at + TOLD_S
        outside_s = self.at - self._began - self.inside_s
        new_s, self._outside_told = max(0.0, outside_s - self._outside_told), max(outside_s, self._outside_told)
        thread, seen = get_ident(), _read_s.get()
        read_s = min(new_s, max(0.0, seen - self._read_seen)) if thread == self._thread else 0.0
        self._thread, self._read_seen = thread, seen
        self.read_s += read_s
        self.computed_s += new_s - read_s
        inside_s = max(0.0, self.inside_s)  # computing that is counted in a call may exceed it by a rounding error
        return [self.read_s, self.computed_s, inside_s, self.patience_s if isfinite(self.patience_s) else 0.0]
