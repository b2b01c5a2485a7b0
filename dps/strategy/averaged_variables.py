"""Variables of which each of several workers trains copies of its own, which are averaged every few steps, without a
ps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.errors import ConfigError
from dps.local_copy import LocalCopy
from dps.outer import as_applied
from dps.reply import Push
from dps.strategy.summing import not_finite
from dps.strategy.values import array_of
from dps.strategy.worker_variables import WorkerVariables
from dps.transport.wire import Array
from dps.update import Local as LocalMode
from dps.update import to_wire
from dps.variables.layout import check_gradients
from dps.variables.plan import Plan
from dps.variables.tree import Rows, leaves

if TYPE_CHECKING:
    from dps.optim import Optimizer
    from dps.strategy.local import Local


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

    def _planned(self, plan: Plan) -> Plan:
        self._of_worker = plan
        """The plan with the workers' own optimizers."""
        return as_applied(plan, to_wire(self._mode))

    def _described(self) -> list[str]:
        return [f"an average every {self._mode.steps} steps", *super()._described()]

    def _ready(self) -> LocalCopy:
        """The own copy. At the beginning of a round it takes the common values."""
        if self._local.ended:
            self._local.begin(super().read())
        return self._local

    def read(self, on_device: bool = False) -> Any:
        """As Variables.read, of the own copy."""
        self._replica("read")
        return self._ready().values(None, still=True)

    def apply_gradients(self, grads: Any, loss: Any = None) -> Push:
        """As Variables.apply_gradients: a step of the own copy. The last one of a round waits for the other workers."""
        self._replica("apply_gradients")
        flat = [(name, array_of(g) if hasattr(g, "copy_to_host") else g) for name, g in leaves(grads)]
        gradients = check_gradients(self._of_worker, flat)
        for index, gradient in gradients.items():
            assert isinstance(gradient, Rows | np.ndarray), "nothing is packed"
            if problem := not_finite(self._of_worker.variables[index].name, gradient):
                raise ValueError(problem)
        own = self._ready()
        own.apply(gradients, self._mode.steps * self._step + own.steps)
        return self._end_round() if own.steps == self._mode.steps else Push(self._step, True)

    def assign(self, values: Any) -> None:
        """As Variables.assign: sets the own copy at once, and the common values after the round."""
        self._replica("assign")
        found = {name: self._fitting(name, value) for name, value in leaves(values) if value is not None}
        self._ready().assign(found)
        self._assigned |= found

    # -- rounds -------------------------------------------------------------------------------------------------

    def _end_round(self) -> Push:
        """Average how far the copies have moved, and apply it. Blocks until all workers have ended the round."""
        names = [spec.name for spec in self._plan.variables]
        moved = {names[index]: array for index, array in self._local.moved().items()}
        for name, array in moved.items():
            if problem := not_finite(name, array):
                raise ValueError(problem.replace("gradient", "movement", 1))
        self._local.ended = True
        assigned = self._of_all_workers()
        self._set(assigned)
        return self._apply([{name: array for name, array in moved.items() if name not in assigned}])

    def _of_all_workers(self) -> dict[str, Array]:
        """What the workers have assigned in this round; where several did, the value of the first."""
        mine, self._assigned = self._assigned, {}
        group, names = self.strategy.group, list(self._plan.by_name)
        if not group.all_reduce([np.array([len(mine)], np.int64)], "max")[0][0]:
            return {}
        numbers = np.array([names.index(name) for name in mine], np.int64)
        found: dict[str, Array] = {}
        for which, *values in group.gather([numbers, *mine.values()]):
            for number, value in zip(which.tolist(), values, strict=True):
                found.setdefault(names[number], value.copy())
        return found

    def _over_workers(self, sums: Mapping[str, Array | Rows]) -> dict[str, Array | Rows]:
        """The mean over the workers. Each sum counts those that it is of: one may be lost between two."""
        arrays = [self._dense(name, moved) for name, moved in sums.items()]
        kinds = list(dict.fromkeys(array.dtype for array in arrays))
        totals = self.strategy.group.all_reduce([*arrays, *(np.ones(1, kind) for kind in kinds)])
        counts = dict(zip(kinds, totals[len(arrays) :], strict=True))
        return {name: total / counts[total.dtype] for name, total in zip(sums, totals, strict=False)}

    def end(self) -> None:
        """The strategy is closed: average a last time, and save the last round."""
        if self._local.steps and not self._local.ended:
            self._end_round()
        super().end()

    def drop(self) -> None:
        """The program has failed: the steps since the last round are dropped."""
        self._local.ended = True
