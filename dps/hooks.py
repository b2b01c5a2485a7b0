"""Hooks: what happens around a training loop. Subclass `Hook` and pass instances to `dps.Session(hooks=[...])`."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from dps.errors import CheckpointError
from dps.reply import Push
from dps.transport.endpoint import runtime

if TYPE_CHECKING:
    from dps.session import Session

log = logging.getLogger("dps")


class Hook:
    """Called in list order. A "run" is one push (or step). `end` is not called when the loop ended with an error."""

    def begin(self) -> None:
        """Before the session opens."""

    def after_create_session(self, session: Session) -> None:
        """The session is open; also after a rollback, see `rolled_back`."""

    def before_run(self, session: Session) -> None:
        """A push is about to be sent."""

    def after_run(self, session: Session, push: Push, loss: Any) -> None:
        """A push has its result; `loss` is what the user passed, or None."""

    def rolled_back(self, session: Session, step: int, lost: int) -> None:
        """The run went back to a checkpoint at `step`; `lost` steps are gone."""

    def end(self, session: Session) -> None:
        """The loop ended well; the session still works."""


class Timer:
    """When is it time again? Every N steps or every N seconds; the first time it is asked, and never twice a step."""

    def __init__(self, every_steps: int | None = None, every_s: float | None = None) -> None:
        if (every_steps is None) == (every_s is None):
            raise ValueError(f"give either steps or seconds, got {every_steps!r} steps and {every_s!r} seconds")
        self.every_steps, self.every_s = every_steps, every_s
        self._step: int | None = None
        self._time = 0.0

    def due(self, step: int) -> bool:
        """Whether to fire at this step."""
        if self._step is None:
            return True
        if step == self._step:
            return False
        if self.every_steps is not None:
            return step >= self._step + self.every_steps
        assert self.every_s is not None
        return runtime().now() >= self._time + self.every_s

    def fired(self, step: int) -> tuple[int, float] | None:
        """Note that it fired; returns steps and seconds since the last time, None the first time."""
        now = runtime().now()
        since = None if self._step is None else (step - self._step, now - self._time)
        self._step, self._time = step, now
        return since


class StopAtStep(Hook):
    """Stop when the shared global step reaches `last_step`, or `num_steps` after its value at session creation."""

    def __init__(self, last_step: int | None = None, num_steps: int | None = None) -> None:
        if (last_step is None) == (num_steps is None):
            raise ValueError(f"give either last_step or num_steps, got {last_step!r} and {num_steps!r}")
        self.last_step, self._num_steps = last_step, num_steps

    def after_create_session(self, session: Session) -> None:
        if self.last_step is None:
            assert self._num_steps is not None
            self.last_step = session.global_step + self._num_steps
        self._check(session, session.global_step)

    def after_run(self, session: Session, push: Push, loss: Any) -> None:
        self._check(session, push.step)

    def _check(self, session: Session, step: int) -> None:
        if self.last_step is not None and step >= self.last_step:
            session.request_stop()


class CheckpointSaver(Hook):
    """Save at session creation, then every `steps` or `seconds`, and at the end when the last step is unsaved.

    Acts in the session that leads (`session.is_chief`) only.
    """

    def __init__(self, steps: int | None = None, seconds: float | None = None) -> None:
        self._timer = Timer(steps, seconds if steps is not None or seconds is not None else 600.0)

    def after_create_session(self, session: Session) -> None:
        self._timer.fired(session.global_step)

    def after_run(self, session: Session, push: Push, loss: Any) -> None:
        if self._timer.due(push.step):
            self._timer.fired(push.step)
            self._save(session)

    def rolled_back(self, session: Session, step: int, lost: int) -> None:
        self._timer.fired(step)

    def end(self, session: Session) -> None:
        self._save(session)

    def _save(self, session: Session) -> None:
        """A disk that is full does not end the training; at the very end the chief tries again."""
        if session.is_chief:
            try:
                session.save()
            except CheckpointError as error:
                log.error("%s: no checkpoint at step %d: %s", session.name, session.global_step, error)


class StepCounter(Hook):
    """Log global steps per second every `steps` or `seconds`; the first trigger reports nothing."""

    def __init__(self, steps: int | None = 100, seconds: float | None = None) -> None:
        self._timer = Timer(None if seconds is not None else steps, seconds)
        self.steps_per_s: float | None = None

    def after_run(self, session: Session, push: Push, loss: Any) -> None:
        if self._timer.due(push.step):
            since = self._timer.fired(push.step)
            if since is not None and since[1] > 0:
                self.steps_per_s = since[0] / since[1]
                log.info("%s: step %d, %.1f steps/s", session.name, push.step, self.steps_per_s)

    def rolled_back(self, session: Session, step: int, lost: int) -> None:
        self._timer.fired(step)


class LogMetrics(Hook):
    """Log step, loss, staleness and, with `batch` (examples in one push), examples/s every `steps` or `seconds`."""

    def __init__(self, steps: int | None = 100, seconds: float | None = None, batch: int | None = None) -> None:
        self._timer = Timer(None if seconds is not None else steps, seconds)
        self._batch, self._pushes = batch, 0

    def after_run(self, session: Session, push: Push, loss: Any) -> None:
        self._pushes += 1
        if self._timer.due(push.step):
            since = self._timer.fired(push.step)
            text = "" if loss is None else f", loss {float(loss):.4f}"
            if self._batch is not None and since is not None and since[1] > 0:
                text += f", {self._pushes * self._batch / since[1]:,.0f} examples/s"
            self._pushes = 0
            log.info("%s: step %d%s, staleness %d", session.name, push.step, text, push.staleness)

    def rolled_back(self, session: Session, step: int, lost: int) -> None:
        self._timer.fired(step)
        self._pushes = 0


class NanGuard(Hook):
    """End the loop when the loss is NaN or infinite: with an error, or quietly with `fail=False`."""

    def __init__(self, fail: bool = True) -> None:
        self.fail = fail

    def after_run(self, session: Session, push: Push, loss: Any) -> None:
        if loss is not None and not math.isfinite(float(loss)):
            if self.fail:
                raise ValueError(
                    f"the loss is {float(loss)} at step {push.step}; lower the learning rate or check the data"
                )
            log.warning("%s: the loss is %s at step %d, stopping", session.name, float(loss), push.step)
            session.request_stop()
