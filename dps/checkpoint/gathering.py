"""Reads rows of very many variables from a checkpoint: adjacent bytes of a file in one read.

`read_part` reads one variable and takes one call to the storage; this module takes one call per 16 MiB or so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dps.checkpoint.manifest import Manifest, SavedVariable
from dps.checkpoint.names import join
from dps.checkpoint.restore import located
from dps.checkpoint.shard import Array, ShardHeader, numpy_dtype
from dps.checkpoint.storage import Storage

PIECE_NBYTES = 16 << 20
"""The most bytes that are read at a time."""
GAP_NBYTES = 1 << 16
"""Gaps of up to this many unwanted bytes are read along, because that takes less time than another call."""


@dataclass(slots=True)
class _Wanted:
    """Wanted byte ranges of one file in one dtype: first byte, size, and target element."""

    item: int
    offsets: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


class Gathering:
    """Reads rows of variables, or of a slot, for one flat array. First `add` all, then iterate over `runs`."""

    def __init__(
        self,
        storage: Storage,
        checkpoint_dir: str,
        manifest: Manifest,
        slot: str | None,
        headers: dict[str, ShardHeader],
    ) -> None:
        """`headers`: shared by all readers of this checkpoint, so that each shard's header is read once."""
        self._storage, self._folder, self._manifest = storage, join(checkpoint_dir, manifest.name), manifest
        self._slot, self._headers = slot, headers
        self._wanted: dict[tuple[str, str], _Wanted] = {}

    def add(self, variable: SavedVariable, row0: int, rows: int, start: int) -> int:
        """Rows `row0` to `row0 + rows` of a variable go to the elements from `start` on; returns their number.

        Raises as `read_part` does."""
        begin = start
        for path, _, entry, first, n in located(
            self._storage, self._folder, self._manifest, variable, row0, rows, self._slot, self._headers
        ):
            wanted = self._wanted.get((path, entry.dtype))
            if wanted is None:
                wanted = self._wanted[path, entry.dtype] = _Wanted(numpy_dtype(entry.dtype).itemsize)
            row_nbytes = entry.nbytes // entry.shape[0] if n and entry.shape else entry.nbytes
            wanted.offsets.append(entry.offset + first * row_nbytes)
            wanted.nbytes.append(n * row_nbytes)
            wanted.starts.append(begin)
            begin += n * row_nbytes // wanted.item
        return begin - start

    def runs(self) -> Iterator[tuple[int, Array]]:
        """Yields the first element and the flat values of each range. Raises CheckpointError if a file is too short.

        The values are valid until the next range is requested, and must not be changed."""
        for (path, dtype), wanted in self._wanted.items():
            native = numpy_dtype(dtype)
            for first, last, stretches in _reads(*_joined(wanted), wanted.item):
                data = self._storage.read_range(path, first, last - first)
                for offset, nbytes, start in stretches:
                    piece = data[offset - first : offset - first + nbytes]
                    values = np.frombuffer(piece, dtype=native.newbyteorder("<")).astype(native, copy=False)
                    yield start, values if values.flags.aligned else values.copy()


def _joined(wanted: _Wanted) -> tuple[list[int], list[int], list[int]]:
    """The ranges in file order, with those joined that are adjacent both in the file and in memory."""
    offsets, nbytes, starts = (np.array(column, np.int64) for column in (wanted.offsets, wanted.nbytes, wanted.starts))
    some = nbytes > 0
    order = np.argsort(offsets[some], kind="stable")
    offsets, nbytes, starts = offsets[some][order], nbytes[some][order], starts[some][order]
    if not len(offsets):
        return [], [], []
    breaks = (offsets[1:] != offsets[:-1] + nbytes[:-1]) | (starts[1:] != starts[:-1] + nbytes[:-1] // wanted.item)
    firsts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    return offsets[firsts].tolist(), np.add.reduceat(nbytes, firsts).tolist(), starts[firsts].tolist()


Stretch = tuple[int, int, int]
"""Offset in the file, bytes, first element."""


def _reads(
    offsets: list[int], nbytes: list[int], starts: list[int], item: int
) -> Iterator[tuple[int, int, list[Stretch]]]:
    """The reads to make: first byte, last byte, and the ranges within."""
    most = PIECE_NBYTES // item * item
    held: list[Stretch] = []
    first = end = 0
    for offset, n, start in zip(offsets, nbytes, starts, strict=True):
        for at in range(0, n, most):
            stretch = offset + at, min(most, n - at), start + at // item
            if held and (stretch[0] - end > GAP_NBYTES or stretch[0] + stretch[1] - first > PIECE_NBYTES):
                yield first, end, held
                held = []
            if not held:
                first = end = stretch[0]
            held.append(stretch)
            end = max(end, stretch[0] + stretch[1])
    if held:
        yield first, end, held
