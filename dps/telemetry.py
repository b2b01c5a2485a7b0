"""What a run tells about itself: the log, and a row of progress for every push."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("dps")

on_progress: list[Callable[[dict[str, Any]], None]] = []
"""Called after every push of this process with worker, step, loss, accepted, staleness and seconds since the last
push. Must not block."""


def progress(row: dict[str, Any]) -> None:
    """Hand a row to everybody who listens; a listener that fails is dropped and logged."""
    for listener in list(on_progress):
        try:
            listener(row)
        except Exception:
            log.exception("a progress listener failed and is dropped")
            on_progress.remove(listener)
