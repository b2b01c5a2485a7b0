"""Logs the progress of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError
from dps.hooks.hook import Hook
from dps.hooks.scalars import ScalarReader, as_number
from dps.hooks.timer import EXAMPLES, Timer
from dps.messages.replies import Push
from dps.process.telemetry import log
from dps.training.definition import whole_number

if TYPE_CHECKING:
    from dps.hooks.hook import Loop


class LogMetrics(Hook):
    """Log step, loss, staleness and the scalars given to `session.summary` since the last line.

    The lines have the level INFO of the logger "dps". `dps launch`, `dps.role` and processes of a `dps.LocalCluster`
    show them; another program does after `logging.basicConfig(level="INFO", format="%(message)s")`.

    Args:
        steps: Log every so many global steps; 100 when neither is given.
        seconds: Log every so many seconds.
        batch: Examples in one push. When given, the line also has this session's examples/s.
        metrics: A function of the session that returns more numbers by their names. It is called only when a line is
            due. What it returns is given to `session.summary`, so that hooks that come later have it, too.
        at_end: Whether the end of the loop has a line, as well.

    Raises:
        ConfigError: Both steps and seconds are given, a number that is not above 0 (`steps` and `batch`: a whole one),
            or `metrics` cannot be called; and when a line is due, if `metrics` returns something else than numbers by
            name.

    Example:
        ```python
        def accuracy(session):
            return {"accuracy": float((session.pull()["w"] > 0).mean())}

        hooks = [dps.LogMetrics(seconds=10, batch=32, metrics=accuracy)]
        ```
    """

    def __init__(
        self,
        steps: int | None = None,
        seconds: float | None = None,
        batch: int | None = None,
        metrics: Callable[[Any], Mapping[str, Any]] | None = None,
        at_end: bool = False,
    ) -> None:
        self._timer = Timer(100 if steps is None and seconds is None else steps, seconds, "LogMetrics")
        if metrics is not None and not callable(metrics):
            raise ConfigError(f"LogMetrics: got metrics={metrics!r:.80}, wanted a function of the session")
        self.batch = None if batch is None else whole_number("LogMetrics: got batch=", batch, 1, EXAMPLES)
        self._pushes, self._reader = 0, ScalarReader()
        self._metrics, self._at_end = metrics, at_end
        self._last: tuple[Push, Any] | None = None
        """The last push and its loss, while no line has them and the end may want one."""

    def begin(self) -> None:
        self._timer.reset()
        self._pushes, self._last = 0, None

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        self._pushes += 1
        if self._timer.is_due(push.step):
            self._last = None
            self._log_line(session, push, loss)
        elif self._at_end:
            self._last = push, loss

    def end(self, session: Loop) -> None:
        if self._last is not None:
            self._log_line(session, *self._last)

    def _log_line(self, session: Loop, push: Push, loss: Any) -> None:
        if self._metrics is not None:
            found = self._metrics(session)
            if not isinstance(found, Mapping):
                raise ConfigError(f"LogMetrics: metrics returned {found!r:.80}, wanted a dict of numbers by name")
            for name, value in found.items():
                session.scalars.store_value(name, value)
        since = self._timer.record_firing(push.step)
        text = "" if loss is None else f", loss {as_number(loss, 'loss'):.4f}"
        if self.batch is not None and since is not None and since[1] > 0:
            text += f", {self._pushes * self.batch / since[1]:,.0f} examples/s"
        scalars = self._reader.take_new(session.scalars)
        text += "".join(f", {name} {value:.4g}" for name, value in scalars.items())
        self._pushes = 0
        log.info("%s: step %d%s, staleness %d", session.name, push.step, text, push.staleness)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        self._timer.record_firing(step)
        self._pushes = 0


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

    def begin(self) -> None:
        self._timer.reset()
        self.steps_per_s = None

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        if self._timer.is_due(push.step):
            since = self._timer.record_firing(push.step)
            if since is not None and since[1] > 0:
                self.steps_per_s = since[0] / since[1]
                log.info("%s: step %d, %.1f steps/s", session.name, push.step, self.steps_per_s)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        self._timer.record_firing(step)
