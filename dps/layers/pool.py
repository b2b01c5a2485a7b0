"""A pool of work arrays, so that a step with the same shapes as the last one allocates nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

KEPT_STEPS = 64
"""Arrays of a shape that no step has used for this many steps are freed: the last batch of an epoch, a test set."""


class Pool:
    """Arrays by shape and dtype. `make(shape, dtype)` allocates missing ones; `made` counts them."""

    def __init__(self, make: Callable[[tuple[int, ...], Any], Any]) -> None:
        self.made = 0
        self._make = make
        self._free: dict[tuple[tuple[int, ...], str], list[Any]] = {}
        self._taken: list[tuple[tuple[tuple[int, ...], str], Any]] = []
        self._used: dict[tuple[tuple[int, ...], str], int] = {}
        self._step = 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array with undefined contents, which the caller owns until `give_back`."""
        key = shape, np.dtype(dtype).str
        free = self._free.setdefault(key, [])
        if free:
            array = free.pop()
        else:
            array = self._make(shape, np.dtype(dtype))
            self.made += 1
        self._taken.append((key, array))
        self._used[key] = self._step
        return array

    def give_back(self) -> None:
        """End a step: all arrays are free again."""
        for key, array in self._taken:
            self._free[key].append(array)
        self._taken.clear()
        self._step += 1
        for key in [key for key, used in self._used.items() if used + KEPT_STEPS < self._step]:
            del self._free[key], self._used[key]
