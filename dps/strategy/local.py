"""One replica in each worker, with a copy of its own; the copies' differences are averaged every few steps."""

from __future__ import annotations

from typing import Any

from dps.collectives.group import Group
from dps.errors import ConfigError
from dps.optim import Optimizer
from dps.server import Server
from dps.standing import Home
from dps.strategy.averaged_variables import AveragedVariables
from dps.strategy.parameter_server import ParameterServer
from dps.strategy.variables import Variables
from dps.update import Local as LocalMode

ALONE = ("checkpoint_dir", "timeout")
"""The settings that are known without a ps."""


class Local(ParameterServer):
    """`ParameterServer` with `update=dps.Local(steps, outer)`: each worker trains alone for some steps.

    `variables.read` and `apply_gradients` work on the worker's own copy; every `steps` steps the workers wait for each
    other, and the ps applies the averaged difference. `num_replicas_in_sync` is 1. `close` averages a last time.

    Without a ps (`dps launch --ps 0`, or a cluster of workers alone) the workers sum the differences among themselves,
    and each applies the mean. A worker that is lost is left out, and one that is started again is not taken in.

    Args:
        server: This process's `dps.Server`, or the address of any task of the run.
        steps: How many steps a worker trains alone.
        outer: The optimizer that applies the averaged difference. None: `dps.optim.SGD(1.0)`, with which
            all go on from the mean of the copies.
        settings: More arguments of `dps.Session`, such as `hooks` and `timeout`. Without a ps: `timeout` and
            `checkpoint_dir`, to which the first worker writes the last round.

    Raises:
        ConfigError: A number of steps below 1, an outer optimizer that is none, or a setting that needs a ps.

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
        self._mode = LocalMode(steps) if outer is None else LocalMode(steps, outer)
        super().__init__(server, self._mode, **settings)
        self.save_steps: int | None = None
        self._group: Group | None = None
        self._averaged: AveragedVariables | None = None
        if self._is_alone and (other := [name for name in settings if name not in ALONE]):
            raise ConfigError(
                f"Local: got {', '.join(other)} in a run without ps; wanted {' and '.join(ALONE)} alone, or a ps"
            )

    def _check_jobs(self, server: Server) -> None:
        """It needs no ps."""

    @property
    def _is_alone(self) -> bool:
        """Whether the run has no ps. Blocks until the chief has said so."""
        server = self.server
        if isinstance(server, str) or server.job != "worker":
            return False
        if not server.cluster:
            server.wait_joined(server.runtime.now() + self.timeout)
        return server.expected("ps") == []

    @property
    def group(self) -> Group:
        """The workers of a run without ps."""
        assert self._group is not None
        return self._group

    @property
    def home(self) -> Home:
        """What this worker's process tells others of its progress."""
        assert isinstance(self.server, Server)
        return self.server.home()

    @property
    def leads(self) -> bool:
        """Whether this worker writes the checkpoints: the first one that is left."""
        return self.group.rank == 0

    def _variables(self, params: Any, optimizer: Optimizer | None) -> Variables:
        if not self._is_alone:
            return super()._variables(params, optimizer)
        self._check_first(self._averaged)
        assert isinstance(self.server, Server)
        self.server.wait_joined(self.server.runtime.now() + self.timeout)
        if self._group is None:
            self._group = Group(self.server.home(), self.server.binding, type(self).__name__, timeout=self.timeout)
        self._averaged = AveragedVariables(self, params, optimizer, self._mode)
        return self._averaged

    def close(self) -> None:
        """Average a last time, and leave the other workers. Blocks. A second call does nothing.

        Raises:
            TaskLost: This worker was taken for lost; what it did last, the others may have done again without it.
            CheckpointError: The last round could not be saved.
        """
        super().close()
        averaged, self._averaged = self._averaged, None
        try:
            if averaged is not None:
                averaged.end()
        finally:
            if self._group is not None:
                self._group.close()

    def __exit__(self, kind: object = None, *of: object) -> None:
        if kind is not None and self._averaged is not None:  # the others need not wait for what has failed
            self._averaged.drop()
        self.close()
