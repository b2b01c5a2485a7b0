"""Waits in a session's thread for other tasks, with a deadline, and logs whom it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError, DeadlineExceeded, as_seconds
from dps.hooks.hook import Hook
from dps.process.telemetry import LogThrottle, log
from dps.training.definition import whole_number

if TYPE_CHECKING:
    from dps.hooks.hook import Loop


ASK_AGAIN_S = 0.5


def wait_until(session: Loop, missing: Callable[[], str], timeout: float, renewed: bool = False) -> None:
    """Wait until `missing()` is "", or the session should stop. Blocks; asks every half second.

    `missing` says in one sentence what is awaited, and from whom; the log gets it after 2 s, then every 10 s.
    `renewed`: the deadline counts from the last change of that sentence, so that a wait goes on while others do.
    Raises DeadlineExceeded with the sentence.
    """
    runtime, throttle = session.runtime, LogThrottle()
    text, since = "", runtime.now()
    while (now_missing := missing()) and not session.should_stop():
        now = runtime.now()
        if renewed and now_missing != text:
            since = now
        text = now_missing
        if now - since >= timeout:
            raise DeadlineExceeded(f"{session.name} waited {timeout:g} s: {text}")
        if throttle.is_due(now):
            log.info("%s waits: %s", session.name, text)
        runtime.sleep(min(ASK_AGAIN_S, timeout))


class GlobalStepWaiter(Hook):
    """Wait, when the session opens, until the global step has reached a number.

    Workers that begin one after the other keep the first, roughest updates of asynchronous training to few of them. The
    wait is part of the opening of the session, so the first `pull` has values of then. It also ends when the session
    should stop. Only for asynchronous runs: in sync and bounded mode the others wait for every worker that has a
    session.

    Args:
        wait_until_step: The global step; 0 is no wait.
        timeout: The longest time without a new global step, in seconds. The wait goes on while training does.

    Raises:
        ConfigError: A step that is not a whole number from 0, or a timeout that is not above 0.
        DeadlineExceeded: No new step within `timeout`; from the session, whose name and step it tells.

    Example:
        ```python
        hooks = [dps.GlobalStepWaiter(wait_until_step=50 * server.task)]
        ```
    """

    def __init__(self, wait_until_step: int, timeout: float = 60.0) -> None:
        self._step = whole_number("GlobalStepWaiter: got wait_until_step=", wait_until_step, 0)
        self._timeout = as_seconds(timeout)
        if not self._timeout > 0:
            raise ConfigError(f"GlobalStepWaiter: got {timeout=}, wanted seconds above 0, or dps.FOREVER")

    def after_create_session(self, session: Loop) -> None:
        def missing() -> str:
            reached = max(session.global_step, *(int(of.get("step", 0)) for of in session.stats().values()))
            if reached >= self._step:
                return ""
            return (
                f"GlobalStepWaiter waits for the other workers to reach step {self._step}, the global step is "
                f"{reached}; in sync and bounded runs they wait for this worker, so use it with dps.Async()"
            )

        if self._step > session.global_step:
            wait_until(session, missing, self._timeout, renewed=True)


class Scaffold(Hook):
    """Calls `local_init_fn` when the session is open, and again after a rollback; then waits until it is ready.

    Sessions make one, as the first of their hooks. `timeout`: the longest wait, in seconds.
    """

    def __init__(
        self, local_init_fn: Callable[[Any], Any] | None, ready_fn: Callable[[Any], Any] | None, timeout: float
    ) -> None:
        self._local_init, self._ready, self._timeout = local_init_fn, ready_fn, timeout

    def after_create_session(self, session: Loop) -> None:
        if self._local_init is not None:
            self._local_init(session)
        if self._ready is not None:
            wait_until(session, lambda: self._missing_names(session), self._timeout)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        if self._local_init is not None:
            self._local_init(session)

    def _missing_names(self, session: Loop) -> str:
        assert self._ready is not None
        found = self._ready(session)
        if found is True or (isinstance(found, str | list | tuple) and not found):
            return ""
        if found is False:
            return "ready_fn says that the session is not ready"
        if isinstance(found, str):
            return f"ready_fn: {found}"
        if isinstance(found, list | tuple):
            return f"ready_fn says that these are not ready: {', '.join(map(str, found))}"
        raise ConfigError(f"ready_fn returned {found!r:.80}, wanted True, or what is missing: False, a text or a list")
