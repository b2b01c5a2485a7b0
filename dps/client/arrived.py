"""The values of a shard in the memory in which their pieces were received."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Mapping

import numpy as np

from dps.errors import ProtocolError
from dps.transport.wire import Array
from dps.variables.plan import ShardLayout


class Arrived:
    """Like `Taken`. `pieces`: bytes by their offset in the run; each piece begins and ends where parts do.

    Raises ProtocolError unless they cover the run, each byte once."""

    def __init__(self, layout: ShardLayout, pieces: Mapping[int, Array]) -> None:
        self._layout = layout
        self._starts = sorted(pieces)
        self._pieces = [_own(pieces[start]) for start in self._starts]
        self._check()

    def parts(self, still: bool = False) -> list[Array]:
        """As `Taken.parts`."""
        found = [
            self._between(start, stop).view(dtype).reshape(shape) for start, stop, dtype, shape in self._layout.spans
        ]
        for array in found:
            array.flags.writeable = not still
        return found

    def copied(self) -> Array:
        """A copy of the run."""
        run: Array = np.empty(self._layout.nbytes, np.uint8)
        for start, piece in zip(self._starts, self._pieces, strict=True):
            run[start : start + len(piece)] = piece
        return run

    def _between(self, start: int, stop: int) -> Array:
        """Bytes of the run in place; a copy if their memory is read-only."""
        if start == stop:
            return np.empty(0, np.uint8)
        number = bisect.bisect_right(self._starts, start) - 1
        found = self._pieces[number][start - self._starts[number] : stop - self._starts[number]]
        return found if found.flags.writeable else found.copy()

    def _check(self) -> None:
        """Raise ProtocolError unless the pieces cover the run, each byte once."""
        ends = {arena.offset: arena.offset + arena.nbytes for arena in self._layout.arenas if arena.nbytes}
        at = end = -1
        for start, piece in zip(self._starts, self._pieces, strict=True):
            if at == end:
                at, end = start, ends.pop(start, -1)
            if start != at or at + len(piece) > end:
                raise ProtocolError(f"bytes {start} to {start + len(piece)} of a shard overlap others or leave a gap")
            at += len(piece)
        if at != end or ends:
            raise ProtocolError(f"some of the {self._layout.data_nbytes} bytes of a shard's values have not arrived")


def _own(received: Array) -> Array:
    """The bytes of a message, writable if their memory is."""
    with contextlib.suppress(ValueError):
        received.flags.writeable = True
    return received
