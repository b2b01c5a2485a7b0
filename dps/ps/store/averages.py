"""The moving averages of an arena: a slot that follows the values, range by range as an update writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from dps.averages import average_of
from dps.transport.wire import Array

Shared: TypeAlias = Callable[[int, Callable[[int, int], bool]], bool]


class Averages:
    """The averages of one arena, flat, in the dtype in which updates are computed.

    Values are given as kernels take them. Any thread may call, on ranges that no other thread writes.
    """

    def __init__(self, optimizer: Mapping[str, Any], averages: Array, kernels: ModuleType) -> None:
        """`optimizer`: the wire form of the one beside which averages are kept. `kernels`: those of the device that has
        the averages, `dps.kernels.cpu` or `dps.kernels.cuda`."""
        definition = average_of(optimizer)
        assert definition is not None, "who keeps averages was told how"
        self._definition, self._averages, self._kernels = definition, averages, kernels
        self._number = np.dtype(averages.dtype).type

    def follow(self, start: int, values: Array, step: int, shared: Shared | None = None) -> None:
        """Follow the new values of the elements from `start` on. `step`: the global step of the update. `shared(size,
        work)`: calls `work(begin, end)` for all elements, by several threads if they are many.
        """
        averages, share = self._averages[start : start + values.size], self._share(step)

        def work(begin: int, end: int) -> bool:
            self._kernels.follow(averages[begin:end], values[begin:end], share)
            return True

        if shared is None:
            work(0, values.size)
        else:
            shared(values.size, work)

    def follow_rows(self, start: int, table: Array, rows: Array, step: int) -> None:
        """Follow the new values of these rows of a table, shape (rows, dim), that begins at element `start`."""
        averages = self._averages[start : start + table.size].reshape(table.shape)
        self._kernels.follow_rows(averages, table, rows, self._share(step))

    def _share(self, step: int) -> Any:
        return self._number(1.0 - self._definition.at(step))
