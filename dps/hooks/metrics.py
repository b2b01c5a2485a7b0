"""Logs the progress of training."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dps.hooks.hook import Hook
from dps.hooks.scalars import as_number
from dps.hooks.timer import Timer
from dps.reply import Push

if TYPE_CHECKING:
    from dps.hooks.loop import Loop

log = logging.getLogger("dps")


class LogMetrics(Hook):
    """Log step, loss, staleness and the scalars given to `session.summary` since the last line.

    Args:
        steps: Log every so many global steps; 100 when neither is given.
        seconds: Log every so many seconds.
        batch: Examples in one push. When given, the line also has this session's examples/s.

    Raises:
        ConfigError: Both steps and seconds are given, or a number that is not above 0.

    Example:
        ```python
        hooks = [dps.LogMetrics(steps=100, batch=32), dps.StopAtStep(last_step=1000)]
        ```
    """

    def __init__(self, steps: int | None = None, seconds: float | None = None, batch: int | None = None) -> None:
        self._timer = Timer(100 if steps is None and seconds is None else steps, seconds)
        self.batch, self._pushes, self._seen = batch, 0, 0

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        self._pushes += 1
        if not self._timer.due(push.step):
            return
        since = self._timer.fired(push.step)
        text = "" if loss is None else f", loss {as_number(loss, 'loss'):.4f}"
        if self.batch is not None and since is not None and since[1] > 0:
            text += f", {self._pushes * self.batch / since[1]:,.0f} examples/s"
        scalars = session.scalars.since(self._seen)
        text += "".join(f", {name} {value:.4g}" for name, value in scalars.items())
        self._pushes, self._seen = 0, session.scalars.count
        log.info("%s: step %d%s, staleness %d", session.name, push.step, text, push.staleness)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        self._timer.fired(step)
        self._pushes = 0
