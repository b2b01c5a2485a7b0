"""The reports of a run on itself: the log, and one progress row for each push."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import logging


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
