"""The parts of a shard as one run of bytes: how a ps orders them, and how runs are cut into pieces and arrays."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dps.errors import ProtocolError
from dps.process.record import record
from dps.transport.wire import Array
from dps.variables.columns import Part, PerObject, VariableSpec, as_json
from dps.variables.tables import TablePart

ALIGN = 64
ITEM = 8
"""Bytes of the largest elements."""


@record
class Arena:
    """Parts of one dtype, optimizer and device, one after the other: `size` elements from byte `offset` of the run."""

    dtype: str
    optimizer: dict[str, Any] | None
    sparse: bool
    offset: int
    size: int
    parts: tuple[Part, ...]
    starts: tuple[int, ...]
    """First element of each part."""
    device: str = ""
    """As `Part.device`."""

    @functools.cached_property
    def pick(self) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """A function that selects the items of the parts' variables from a sequence for all variables."""
        return picker([part.variable for part in self.parts])

    @functools.cached_property
    def cuts(self) -> list[tuple[slice, tuple[int, ...] | None]]:
        """The elements of each part, and its shape; None if that is one-dimensional."""
        cuts = map(slice, self.starts, (*self.starts[1:], self.size))
        shapes = [None if len(part.shape) == 1 else part.shape for part in self.parts]
        return list(zip(cuts, shapes, strict=True))

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(np.dtype(self.dtype).itemsize)

    @functools.cached_property
    def nbytes(self) -> int:
        return self.size * self.itemsize


