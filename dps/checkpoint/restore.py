"""Reads rows of a variable from a checkpoint, however it was split into parts and shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dps.checkpoint.files import join
from dps.checkpoint.manifest import Manifest, SavedPart, SavedVariable
from dps.checkpoint.shard import Array, ShardHeader, TensorEntry, numpy_dtype, read_header, read_tensor_rows
from dps.checkpoint.storage import Storage
from dps.errors import CheckpointError


def read_part(
    storage: Storage,
    checkpoint_dir: str,
    manifest: Manifest,
    variable_name: str,
    row0: int,
    rows: int,
    slot: str | None = None,
    headers: dict[str, ShardHeader] | None = None,
) -> Array:
    """Rows `row0` to `row0 + rows` of the whole variable, `(rows, ...)`, or of a slot. The caller owns the array.

    A slot with one element per row has shape `(rows,)`. A scalar is row 0 of 1 and has shape `()`. Only the bytes of
    these rows are read. Pass the same `headers` dict to many calls, and each shard's header is read once. Raises
    ValueError for rows that the variable does not have, and CheckpointError if variable or slot was not saved or a file
    does not match the manifest.
    """
    headers = {} if headers is None else headers
    pieces = [
        read_tensor_rows(storage, path, name, first, n, headers[path])
        for path, name, _, first, n in located(
            storage,
            join(checkpoint_dir, manifest.name),
            manifest,
            manifest.variable(variable_name),
            row0,
            rows,
            slot,
            headers,
        )
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def located(
    storage: Storage,
    folder: str,
    manifest: Manifest,
    variable: SavedVariable,
    row0: int,
    rows: int,
    slot: str | None,
    headers: dict[str, ShardHeader],
) -> list[tuple[str, str, TensorEntry, int, int]]:
    """Where these rows are in the checkpoint in `folder`: (path, tensor's name, its entry, first row in it, rows).

    Reads only the headers, and checks that they match the manifest. Raises as `read_part`.
    """
    _check_rows(variable, row0, rows)
    if slot is not None and slot not in variable.slots:
        saved = ", ".join(variable.slots) or "none"
        raise CheckpointError(
            f"checkpoint {manifest.name} holds no slot {slot!r} of {variable.name!r}, it holds {saved}; "
            "use the optimizer that was saved, or start its slots anew"
        )
    found = []
    for part, first, n in _overlaps(variable, row0, rows):
        path = join(folder, manifest.shards[part.shard].file.file)
        header = headers.get(path)
        if header is None:
            header = headers[path] = read_header(storage, path)
        name = variable.tensor(part, slot)
        found.append((path, name, _checked(path, header, variable, part, slot, name), first, n))
    return found


def part_t(manifest: Manifest, variable_name: str, row0: int, rows: int) -> int:
    """Optimizer steps applied to these rows: the maximum over the saved parts that hold them."""
    return applied_to(manifest.variable(variable_name), row0, rows)


def applied_to(variable: SavedVariable, row0: int, rows: int) -> int:
    """As `part_t`."""
    _check_rows(variable, row0, rows)
    return max([part.t for part, _, _ in _overlaps(variable, row0, rows)])


def _check_rows(variable: SavedVariable, row0: int, rows: int) -> None:
    held = variable.rows
    if row0 < 0 or rows < 0 or row0 + rows > held:
        raise ValueError(f"{variable.name!r} has {held} rows; rows {row0} to {row0 + rows} were wanted")
    if not variable.shape and rows != 1:
        raise ValueError(f"{variable.name!r} is a scalar, one row; {rows} were wanted")


def _overlaps(variable: SavedVariable, row0: int, rows: int) -> list[tuple[SavedPart, int, int]]:
    """The saved parts with some of these rows: (part, first row within it, rows). For zero rows, one part with 0."""
    parts = variable.parts
    if len(parts) == 1 or rows == 0:
        return [(parts[0], row0 if rows else 0, rows)]
    found = []
    for part in parts:
        first, end = max(row0, part.row0), min(row0 + rows, part.row0 + part.rows)
        if first < end:
            found.append((part, first - part.row0, end - first))
    return found


def _checked(
    path: str, header: ShardHeader, variable: SavedVariable, part: SavedPart, slot: str | None, name: str
) -> TensorEntry:
    """Check that a part's tensor has the part's shape, and its values the variable's dtype. A slot has its own dtype,
    and may have one element per row."""
    entry = header.tensors.get(name)
    shape = (part.rows, *variable.shape[1:]) if variable.shape else ()
    dtype = variable.dtype if slot is None else "any dtype"
    if entry is None:
        raise CheckpointError(f"{path} holds no tensor {name!r}, which its manifest names; use an older checkpoint")
    if (entry.shape != shape and (slot is None or entry.shape != shape[:1])) or (slot is None and entry.dtype != dtype):
        raise CheckpointError(
            f"{path} holds {name!r} as {entry.dtype} {entry.shape}; its manifest says {dtype} {shape}: "
            "use an older checkpoint"
        )
    return entry


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


class RowReader:
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
