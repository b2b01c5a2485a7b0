"""Boards in shared memory: members on one machine write small parts there and read each other's, without messages.

Each member has a board with two places that operations take in turn. It writes its part, then the operation's number;
the others look until the number is there. So a part is read only when it is whole, on processors that keep the order of
stores (x86). The number is looked at again afterwards: a member that was taken for lost may read what is not meant for
it any more.
"""

from __future__ import annotations

import platform

import numpy as np

from dps.collectives.memory import Region
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array

PLACE_NBYTES = 256 << 10
"""The largest part."""
HEAD_NBYTES = 256
"""The header of a part: the number of the operation, and the length of its description; the description follows."""
TEXT = 16
BOARD_NBYTES = 2 * (HEAD_NBYTES + PLACE_NBYTES)
USABLE = platform.machine() in ("x86_64", "AMD64")


class Place:
    """One of the two places of a board, this member's own or a peer's."""

    def __init__(self, board: Array, which: int) -> None:
        first = which * (HEAD_NBYTES + PLACE_NBYTES)
        head = board[first : first + HEAD_NBYTES]
        self._numbers, self._text = head[:TEXT].view(np.int64), head[TEXT:]
        self._data = board[first + HEAD_NBYTES : first + HEAD_NBYTES + PLACE_NBYTES]

    def room(self, nbytes: int) -> Array:
        """The memory to which a part is written."""
        return self._data[:nbytes]

    def show(self, number: int, what: str) -> None:
        """Publish the part that was written, as that of this operation."""
        text = what.encode()[: self._text.size]
        self._text[: len(text)] = np.frombuffer(text, np.uint8)
        self._numbers[1] = len(text)
        self._numbers[0] = number

    def look(self, number: int, nbytes: int) -> tuple[str, Array] | None:
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
        self.places = [Place(self._region.array, which) for which in (0, 1)]
