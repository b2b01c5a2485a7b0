"""Memory that first values leave behind: given back to the system when the program has let them go."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import numpy as np

from dps import config
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array


class Surplus:
    """Large first values of a session, while the program has them.

    A task's malloc keeps large blocks for the next messages (see `config.MALLOC`). A table that a worker only brings
    along, and reads by rows afterwards, would be kept for nothing, and so would what it was computed from.
    """

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._held = [weakref.ref(array) for array in arrays]

    def give_back(self) -> bool:
        """Give back the memory of arrays that are gone since the last time; whether none is left to wait for."""
        left = [held for held in self._held if held() is not None]
        if len(left) < len(self._held):
            self._held = left
            config.trim_memory()
        return not left


def surplus_of(values: Iterable[Array], runtime: Runtime) -> Surplus | None:
    """What to look after; None where all is small, or where malloc gives memory back by itself. Called when the
    session is open: memory that is free already is given back now."""
    # Simulated: real memory is trimmed here, and the program of a test has it.
    if runtime.simulated or not runtime.keeps_blocks:
        return None
    large = [owner for owner in map(_owner, values) if owner.nbytes >= runtime.tuning.client.surplus_nbytes]
    if not large:
        return None
    config.trim_memory()
    return Surplus(large)


def _owner(array: Array) -> Array:
    """The array whose memory this one shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
