"""The memory of a group's operations: two runs for inputs and two for results, which peers on this machine can read.

Operations take them in turn. Each member brings something to each operation, and begins one when it has completed the
one before. So when an operation is complete, nobody of a generation reads any more what belonged to the one before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.errors import Unavailable
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array

GIVEN, RESULT = 0, 1
LEAST, ALIGN = 1 << 16, 64


class Region:
    """Bytes of this process. `name` is [] if no other process can read them."""

    def __init__(self, runtime: Runtime, nbytes: int, shared: bool) -> None:
        self.name: list[Any] = []
        self._memory: Any = None  # it is freed with this object
        if shared:
            try:
                self._memory = runtime.share(nbytes)
                self.array: Array = self._memory.array
                self.name = list(self._memory.name)
                return
            except Unavailable:
                pass
        self.array = np.empty(nbytes, np.uint8)


class Memories:
    """The runs of one member, each as long as the longest operation so far."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.shared = False
        """Whether some peer can read memory of this process."""
        self._regions: dict[tuple[int, int], Region] = {}

    def region(self, number: int, kind: int, nbytes: int) -> Region:
        """Memory for operation `number`: GIVEN or RESULT."""
        key = number % 2, kind
        found = self._regions.get(key)
        if found is None or found.array.size < nbytes or (self.shared and not found.name):
            size = -(-max(LEAST, nbytes + nbytes // 8) // ALIGN) * ALIGN
            found = self._regions[key] = Region(self._runtime, size, self.shared)
        return found

    def clear(self) -> None:
        """Use new memory from now on: members that were given up as lost may still read the old one, or be sent it."""
        self._regions.clear()


class Peers:
    """The memory of other members, as this one reads it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._attached: dict[tuple[Any, ...], Array] = {}

    def whole(self, name: list[Any]) -> Array:
        """A peer's memory, by its name. Raises Unavailable if it cannot be read."""
        key = tuple(name)
        found = self._attached.get(key)
        if found is None:
            found = self._attached[key] = self._runtime.attach(name)
            same = [other for other in self._attached if other[:1] == key[:1]]
            for old in same[1:-8]:  # a process has a board, four runs, and those that it had before
                del self._attached[old]
        return found
