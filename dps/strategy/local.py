"""Workers that train on copies of their own, and average what they have learned every few steps."""

from __future__ import annotations

from typing import Any

from dps.client.session import Session
from dps.errors import ConfigError
from dps.optim import SGD, Optimizer
from dps.reply import Push
from dps.server import Server
from dps.strategy.mirrored_variables import MirroredVariables
from dps.strategy.strategy import Strategy
from dps.strategy.variables import Variables
from dps.update import SyncReplicas
from dps.variables.tree import Nesting, leaves


class Local(Strategy):
    """One replica in each worker, with a copy of its own; every `steps` steps the copies' differences are averaged.

    The ps applies the average with the outer optimizer, as if it were a gradient, and all go on from the result. With
    `SGD(1.0)` that is the mean of the copies. The inner optimizer, that of `variables`, keeps its slots in the worker.
    `num_replicas_in_sync` is 1. Use the strategy in a `with` block, or call `close`, which averages a last time and
    ends the session.

    Args:
        server: This process's `dps.Server`, or the address of any task of the run.
        steps: How many steps a worker trains alone.
        outer: The optimizer that applies the averaged difference, on the ps. None: `dps.optim.SGD(1.0)`.
        settings: More arguments of `dps.Session`, such as `hooks` and `timeout`.

    Raises:
        ConfigError: A number of steps below 1.

    Example:
        ```pycon
        >>> with dps.strategy.Local(server, steps=2) as strategy, strategy.scope():
        ...     first, sgd = {"w": np.zeros(2)}, dps.optim.SGD(0.5)
        ...     variables = strategy.variables(first, optimizer=sgd)
        ...     for _ in range(4):
        ...         variables.apply_gradients({"w": np.ones(2)}).step
        ...     variables.read()["w"]
        1
        2
        3
        4
        array([-2., -2.])
        ```
    """

    def __init__(
        self, server: Server | str, steps: int = 8, outer: Optimizer | None = None, **settings: Any
    ) -> None:  # fmt: skip
        super().__init__([None], settings.get("timeout", 60.0))
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ConfigError(f"Local: steps: got {steps!r}, wanted a whole number from 1")
        self.server, self._steps, self._settings = server, steps, settings
        self._outer = SGD(1.0) if outer is None else outer
        self._made: LocalVariables | None = None

    @property
    def checkpoint_dir(self) -> str | None:
        """The folder of the run's checkpoints, where this strategy was given one."""
        found = self._settings.get("checkpoint_dir")
        return None if found is None else str(found)

    def __repr__(self) -> str:
        return f"dps.strategy.Local(steps={self._steps}, outer={self._outer!r})"

    def _variables(self, params: Any, optimizer: Optimizer | None) -> Variables:
        if self._made is not None:
            raise ConfigError(
                "variables: called a second time; under Local one call holds all trained values: nest them"
            )
        session = Session(self.server, params, optimizer=self._outer, update=SyncReplicas(), **self._settings)
        self._made = LocalVariables(self, params, optimizer, session, self._steps)
        return self._made

    def close(self) -> None:
        """Average what was learned since the last time, and end the session. Blocks. A second call does nothing."""
        made, self._made = self._made, None
        if made is not None:
            made.average()
            made.session.close()


class LocalVariables(MirroredVariables):
    """A worker's copy. `session` is the session that has the averaged values."""

    def __init__(
        self, strategy: Strategy, params: Any, optimizer: Optimizer | None, session: Session, steps: int
    ) -> None:  # fmt: skip
        super().__init__(strategy, params, optimizer, [None], [0])
        self.session, self._steps, self._alone = session, steps, 0
        self._common = session.pull()
        """The values that all workers have begun from."""
        self._set(dict(leaves(self._common)))

    def apply_gradients(self, grads: Any, loss: Any = None) -> Push:
        """As Variables.apply_gradients; every so many steps it waits for the other workers."""
        push = super().apply_gradients(grads, loss)
        self._alone += 1
        if self._alone == self._steps:
            self.average()
        return push

    def average(self) -> None:
        """Push the difference to the common values, and go on from the new ones. Blocks until all workers have."""
        if not self._alone:
            return
        now, before = dict(leaves(super().read())), dict(leaves(self._common))
        trained = {spec.name for spec in self._plan.variables if spec.optimizer is not None}
        moved = [before[name] - now[name] if name in trained else None for name in self._nesting.paths]
        self._alone = 0
        self._common = self.session.step(Nesting(self._common).build(moved))
        self._set(dict(leaves(self._common)))
