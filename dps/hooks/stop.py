"""Ends the loop at a given step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError
from dps.hooks.hook import Hook
from dps.reply import Push

if TYPE_CHECKING:
    from dps.hooks.loop import Loop


class StopAtStep(Hook):
    """Make `should_stop` true when the global step, which all workers share, reaches a number.

    A run that is restored at or beyond the last step stops before its first push. Give exactly one argument.

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
        for name, value in (("last_step", last_step), ("num_steps", num_steps)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ConfigError(f"StopAtStep: got {name}={value!r}, wanted a whole number from 0")
        self.last_step, self._num_steps = last_step, num_steps

    def after_create_session(self, session: Loop) -> None:
        if self.last_step is None:
            assert self._num_steps is not None
            self.last_step = session.global_step + self._num_steps
        self._check(session, session.global_step)

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        self._check(session, push.step)

    def _check(self, session: Loop, step: int) -> None:
        if self.last_step is not None and step >= self.last_step:
            session.request_stop()
