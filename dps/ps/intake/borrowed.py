"""What one session's messages name: its memory on this machine, which is read in place, and its row lists."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from dps.errors import ProtocolError
from dps.ps.intake.rowlists import RowLists
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array


class Borrowed:
    """Memory is attached once; the least used goes when there are too many."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._most = runtime, runtime.tuning.intake.attached
        self.rows = RowLists(runtime.tuning.rows)
        """The row lists that its messages name."""
        self._attached: OrderedDict[tuple[int, ...], Array] = OrderedDict()
        self._runs: dict[tuple[int, ...], Array] = {}
        """What was named before and is still attached: by memory, offset and length."""

    def run(self, parts: list[object], nbytes: int) -> Array:
        """`nbytes` of a memory: `parts` is its name and an offset. ProtocolError for what is not inside it,
        Unavailable for memory that cannot be reached."""
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
        """A run that was not named before."""
        if type(offset) is not int:
            raise ProtocolError(f"got the offset {offset!r:.100} in shared memory, wanted an integer")
        memory = self._attached.get(name)
        if memory is None:
            memory = self._attached[name] = self._runtime.attach([*name])
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
    """Makes numpy take memory for writable; the kernels that only read it exist once, for writable arrays."""

    def __init__(self, array: Array) -> None:
        self.array = array
        described = dict(array.__array_interface__)
        described["data"] = (described["data"][0], False)
        self.__array_interface__ = described


def writable(array: Array) -> Array:
    """The same memory under an array that claims to be writable. Nothing may write to it: the process would end."""
    found = np.asarray(_Lent(array))
    return found if found.dtype is array.dtype else found.view(array.dtype)  # bfloat16 has no name in the interface
