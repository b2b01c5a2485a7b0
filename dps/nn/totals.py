"""Losses and metrics summed over all workers in sync, by the ps: a variable to which each step adds, as a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.errors import DataError
from dps.nn.metrics import MOST
from dps.optim import Optimizer
from dps.strategy.variables import Variables
from dps.telemetry import log
from dps.variables.tree import Variable

KEY = "training_totals"
CELLS = 4 + MOST
"""How many parts of batches were trained on, the sum of their epochs' numbers, and what `Compiled.sums` returns."""


class SharedTotals:
    """The sums of an epoch over all workers. A synchronous ps adds the gradients of all workers in the same step as
    those of the model, so each worker reads the same sums at the end of its epoch, of exactly its steps."""

    @staticmethod
    def variable(optimizer: Optimizer) -> dict[str, Any]:
        """The variable, by its key among the parameters. `optimizer`: one that subtracts gradients as they are."""
        return {KEY: Variable(np.zeros(CELLS), optimizer=optimizer)}

    def __init__(self, variables: Variables, workers: int) -> None:
        self._variables, self._workers = variables, workers
        self._epoch, self._before, self._began = 0, np.zeros(CELLS), 0
        self.broken = False
        """Whether a step of this epoch was dropped or undone."""
        self._undone = False
        """Whether some were in this training: then workers need not be at the same batch any more."""

    def begin(self, epoch: int) -> None:
        """An epoch begins on this worker."""
        self._epoch, self._before, self.broken = epoch + 1, self._read(), False
        self._began = self._run_epoch()

    def gradient(self, sums: Any) -> dict[str, Any]:
        """The numbers that this worker adds in a step."""
        cells = np.zeros(CELLS)
        cells[: 2 + len(sums)] = [1, self._epoch, *sums]
        return {KEY: -cells}

    def end(self, steps: int, own: Any) -> Any:
        """The sums of all workers over the epoch, which had so many steps; this worker's `own` where some were undone.

        Raises DataError if others were in a later epoch meanwhile."""
        found = self._read() - self._before
        if self.broken or self._run_epoch() != self._began:
            self._undone = True
            return own
        parts, epochs = round(found[0]), round(found[1])
        if epochs > parts * self._epoch and not self._undone:
            raise DataError(
                f"fit: another worker went on to a later epoch during the {steps} steps of epoch {self._epoch} here: "
                "its dataset ended early; give all workers as many batches, or steps_per_epoch"
            )
        if epochs != parts * self._epoch:
            log.warning("fit: the logs of epoch %d hold batches of another one: a worker was in it", self._epoch)
        elif parts < steps * self._workers:
            log.warning(
                "fit: epoch %d was made of %d parts of batches instead of %d: a worker has left, or its dataset ended "
                "early", self._epoch, parts, steps * self._workers,
            )  # fmt: skip
        return found[2 : 2 + len(own)]

    def _run_epoch(self) -> int:
        """The run epoch of what was read last: steps were undone where it is another one."""
        session = getattr(self._variables, "session", None)
        return 0 if session is None else int(session.version.epoch)

    def _read(self) -> Any:
        return np.array(self._variables.read()[KEY])
