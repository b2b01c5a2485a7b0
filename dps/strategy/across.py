"""Strategies whose replicas are in several workers: values are reduced over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dps.strategy.reduction import Reduced, gather_values, op_of, reduced, result_of
from dps.strategy.strategy import Strategy
from dps.strategy.values import each_leaf
from dps.transport.wire import Array


class StrategyWorkers(Protocol):
    """The workers of a strategy, as one of them uses them. All make the same calls in the same order."""

    def all_reduce(self, arrays: Sequence[Array], op: str = "sum") -> list[Array]:
        """The sums or maxima ("max") of the workers' arrays. Blocks. They may change with the next call."""

    def gather(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """The arrays of each worker, in their order. Blocks. They may change with the second next call."""


class AcrossWorkers(Strategy):
    """A strategy of several workers: `reduce` and `gather` reach the replicas of all."""

    def _all_workers(self) -> StrategyWorkers | None:
        """None: there is one worker."""
        raise NotImplementedError

    def over_replicas(self, op: str, values: Sequence[Any], axis: int | None = None) -> Any:
        if (workers := self._all_workers()) is None:
            return super().over_replicas(op, values, axis)
        found: list[Reduced] = []

        def leaf(path: str, *of: Any) -> int:
            found.append(reduced(op, of, axis))
            return len(found) - 1

        places = each_leaf(leaf, *values)
        brought = [np.asarray(each.total) for each in found]
        if op != "sum":
            brought += [np.array(each.number, np.int64) for each in found]
        made = [each.copy() for each in workers.all_reduce(brought, "max" if op == "max" else "sum")]

        def result(path: str, place: int) -> Any:
            count = int(made[place + len(found)]) if op != "sum" else 0
            return result_of(op, Reduced(made[place], count, found[place].dtype))

        return each_leaf(result, places)

    def gather_over_replicas(self, values: Sequence[Any], axis: int) -> Any:
        if (workers := self._all_workers()) is None:
            return super().gather_over_replicas(values, axis)
        found: list[Any] = []

        def leaf(path: str, *of: Any) -> int:
            found.append(gather_values(of, axis))
            return len(found) - 1

        places = each_leaf(leaf, *values)
        rows = workers.gather(found)
        return each_leaf(lambda path, place: gather_values([row[place] for row in rows], axis), places)

    def reduce(self, op: str, value: Any, axis: int | None = None) -> Any:
        if self._all_workers() is None:
            return super().reduce(op, value, axis)
        return self.over_replicas(op_of(op), self.local_results(value), axis)

    def gather(self, value: Any, axis: int) -> Any:
        if self._all_workers() is None:
            return super().gather(value, axis)
        return self.gather_over_replicas(self.local_results(value), axis)
