"""A small model cut into parts over shards, written as the ps tasks and the chief of a cluster would."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dps.checkpoint import (
    Manifest,
    SavedPart,
    SavedShard,
    SavedVariable,
    Storage,
    commit,
    folder_name,
    read_part,
    write_shard,
)

Array = np.ndarray[Any, Any]
Model = Mapping[str, Mapping[str | None, Array]]
"""Variable name -> None for the values, or a slot name -> array."""


def small_model(seed: float = 0.0) -> dict[str, dict[str | None, Array]]:
    """A table of 7 rows with an Adagrad slot, and a scalar."""
    table = np.arange(14, dtype=np.float32).reshape(7, 2) + np.float32(seed)
    return {"table": {None: table, "a": table * 10}, "bias": {None: np.array(seed + 0.5, dtype=np.float64)}}


def write_unfinished(
    storage: Storage,
    directory: str,
    model: Model,
    cuts: Mapping[str, Sequence[int]],
    shards: int,
    step: int = 120,
    epoch: int = 3,
) -> Manifest:
    """Write all shard files but no manifest. `cuts` gives the rows of each part; parts go round the shards."""
    tensors: list[dict[str, Array]] = [{} for _ in range(shards)]
    turn = itertools.count()
    variables = []
    for name, arrays in model.items():
        values = arrays[None]
        parts, row0 = [], 0
        rows_of_parts = cuts.get(name, [values.shape[0] if values.shape else 1])
        for index, rows in enumerate(rows_of_parts):
            part = SavedPart(index, row0, rows, next(turn) % shards, t=100 + index)
            for slot, array in arrays.items():
                stored = name if len(rows_of_parts) == 1 else f"{name}/part_{index}"
                stored = stored if slot is None else f"{stored}@{slot}"
                tensors[part.shard][stored] = array[row0 : row0 + rows] if array.shape else array
            parts.append(part)
            row0 += rows
        slots = tuple(slot for slot in arrays if slot is not None)
        optimizer = {"name": "Adagrad", "learning_rate": 0.1} if slots else None
        variables.append(SavedVariable(name, values.dtype.name, values.shape, tuple(parts), optimizer, slots))
    folder = f"{directory}/{folder_name(step, epoch)}"
    files = [write_shard(storage, folder, i, shards, tensors[i], {"shard": str(i)}) for i in range(shards)]
    saved = tuple(SavedShard(file, version=40 + i) for i, file in enumerate(files))
    return Manifest(step, epoch, saved, tuple(variables), {"update": "async"})


def save(
    storage: Storage,
    directory: str,
    step: int = 120,
    epoch: int = 3,
    seed: float = 0.0,
    parts: Sequence[int] = (3, 2, 2),
) -> Manifest:
    """Write and commit the small model on two ps tasks."""
    manifest = write_unfinished(storage, directory, small_model(seed), {"table": parts}, 2, step, epoch)
    commit(storage, directory, manifest)
    return manifest


def read_back(storage: Storage, directory: str, manifest: Manifest) -> dict[str, dict[str | None, Array]]:
    """Every variable whole, with its slots."""
    return {
        variable.name: {
            slot: read_part(storage, directory, manifest, variable.name, 0, variable.rows, slot)
            for slot in (None, *variable.slots)
        }
        for variable in manifest.variables
    }
