"""Delays a worker's loop until training has reached a given step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.errors import ConfigError
from dps.hooks.hook import Hook
from dps.hooks.waiting import check_seconds, wait_until

if TYPE_CHECKING:
    from dps.hooks.loop import Loop


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
        if isinstance(wait_until_step, bool) or not isinstance(wait_until_step, int) or wait_until_step < 0:
            raise ConfigError(f"GlobalStepWaiter: got {wait_until_step=}, wanted a whole number from 0")
        self._step, self._timeout = wait_until_step, check_seconds("GlobalStepWaiter", timeout)

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
