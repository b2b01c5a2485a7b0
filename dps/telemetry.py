"""What a run reports about itself: the log, and one progress row for each push."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("dps")

LOSE_LESS = "dps.CheckpointSaver(seconds=...) among a session's hooks sets how often checkpoints are saved"
"""What to do about steps that a rollback has undone."""

Listener = Callable[[dict[str, Any]], None]

on_progress: list[Listener] = []
"""Called after every push of this process with worker, step, loss, accepted, staleness and seconds since the last
push. Must not block."""

on_opened: list[Listener] = []
"""Called when a session of this process is open, with worker, step, last_step (where its hooks end it) and batch
(examples in one of its pushes); None for what no hook knows. Must not block."""


def listen(pushed: Listener, opened: Listener) -> None:
    """Hear of every push, and of every session that is opened, until `forget`."""
    on_progress.append(pushed)
    on_opened.append(opened)


def forget(pushed: Listener, opened: Listener) -> None:
    """Hear of nothing any more. A listener that was dropped before is no error."""
    for listeners, listener in ((on_progress, pushed), (on_opened, opened)):
        if listener in listeners:
            listeners.remove(listener)


def progress(row: dict[str, Any]) -> None:
    """Hand a row of progress to everybody who listens."""
    _tell(on_progress, row)


def opened(session: dict[str, Any]) -> None:
    """Tell everybody who listens that a session is open."""
    _tell(on_opened, session)


def _tell(listeners: list[Listener], row: dict[str, Any]) -> None:
    """Hand a row to each listener; one that fails is dropped and logged."""
    for listener in list(listeners):
        try:
            listener(row)
        except Exception:
            log.exception("a progress listener failed and is dropped")
            listeners.remove(listener)
