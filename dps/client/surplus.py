"""Memory that first values leave behind: given back to the system when the program has let them go."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import numpy as np

from dps import config
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array


class Surplus:
    """Large first values of a session that the program still refers to.

    A task's malloc keeps large blocks for the next messages (see `config.MALLOC`). It would also keep the memory of a
    table that a worker only brings along and then reads by rows.
    """

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._held = [weakref.ref(array) for array in arrays]

    def give_back(self) -> bool:
        """Give the memory of arrays that are gone back to the system; whether all are gone."""
        left = [held for held in self._held if held() is not None]
        if len(left) < len(self._held):
            self._held = left
            config.trim_memory()
        return not left


def surplus_of(values: Iterable[Array], runtime: Runtime) -> Surplus | None:
    """The large arrays to watch; None if there are none, or if malloc gives memory back by itself. Memory that is free
    already is given back now."""
    # Not in the simulator: the real memory is that of the test's own process.
    if runtime.simulated or not runtime.keeps_blocks:
        return None
    large = [owner for owner in map(_owner, values) if owner.nbytes >= runtime.tuning.client.surplus_nbytes]
    if not large:
        return None
    config.trim_memory()
    return Surplus(large)


def _owner(array: Array) -> Array:
    """The array that owns the memory of this one."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