def picker(places: list[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that selects the items at these positions from a sequence."""
    first = places[0] if places else 0
    if places == list(range(first, first + len(places))):
        return operator.itemgetter(slice(first, first + len(places)))
    return operator.itemgetter(*places)


LARGER, A_RUN, SHORTER = 4, 32, 16
"""A long run is sent in pieces up to LARGER times the usual size, or in A_RUN pieces. Each piece costs both ends some
0.1 ms besides its bytes; with very few pieces, sending and computing do not overlap. Where a connection is slow, pieces
are down to SHORTER times shorter."""


def piece_size(nbytes: int, smallest: int, soon: float) -> int:
    """The size of the pieces of a run of `nbytes`; `smallest` is the runtime's `piece_nbytes`. `soon`: what the
    connection carries within the runtime's `piece_s`."""
    usual = max(smallest, min(LARGER * smallest, nbytes // A_RUN // ALIGN * ALIGN))
    return int(min(usual, max(soon, smallest // SHORTER, ALIGN)))


Piece = list[tuple[int, int]]
"""Ranges of a run that one message brings: offset, bytes."""


def cut(ranges: Sequence[tuple[int, int]], nbytes: int, least: int = ITEM) -> list[Piece]:
    """Ranges (offset, bytes) in pieces of at most `nbytes`, in order. A range that is too long is cut at a multiple of
    8 bytes, if `least` bytes of it fit into the piece."""
    pieces: list[Piece] = [[]]
    room = most = max(nbytes, ITEM)
    for offset, left in ranges:
        while left:
            if left > room and room < max(least, ITEM) and pieces[-1]:
                pieces.append([])
                room = most
            n = left if left <= room else room // ITEM * ITEM
            pieces[-1].append((offset, n))
            offset, left, room = offset + n, left - n, room - n
    return pieces


@record
class ShardLayout:
    """The layout of one ps's run: its arenas, each at a multiple of 64 bytes. Fixed with the plan, once per epoch."""

    arenas: tuple[Arena, ...]
    nbytes: int
    tables: tuple[TablePart, ...] = ()
    """The parts of keyed tables on this ps, which are no part of its run."""

    @staticmethod
    def of(
        variables: Sequence[VariableSpec], here: Sequence[Part], tables: tuple[TablePart, ...] = ()
    ) -> ShardLayout:  # fmt: skip
        """`variables`: those of the plan; `here`: the parts on one ps, in the plan's order; `tables`: as the field."""
        groups: dict[tuple[str, str, int, str], list[Part]] = {}
        written = PerObject(as_json)
        for part in here:
            spec = variables[part.variable]
            own = part.index if spec.sparse else -1
            groups.setdefault((spec.dtype, written.of(spec.optimizer), own, part.device), []).append(part)
        arenas: list[Arena] = []
        offset = 0
        for parts in groups.values():
            spec = variables[parts[0].variable]
            starts, size = [], 0
            for part in parts:
                starts.append(size)
                size += part.size
            arena = Arena(
                spec.dtype, spec.optimizer, spec.sparse, offset, size, tuple(parts), tuple(starts), parts[0].device
            )
            arenas.append(arena)
            offset += -(-arena.nbytes // ALIGN) * ALIGN
        return ShardLayout(tuple(arenas), offset, tables)

    @functools.cached_property
    def place(self) -> dict[int, tuple[int, int]]:
        """For each part here, by its index: its arena's number and its first element there."""
        return {
            p.index: (a, start)
            for a, arena in enumerate(self.arenas)
            for p, start in zip(arena.parts, arena.starts, strict=True)
        }

    @functools.cached_property
    def data_nbytes(self) -> int:
        """Bytes of all arenas without the padding between them."""
        return sum(arena.nbytes for arena in self.arenas)

    @functools.cached_property
    def gradient_nbytes(self) -> int:
        """Bytes of the trained arenas, which a dense push sends."""
        return sum(arena.nbytes for arena in self.arenas if arena.optimizer is not None)

    @functools.cached_property
    def gradient_sizes(self) -> Array:
        """Bytes of each part that takes a gradient, in the order of the run."""
        trained = [arena for arena in self.arenas if arena.optimizer is not None]
        return np.array([part.size * np.dtype(a.dtype).itemsize for a in trained for part in a.parts], np.int64)

    @functools.cached_property
    def trained(self) -> tuple[Part, ...]:
        """The parts that take gradients, in the order of the run."""
        return tuple(part for arena in self.arenas if arena.optimizer is not None for part in arena.parts)

    @functools.cached_property
    def trained_variables(self) -> list[int]:
        """The variables of `trained`."""
        return [part.variable for part in self.trained]

    def pieces(self, piece_nbytes: int, trained_only: bool = False) -> list[Piece]:
        """The run cut into pieces for sending, each of at most `piece_nbytes`."""
        arenas = [arena for arena in self.arenas if arena.optimizer is not None or not trained_only]
        return cut([(arena.offset, arena.nbytes) for arena in arenas], piece_nbytes)

    @functools.cached_property
    def longest_part(self) -> int:
        """Bytes of the longest part."""
        return max((stop - start for start, stop, _, _ in self.spans), default=0)

    def is_whole(self, offset: int, nbytes: int) -> bool:
        """Whether a byte range of the run begins where a part begins, and ends where one ends."""
        starts, ends = self._edges
        return offset in starts and offset + nbytes in ends

    @functools.cached_property
    def _edges(self) -> tuple[frozenset[int], frozenset[int]]:
        return frozenset(start for start, *_ in self.spans), frozenset(stop for _, stop, *_ in self.spans)

    def whole_pieces(self, piece_nbytes: int) -> list[Piece]:
        """Like `pieces`, but no part is cut; a part of more than `piece_nbytes` is a piece of its own."""
        pieces: list[Piece] = [[]]
        room, begins = piece_nbytes, {arena.offset for arena in self.arenas}
        for start, stop in [(start, stop) for start, stop, _, _ in self.spans if start < stop]:
            if stop - start > room and pieces[-1]:
                pieces.append([])
                room = piece_nbytes
            if pieces[-1] and sum(pieces[-1][-1]) == start and start not in begins:
                pieces[-1][-1] = pieces[-1][-1][0], stop - pieces[-1][-1][0]
            else:
                pieces[-1].append((start, stop - start))
            room -= stop - start
        return pieces

    @functools.cached_property
    def spans(self) -> list[tuple[int, int, np.dtype[Any], tuple[int, ...]]]:
        """For each part: first and last byte in the run, dtype and shape."""
        found = []
        for arena in self.arenas:
            dtype = np.dtype(arena.dtype)
            for part, (cut, _) in zip(arena.parts, arena.cuts, strict=True):
                at, end = (arena.offset + n * arena.itemsize for n in (cut.start, cut.stop))
                found.append((at, end, dtype, part.shape))
        return found

    def flats(self, run: Array) -> list[Array]:
        """The arenas as flat arrays in a run of bytes."""
        return [run[start:stop].view(dtype) for start, stop, dtype in self._cuts]

    @functools.cached_property
    def _cuts(self) -> list[tuple[int, int, np.dtype[Any]]]:
        return [(a.offset, a.offset + a.nbytes, np.dtype(a.dtype)) for a in self.arenas]

    def views(self, run: Array) -> dict[int, Array]:
        """The parts as arrays in a run of bytes (uint8, `nbytes` long), by part index."""
        return dict(zip(self.indices, self.listed(self.memories(run)), strict=True))

    def memories(self, run: Array) -> list[Array]:
        """The bytes of each arena in a run."""
        return [run[start:stop] for start, stop, _ in self._cuts]

    def listed(self, memories: Sequence[Array]) -> list[Array]:
        """The parts as arrays in the memory of each arena, in the order of `indices`."""
        found: list[Array] = []
        for arena, memory in zip(self.arenas, memories, strict=True):
            flat = memory.view(arena.dtype)
            found += [flat[cut] if shape is None else flat[cut].reshape(shape) for cut, shape in arena.cuts]
        return found

    def view(self, run: Array, part: Part) -> Array:
        """One part as an array in a run of bytes."""
        number, start = self.place[part.index]
        return self.flats(run)[number][start : start + part.size].reshape(part.shape)

    @functools.cached_property
    def indices(self) -> list[int]:
        """The index of each part, in the order of the run."""
        return [part.index for arena in self.arenas for part in arena.parts]

    def check_range(self, offset: int, nbytes: int, trained_only: bool = False) -> tuple[int, int]:
        """The number of the (trained) arena that holds a byte range, and the first element there. Raises ProtocolError
        unless the range is within one arena, on element boundaries."""
        for number, arena in enumerate(self.arenas):
            if type(offset) is not int or (trained_only and arena.optimizer is None):
                continue
            at = offset - arena.offset
            if at >= 0 and at + nbytes <= arena.nbytes:
                if at % arena.itemsize or nbytes % arena.itemsize:
                    break
                return number, at // arena.itemsize
        raise ProtocolError(f"bytes {offset} to {offset + nbytes} are no piece of a run of {self.nbytes} bytes")
