"""The loop that hooks see when a model trains without a session: the steps of a strategy."""

from __future__ import annotations

from typing import Any

from dps import config
from dps.errors import ConfigError
from dps.hooks.scalars import Scalars
from dps.strategy.variables import Variables
from dps.transport.current import runtime
from dps.transport.endpoint import Runtime


class LocalLoop:
    """As much of `dps.Session` as there is without a ps; see `dps.hooks.loop.Loop`."""

    name = "model"

    def __init__(self, variables: Variables) -> None:
        self._variables, self._stop = variables, False
        self.scalars, self.global_step = Scalars(), int(getattr(variables, "step", 0))

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes files."""
        return not self._variables.strategy.first_replica

    @property
    def checkpoint_dir(self) -> str | None:
        """Where this process keeps checkpoints, if its strategy does."""
        found: str | None = getattr(self._variables.strategy, "checkpoint_dir", None)
        return found if hasattr(self._variables, "save") else None

    @property
    def runtime(self) -> Runtime:
        """The clock and the storage."""
        return runtime()

    def should_stop(self) -> bool:
        """Whether a hook, or Ctrl-C, asked for the end."""
        return self._stop or config.stop_requested.is_set()

    def request_stop(self) -> None:
        """Make `should_stop` true."""
        self._stop = True

    def summary(self, name: str, value: Any) -> None:
        """Keep a number for hooks."""
        self.scalars.put(name, value)

    def stats(self) -> dict[str, Any]:
        """There are no ps, and no counters of theirs."""
        return {}

    def pull(self) -> Any:
        """The values now."""
        return self._variables.read()

    def save(self, timeout: float | None = None, position: bytes = b"") -> str:
        """Write a checkpoint, if the strategy can without ps; else ConfigError."""
        if hasattr(self._variables, "save"):
            return str(self._variables.save(position))
        raise ConfigError("a model without ps has no run checkpoints; use dps.nn.ModelCheckpoint, or ParameterServer")
