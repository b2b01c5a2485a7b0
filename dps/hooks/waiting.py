"""Waits in a session's thread for other tasks, with a deadline, and logs whom it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dps.actors.patience import Patience
from dps.errors import ConfigError, DeadlineExceeded
from dps.telemetry import log

if TYPE_CHECKING:
    from dps.hooks.loop import Loop


ASK_AGAIN_S = 0.5


def check_seconds(whose: str, timeout: object) -> float:
    """The seconds of a timeout. Raises ConfigError for anything but a number above 0."""
    if isinstance(timeout, bool | str) or not hasattr(timeout, "__float__") or not float(timeout) > 0:
        raise ConfigError(f"{whose}: got timeout={timeout!r}, wanted seconds above 0, or dps.FOREVER")
    return float(timeout)


def wait_until(session: Loop, missing: Callable[[], str], timeout: float, renewed: bool = False) -> None:
    """Wait until `missing()` is "", or the session should stop. Blocks; asks every half second.

    `missing` says in one sentence what is awaited, and from whom; the log gets it after 2 s, then every 10 s.
    `renewed`: the deadline counts from the last change of that sentence, so that a wait goes on while others do.
    Raises DeadlineExceeded with the sentence.
    """
    runtime, patience = session.runtime, Patience()
    text, since = "", runtime.now()
    while (now_missing := missing()) and not session.should_stop():
        now = runtime.now()
        if renewed and now_missing != text:
            since = now
        text = now_missing
        if now - since >= timeout:
            raise DeadlineExceeded(f"{session.name} waited {timeout:g} s: {text}")
        if patience.due(now):
            log.info("%s waits: %s", session.name, text)
        runtime.sleep(min(ASK_AGAIN_S, timeout))
