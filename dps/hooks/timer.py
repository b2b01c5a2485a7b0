"""Decides when a hook is due: every N steps or every N seconds."""

from __future__ import annotations

from dps.errors import ConfigError, as_seconds
from dps.training.definition import whole_number
from dps.transport.current import runtime

EXAMPLES = "the examples in one push, a whole number"
"""What the argument `batch` of a hook is."""


class Timer:
    """Fires every N steps or every N seconds. It fires the first time it is asked, and never twice for one step.

    Raises ConfigError, in the name of the hook `whose`, unless exactly one of the two is given, and above 0.
    """

    def __init__(self, every_steps: int | None = None, every_s: float | None = None, whose: str = "Timer") -> None:
        if (every_steps is None) == (every_s is None):
            raise ConfigError(f"{whose}: got steps={every_steps!r} and seconds={every_s!r}, wanted one of them")
        self.every_steps = None if every_steps is None else whole_number(f"{whose}: got steps=", every_steps, 1)
        self.every_s = None if every_s is None else as_seconds(every_s)
        if self.every_s is not None and not self.every_s > 0:
            raise ConfigError(f"{whose}: got seconds={every_s!r:.40}, wanted a number above 0")
        self._step: int | None = None
        self._time = 0.0

    def reset(self) -> None:
        """Forget when it fired: a session begins."""
        self._step = None

    def is_due(self, step: int) -> bool:
        """Whether to fire at this step."""
        if self._step is None:
            return True
        if step == self._step:
            return False
        if self.every_steps is not None:
            return step >= self._step + self.every_steps
        assert self.every_s is not None
        return runtime().now() >= self._time + self.every_s

    def record_firing(self, step: int) -> tuple[int, float] | None:
        """Note that it fired; returns steps and seconds since the last time, or None the first time."""
        now = runtime().now()
        since = None if self._step is None else (step - self._step, now - self._time)
        self._step, self._time = step, now
        return since
