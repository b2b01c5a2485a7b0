"""Attaches the memory on this machine that the messages of one session name, and reads it in place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from dps.errors import ProtocolError
from dps.transport.endpoint import Runtime
from dps.transport.shared_memory import attach_proven
from dps.transport.wire import Array
from dps.variables.plan import ShardLayout

Place = tuple[int, ...]
"""The name of a memory, and an offset in it, bytes."""


def place_of(parts: Any) -> Place:
    """The place in shared memory that a message names. Raises ProtocolError if it is none."""
    try:
        name, offset = parts
        place: Place = (*name, offset)
        hash(place)
    except (TypeError, ValueError):
        raise ProtocolError(f"{parts!r:.100} is no place in shared memory; wanted its name and an offset") from None
    if type(offset) is not int:
        raise ProtocolError(f"got the offset {offset!r:.100} in shared memory, wanted an integer")
    return place


class Borrowed:
    """Attaches each memory once. If there are too many, the least recently used one is detached."""

    def __init__(self, runtime: Runtime, near: Callable[[], bool]) -> None:
        """`near`: whether the session has proven that it reads memory of this process."""
        self._runtime, self._near, self._most = runtime, near, runtime.tuning.intake.attached
        self._attached: OrderedDict[tuple[int, ...], Array] = OrderedDict()
        self._runs: dict[tuple[Place, int], Array] = {}
        """Runs that earlier messages named, in memory that is still attached: by place and length."""
        self._wholes: dict[Place, list[Array]] = {}
        """The arenas of the shard in those that have all of it, by place."""

    def flats(self, place: Place, layout: ShardLayout) -> list[Array]:
        """The arenas of the shard, whose run is at that place. Raises as `run`."""
        found = self._wholes.get(place)
        if found is None:
            run = self.run(place, layout.nbytes)
            found = self._wholes[place] = layout.flats(run)
        else:
            self._attached.move_to_end(place[:-1])
        return found

    def run(self, place: Place, nbytes: int) -> Array:
        """`nbytes` bytes of a memory. Raises ProtocolError if they are not inside it, and Unavailable if the memory
        cannot be reached."""
        found = self._runs.get((place, nbytes))
        if found is None:
            return self._found(place, nbytes)
        self._attached.move_to_end(place[:-1])
        return found

    def _found(self, place: Place, nbytes: int) -> Array:
        """Find a run that no earlier message has named."""
        *name, offset = place
        memory = self._attached.get(place[:-1])
        if memory is None:
            memory = self._attached[place[:-1]] = attach_proven(self._runtime, name, self._near)
            while len(self._attached) > self._most:
                gone, _ = self._attached.popitem(last=False)
                self._runs = {key: run for key, run in self._runs.items() if key[0][:-1] != gone}
                self._wholes = {at: flats for at, flats in self._wholes.items() if at[:-1] != gone}
        self._attached.move_to_end(place[:-1])
        if offset < 0 or offset % 64 or offset + nbytes > len(memory):
            raise ProtocolError(f"bytes {offset} to {offset + nbytes} are not in a memory of {len(memory)} bytes")
        if len(self._runs) >= 8 * self._most:
            self._runs.clear()
            self._wholes.clear()
        run = self._runs[place, nbytes] = writable(memory[offset : offset + nbytes])
        return run


class _Lent:
    """Makes numpy treat memory as writable, because the kernels that only read it are compiled for writable arrays
    only."""

    def __init__(self, array: Array) -> None:
        self.array = array
        described = dict(array.__array_interface__)
        described["data"] = (described["data"][0], False)
        self.__array_interface__ = described


def writable(array: Array) -> Array:
    """The same memory as an array that numpy treats as writable. Nothing may write to it: that would end the
    process."""
    found = np.asarray(_Lent(array))
    return found if found.dtype is array.dtype else found.view(array.dtype)  # bfloat16 has no name in the interface
