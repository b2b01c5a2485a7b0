"""Returns the memory of large first values to the system once the program has released them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import numpy as np

from dps import config
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array

Held = list[weakref.ref[Array]]
"""Large first values of a session that the program may still refer to.

A task's malloc keeps large blocks for the next messages (see `config.MALLOC`). It would also keep the memory of a table
that a worker only brings along and then reads by rows.
"""


def surplus_of(values: Iterable[Array], runtime: Runtime) -> Held:
    """The large arrays to watch; none if malloc gives memory back by itself. Memory that is free already is given back
    now."""
    # Not in the simulator: the real memory is that of the test's own process.
    if runtime.simulated or not runtime.keeps_blocks:
        return []
    least = runtime.tuning.client.surplus_nbytes
    large = [weakref.ref(owner) for owner in map(_owner, values) if owner.nbytes >= least]
    if large:
        config.trim_memory()
    return large


def give_back(held: Held) -> Held:
    """Return the memory of freed arrays to the system; those that are not freed."""
    left = [array for array in held if array() is not None]
    if len(left) < len(held):
        config.trim_memory()
    return left


def _owner(array: Array) -> Array:
    """The array that owns the memory of this one."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
