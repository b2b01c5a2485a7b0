"""Attaches the memory on this machine that the messages of one session name, and reads it in place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from dps.errors import ProtocolError
from dps.transport.endpoint import Runtime
from dps.transport.shared_memory import attach_proven
from dps.transport.wire import Array
from dps.variables.plan import ShardLayout


class Borrowed:
    """Attaches each memory once. If there are too many, the least recently used one is detached."""

    def __init__(self, runtime: Runtime, near: Callable[[], bool]) -> None:
        """`near`: whether the session has proven that it reads memory of this process."""
        self._runtime, self._near, self._most = runtime, near, runtime.tuning.intake.attached
        self._attached: OrderedDict[tuple[int, ...], Array] = OrderedDict()
        self._last: tuple[Array, list[Array]] = np.empty(0, np.uint8), []
        """The run of the whole shard that was named last, and its arenas."""
        self._runs: dict[tuple[int, ...], Array] = {}
        """Runs that earlier messages named, in memory that is still attached: by memory, offset and length."""

    def flats(self, parts: list[object], layout: ShardLayout) -> list[Array]:
        """The arenas of the shard, whose run is at that place. Raises as `run`."""
        run = self.run(parts, layout.nbytes)
        if run is not self._last[0]:
            self._last = run, layout.flats(run)
        return self._last[1]

    def run(self, parts: list[object], nbytes: int) -> Array:
        """`nbytes` bytes of a memory. `parts`: its name and an offset. Raises ProtocolError if they are not inside it,
        and Unavailable if the memory cannot be reached."""
        try:
            name, offset = parts
            place = (*name, offset, nbytes)  # type: ignore[misc]
            found = self._runs.get(place)
        except (TypeError, ValueError):
            raise ProtocolError(f"{parts!r:.100} is no place in shared memory; wanted its name and an offset") from None
        if found is None:
            return self._found(place[:-2], offset, nbytes)
        self._attached.move_to_end(place[:-2])
        return found

    def _found(self, name: tuple[int, ...], offset: object, nbytes: int) -> Array:
        """Find a run that no earlier message has named."""
        if type(offset) is not int:
            raise ProtocolError(f"got the offset {offset!r:.100} in shared memory, wanted an integer")
        memory = self._attached.get(name)
        if memory is None:
            memory = self._attached[name] = attach_proven(self._runtime, [*name], self._near)
            while len(self._attached) > self._most:
                gone, _ = self._attached.popitem(last=False)
                self._runs = {place: run for place, run in self._runs.items() if place[:-2] != gone}
        self._attached.move_to_end(name)
        if offset < 0 or offset % 64 or offset + nbytes > len(memory):
            raise ProtocolError(f"bytes {offset} to {offset + nbytes} are not in a memory of {len(memory)} bytes")
        if len(self._runs) >= 8 * self._most:
            self._runs.clear()
        run = self._runs[(*name, offset, nbytes)] = writable(memory[offset : offset + nbytes])
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
