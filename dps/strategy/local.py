"""One replica in each worker, with a copy of its own; the copies' differences are averaged every few steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dps.actors.standing import Home
from dps.collectives.group import Group
from dps.errors import ConfigError
from dps.messages.replies import Push
from dps.process.telemetry import log
from dps.strategy.parameter_server import ParameterServer
from dps.strategy.reduction import not_finite_text
from dps.strategy.strategy import Variables
from dps.strategy.values import array_of
from dps.strategy.worker_variables import WorkerVariables
from dps.task.server import Server
from dps.training.optimizers import Optimizer
from dps.training.update_modes import Local as LocalMode
from dps.training.update_modes import to_wire
from dps.transport.wire import Array
from dps.variables.layout import check_gradients
from dps.variables.local_copy import LocalCopy
from dps.variables.plan import Plan, as_applied
from dps.variables.tree import Rows, leaves


class AveragedVariables(WorkerVariables):
    """A worker's part of local mode without a ps.

    The base class keeps the common values, which it updates by the outer optimizer as a ps does. It saves them, too.
    """

    strategy: Local

    def __init__(self, strategy: Local, params: Any, optimizer: Optimizer | None, mode: LocalMode) -> None:
        self._mode = mode
        super().__init__(strategy, params, optimizer, [None], [0])
        for name in self._own[0]:
            raise ConfigError(
                f"{name}: synchronization='on_read' is a value of each replica, and Local averages those of all; keep "
                "it in the program, or use MultiWorkerMirrored"
            )
        self._local = LocalCopy(self._of_worker, None)
        self._assigned: dict[str, Array] = {}
        """What was assigned in this round, by variable."""

    def _applied_plan(self, plan: Plan) -> Plan:
        self._of_worker = plan
        """The plan with the workers' own optimizers."""
        return as_applied(plan, to_wire(self._mode))

    def _describe_variables(self) -> list[str]:
        return [f"an average every {self._mode.steps} steps", *super()._describe_variables()]

    def _begin_round(self) -> LocalCopy:
        """The own copy. At the beginning of a round it takes the common values."""
        if self._local.ended and (text := self._local.begin_round(super().read(), self._step)):
            log.info("%s: %s", self._server.name, text)
        return self._local

    def read(self, on_device: bool = False) -> Any:
        """As Variables.read, of the own copy."""
        self._replica("read")
        return self._begin_round().values(None, still=True)

    def apply_gradients(self, grads: Any, loss: Any = None) -> Push:
        """As Variables.apply_gradients: a step of the own copy. The last one of a round waits for the other workers."""
        self._replica("apply_gradients")
        flat = [(name, array_of(g) if hasattr(g, "copy_to_host") else g) for name, g in leaves(grads)]
        gradients = check_gradients(self._of_worker, flat)
        for index, gradient in gradients.items():
            assert isinstance(gradient, Rows | np.ndarray), "nothing is packed"
            if problem := not_finite_text(self._of_worker.variables[index].name, gradient):
                raise ValueError(problem)
        own = self._begin_round()
        own.apply(gradients, self._mode.steps * self._step + own.steps)
        return self._end_round() if own.steps == self._mode.steps else Push(self._step, True)

    def assign(self, values: Any) -> None:
        """As Variables.assign: sets the own copy at once, and the common values after the round."""
        self._replica("assign")
        found = self._check_values(values)
        self._begin_round().assign(found)
        self._assigned |= found

    # -- rounds -------------------------------------------------------------------------------------------------

    def _end_round(self) -> Push:
        """Average how far the copies have moved, and apply it. Blocks until all workers have ended the round."""
        names = [spec.name for spec in self._plan.variables]
        moved = {names[index]: array for index, array in self._local.differences().items()}
        for name, array in moved.items():
            if problem := not_finite_text(name, array):
                raise ValueError(problem.replace("gradient", "movement", 1))
        self._local.ended = True
        assigned = self._gather_assigned()
        self._set_values(assigned)
        return self._apply_sum([{name: array for name, array in moved.items() if name not in assigned}])

    def _gather_assigned(self) -> dict[str, Array]:
        """What the workers have assigned in this round; where several did, the value of the first."""
        mine, self._assigned = self._assigned, {}
        group, names = self.strategy.group, [spec.name for spec in self._plan.variables]
        if not group.all_reduce([np.array([len(mine)], np.int64)], "max")[0][0]:
            return {}
        numbers = np.array([names.index(name) for name in mine], np.int64)
        found: dict[str, Array] = {}
        for which, *values in group.gather([numbers, *mine.values()]):
            for number, value in zip(which.tolist(), values, strict=True):
                found.setdefault(names[number], value.copy())
        return found

    def _reduce_over_workers(self, sums: Mapping[str, Array | Rows]) -> dict[str, Array | Rows]:
        """The mean over the workers. Each sum counts those that it is of: one may be lost between two."""
        arrays = [self._dense_gradient(name, moved) for name, moved in sums.items()]
        kinds = list(dict.fromkeys(array.dtype for array in arrays))
        totals = self.strategy.group.all_reduce([*arrays, *(np.ones(1, kind) for kind in kinds)])
        counts = dict(zip(kinds, totals[len(arrays) :], strict=True))
        return {name: total / counts[total.dtype] for name, total in zip(sums, totals, strict=False)}

    def finish_training(self) -> None:
        """The strategy is closed: average a last time, and save the last round."""
        if self._local.steps and not self._local.ended:
            self._end_round()
        super().finish_training()

    def drop_round(self) -> None:
        """The program has failed: the steps since the last round are dropped."""
        self._local.ended = True


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
                averaged.finish_training()
        finally:
            if self._group is not None:
                self._group.close()

    def __exit__(self, kind: object = None, *of: object) -> None:
        if kind is not None and self._averaged is not None:  # the others need not wait for what has failed
            self._averaged.drop_round()
        self.close()
