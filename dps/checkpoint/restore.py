"""Reads rows of a variable from a checkpoint, however it was split into parts and shards."""

from __future__ import annotations

import numpy as np

from dps.checkpoint.manifest import Manifest, SavedPart, SavedVariable
from dps.checkpoint.names import join
from dps.checkpoint.shard import Array, ShardHeader, TensorEntry, read_header, read_tensor_rows
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
