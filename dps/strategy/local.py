"""One replica in each worker, with a copy of its own; the copies' differences are averaged every few steps."""

from __future__ import annotations

from typing import Any

from dps.optim import Optimizer
from dps.server import Server
from dps.strategy.parameter_server import ParameterServer
from dps.update import Local as LocalMode


class Local(ParameterServer):
    """`ParameterServer` with `update=dps.Local(steps, outer)`: each worker trains alone for some steps.

    `variables.read` and `apply_gradients` work on the worker's own copy; every `steps` steps the workers wait for each
    other, and the ps applies the averaged difference. `num_replicas_in_sync` is 1. `close` averages a last time.

    Args:
        server: This process's `dps.Server`, or the address of any task of the run.
        steps: How many steps a worker trains alone.
        outer: The optimizer that applies the averaged difference, on the ps. None: `dps.optim.SGD(1.0)`, with which
            all go on from the mean of the copies.
        settings: More arguments of `dps.Session`, such as `hooks` and `timeout`.

    Raises:
        ConfigError: A number of steps below 1, or an outer optimizer that is none.

    Example:
        ```pycon
        >>> with dps.strategy.Local(server, steps=2) as strategy, strategy.scope():
        ...     first, sgd = {"w": np.zeros(2)}, dps.optim.SGD(0.5)
        ...     variables = strategy.variables(first, optimizer=sgd)
        ...     for _ in range(4):
        ...         variables.apply_gradients({"w": np.ones(2)}).step
        ...     variables.read()["w"]
        0
        1
        1
        2
        array([-2., -2.])
        ```
    """

    def __init__(
        self, server: Server | str, steps: int = 8, outer: Optimizer | None = None, **settings: Any
    ) -> None:  # fmt: skip
        mode = LocalMode(steps) if outer is None else LocalMode(steps, outer)
        super().__init__(server, mode, **settings)
