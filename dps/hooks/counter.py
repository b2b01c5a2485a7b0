"""Counts global steps per second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dps.hooks.hook import Hook
from dps.hooks.timer import Timer
from dps.reply import Push
from dps.telemetry import log

if TYPE_CHECKING:
    from dps.hooks.loop import Loop


class StepCounter(Hook):
    """Log global steps per second. The last rate is in `steps_per_s`, None before there is one.

    The first interval begins at the first push.

    Args:
        steps: Log every so many global steps; 100 when neither is given.
        seconds: Log every so many seconds.

    Raises:
        ConfigError: Both are given, or a number that is not above 0.

    Example:
        ```python
        hooks = [dps.StepCounter(seconds=10), dps.StopAtStep(last_step=1000)]
        ```
    """

    def __init__(self, steps: int | None = None, seconds: float | None = None) -> None:
        self._timer = Timer(100 if steps is None and seconds is None else steps, seconds, "StepCounter")
        self.steps_per_s: float | None = None

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        if self._timer.due(push.step):
            since = self._timer.fired(push.step)
            if since is not None and since[1] > 0:
                self.steps_per_s = since[0] / since[1]
                log.info("%s: step %d, %.1f steps/s", session.name, push.step, self.steps_per_s)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        self._timer.fired(step)
