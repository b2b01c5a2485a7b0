"""Ends the loop at a given step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError, NotFinite
from dps.hooks.hook import Hook
from dps.hooks.scalars import as_number
from dps.messages.replies import Push
from dps.process.telemetry import log
from dps.training.definition import whole_number

if TYPE_CHECKING:
    from dps.hooks.hook import Loop


class StopAtStep(Hook):
    """Make `should_stop` true when the global step, which all workers share, reaches a number.

    A run that is restored at or beyond the last step stops before its first push. In async a session still makes the
    push that it has begun when others reach the step, and with several ps it may hear of it some 20 ms later ("Steps on
    several ps" in docs/guide/update-modes.md). Give exactly one argument.

    Args:
        last_step: The global step.
        num_steps: Steps after the global step at which the session opens. The last step is computed once: a rollback,
            or a second session with this hook, keeps it.

    Raises:
        ConfigError: Both or none are given, or the value is not a whole number from 0.

    Example:
        ```pycon
        >>> with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
        ...                  hooks=[dps.StopAtStep(num_steps=5)]) as session:
        ...     while not session.should_stop():
        ...         push = session.push({"w": np.ones(3)})
        >>> push.step
        5
        ```
    """

    def __init__(self, last_step: int | None = None, num_steps: int | None = None) -> None:
        if (last_step is None) == (num_steps is None):
            raise ConfigError(f"StopAtStep: got {last_step=} and {num_steps=}, wanted one of them")
        self._num_steps = None if num_steps is None else whole_number("StopAtStep: got num_steps=", num_steps, 0)
        self.last_step = None if last_step is None else whole_number("StopAtStep: got last_step=", last_step, 0)

    def after_create_session(self, session: Loop) -> None:
        if self.last_step is None:
            assert self._num_steps is not None
            self.last_step = session.global_step + self._num_steps
        self._check_step(session, session.global_step)

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        self._check_step(session, push.step)

    def _check_step(self, session: Loop, step: int) -> None:
        if self.last_step is not None and step >= self.last_step:
            session.request_stop()


class NanGuard(Hook):
    """End the loop when a loss is NaN or infinite.

    Args:
        fail: True: the push raises `dps.NotFinite` (also a ValueError). False: a warning, and `should_stop` becomes
            true.

    Example:
        ```pycon
        >>> with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
        ...                  hooks=[dps.NanGuard(fail=False)]) as session:
        ...     push = session.push({"w": np.ones(3)}, loss=float("nan"))
        ...     session.should_stop()
        True
        ```
    """

    def __init__(self, fail: bool = True) -> None:
        self.fail = fail

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        if loss is None or math.isfinite(number := as_number(loss, "loss")):
            return
        if self.fail:
            raise NotFinite(f"the loss is {number} at step {push.step}; lower the learning rate or check the data")
        log.warning("%s: the loss is %s at step %d, stopping", session.name, number, push.step)
        session.request_stop()


class FinalOps(Hook):
    """Call a function with the session when the loop has ended well, and keep what it returns.

    The result is in `final_ops_values`; it is None before, and where the loop ended with an error. Each session begins
    with None.

    Args:
        final_ops: A function of the session, such as an evaluation of the last values.

    Raises:
        ConfigError: `final_ops` cannot be called.

    Example:
        ```python
        final = dps.FinalOps(lambda session: session.pull()["w"].sum())
        with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(1.0),
                         hooks=[final]) as session:
            session.push({"w": -np.ones(3)})
        assert final.final_ops_values == 3
        ```
    """

    def __init__(self, final_ops: Callable[[Any], Any]) -> None:
        if not callable(final_ops):
            raise ConfigError(f"FinalOps: got {final_ops!r:.80}, wanted a function of the session")
        self._function = final_ops
        self.final_ops_values: Any = None

    def begin(self) -> None:
        self.final_ops_values = None

    def end(self, session: Loop) -> None:
        self.final_ops_values = self._function(session)
