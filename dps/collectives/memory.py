"""The memory of a group's operations: two runs for inputs and two for results, which peers on this machine can read.

Operations take them in turn. Each member brings something to each operation, and begins one when it has completed the
one before. So when an operation is complete, nobody of a generation reads any more what belonged to the one before it.
"""

from __future__ import annotations

import platform
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


class PeerMemory:
    """The memory of other members, as this one reads it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._attached: dict[tuple[Any, ...], Array] = {}

    def attach_memory(self, name: list[Any]) -> Array:
        """A peer's memory, by its name. Raises Unavailable if it cannot be read."""
        key = tuple(name)
        found = self._attached.get(key)
        if found is None:
            found = self._attached[key] = self._runtime.attach(name)
            same = [other for other in self._attached if other[:1] == key[:1]]
            for old in same[1:-8]:  # a process has a board, four runs, and those that it had before
                del self._attached[old]
        return found


PLACE_NBYTES = 256 << 10
"""The largest part."""
HEAD_NBYTES = 256
"""The header of a part: the number of the operation, and the length of its description; the description follows."""
TEXT = 16
BOARD_NBYTES = 2 * (HEAD_NBYTES + PLACE_NBYTES)
USABLE = platform.machine() in ("x86_64", "AMD64")


class BoardSlot:
    """One of the two places of a board, this member's own or a peer's."""

    def __init__(self, board: Array, which: int) -> None:
        first = which * (HEAD_NBYTES + PLACE_NBYTES)
        head = board[first : first + HEAD_NBYTES]
        self._numbers, self._text = head[:TEXT].view(np.int64), head[TEXT:]
        self._data = board[first + HEAD_NBYTES : first + HEAD_NBYTES + PLACE_NBYTES]

    def part_memory(self, nbytes: int) -> Array:
        """The memory to which a part is written."""
        return self._data[:nbytes]

    def publish_part(self, number: int, what: str) -> None:
        """Publish the part that was written, as that of this operation."""
        text = what.encode()[: self._text.size]
        self._text[: len(text)] = np.frombuffer(text, np.uint8)
        self._numbers[1] = len(text)
        self._numbers[0] = number

    def read_part(self, number: int, nbytes: int) -> tuple[str, Array] | None:
        """The description of an operation, and a copy of the part; None if they are not there yet."""
        if self._numbers[0] != number:
            return None
        what, data = bytes(self._text[: self._numbers[1]]).decode(errors="replace"), self._data[:nbytes].copy()
        return (what, data) if self._numbers[0] == number else None


class Board:
    """This member's board. `name` is [] if no memory can be shared."""

    def __init__(self, runtime: Runtime) -> None:
        self._region = Region(runtime, BOARD_NBYTES, USABLE)
        self.name = self._region.name
        self.places = [BoardSlot(self._region.array, which) for which in (0, 1)]
