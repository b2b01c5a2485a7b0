"""How often the optimizer was applied to each part of an arena: the t of Adam."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from dps.training.averages import average_of
from dps.transport.wire import Array


class Applied:
    """The counts of one arena. An update of all parts costs no pass over them."""

    def __init__(self, parts: int) -> None:
        self.together = 0
        """How often all parts were updated together."""
        self._parts = parts
        self._more: Array | None = None
        """How often each part was updated beside that; None while none was."""

    def restore_counts(self, counts: list[int]) -> None:
        """Continue with the counts of a checkpoint."""
        self.together = min(counts, default=0)
        for place, count in enumerate(counts):
            if count > self.together:
                self.add_updates(place, count - self.together)

    def count_of(self, place: int) -> int:
        """The count of the part at that place."""
        return self.together if self._more is None else self.together + int(self._more[place])

    def add_updates(self, place: int, times: int = 1) -> None:
        """The part at that place was updated alone, so many times."""
        if self._more is None:
            self._more = np.zeros(self._parts, np.int64)
        self._more[place] += times

    def counts(self) -> list[int]:
        """The counts of all parts, in their order."""
        return [self.count_of(place) for place in range(self._parts)]

    @property
    def has_different(self) -> bool:
        """Whether two parts have different counts."""
        return self._more is not None and not (self._more == self._more[0]).all()


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

    def follow(
        self, start: int, values: Array, step: int, share_pass: Callable[[int, Callable[[int, int], bool]], bool]
    ) -> None:
        """Follow the new values of the elements from `start` on. `step`: the global step of the update. `share_pass`:
        as `ArenaMemory.share_pass`."""
        averages, share = self._averages[start : start + values.size], self._share(step)

        def work(begin: int, end: int) -> bool:
            self._kernels.follow(averages[begin:end], values[begin:end], share)
            return True

        share_pass(values.size, work)

    def follow_rows(self, start: int, table: Array, rows: Array, step: int) -> None:
        """Follow the new values of these rows of a table, shape (rows, dim), that begins at element `start`."""
        averages = self._averages[start : start + table.size].reshape(table.shape)
        self._kernels.follow_rows(averages, table, rows, self._share(step))

    def _share(self, step: int) -> Any:
        return self._number(1.0 - self._definition.at(step))
