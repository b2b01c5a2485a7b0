"""The values of a shard in the memory in which their pieces were received."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Mapping

import numpy as np

from dps.errors import ProtocolError
from dps.transport.wire import Array
from dps.variables.plan import ShardLayout


def arrived(layout: ShardLayout, pieces: Mapping[int, Array]) -> list[Array]:
    """The parts, in the order of the run. `pieces`: bytes by their offset in the run; each piece begins and ends where
    parts do.

    Raises ProtocolError unless they cover the run, each byte once."""
    starts = sorted(pieces)
    received = [_own(pieces[start]) for start in starts]
    _check(layout, starts, received)

    def between(start: int, stop: int) -> Array:
        """Bytes of the run in place; a copy if their memory is read-only."""
        if start == stop:
            return np.empty(0, np.uint8)
        number = bisect.bisect_right(starts, start) - 1
        found = received[number][start - starts[number] : stop - starts[number]]
        return found if found.flags.writeable else found.copy()

    return [between(start, stop).view(dtype).reshape(shape) for start, stop, dtype, shape in layout.spans]


def _check(layout: ShardLayout, starts: list[int], pieces: list[Array]) -> None:
    """Raise ProtocolError unless the pieces cover the run, each byte once."""
    ends = {arena.offset: arena.offset + arena.nbytes for arena in layout.arenas if arena.nbytes}
    at = end = -1
    for start, piece in zip(starts, pieces, strict=True):
        if at == end:
            at, end = start, ends.pop(start, -1)
        if start != at or at + len(piece) > end:
            raise ProtocolError(f"bytes {start} to {start + len(piece)} of a shard overlap others or leave a gap")
        at += len(piece)
    if at != end or ends:
        raise ProtocolError(f"some of the {layout.data_nbytes} bytes of a shard's values have not arrived")


def _own(received: Array) -> Array:
    """The bytes of a message, writable if their memory is."""
    with contextlib.suppress(ValueError):
        received.flags.writeable = True
    return received
