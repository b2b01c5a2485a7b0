"""Writes a shard file: its header, then each tensor straight from memory, and computes the digest on the way.

The layout is that of `dps.checkpoint.shard`. The safetensors library takes one array for each tensor and returns all
bytes as one object. Here adjacent tensors are one array, which is not copied, so many small ones cost little.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dps.checkpoint.names import MANIFEST_FILE, join, shard_file_name
from dps.checkpoint.shard import DTYPES, MAX_HEADER_NBYTES, METADATA, ShardFile
from dps.checkpoint.storage import Storage
from dps.errors import CheckpointError

ALIGN = 8
"""Alignment of the tensors' bytes in the file, for programs that map it into memory."""
PIECE_NBYTES = 1 << 20
"""Bytes that are digested and written at a time, while they are in the caches."""
_CODES = {name: code for code, name in DTYPES.items()}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tensors of one dtype in `values`, with their names and shapes in order."""

    names: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    values: Array


def write_shard(
    storage: Storage,
    folder: str,
    index: int,
    count: int,
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str],
) -> ShardFile:
    """Write arrays (any shape, also scalars) as shard `index` of `count`; otherwise like `write_runs`."""
    runs = [Run([name], [values.shape], values) for name, values in tensors.items()]
    return write_runs(storage, folder, index, count, runs, metadata)


def write_runs(
    storage: Storage,
    folder: str,
    index: int,
    count: int,
    runs: Sequence[Run],
    metadata: Mapping[str, str],
) -> ShardFile:
    """Write shard `index` of `count` into the checkpoint folder `folder`.

    The arrays (the numeric dtypes of safetensors) may be reused on return. They are copied only if they are not
    contiguous or not little-endian. Blocks until the file is durable. Raises CheckpointError if the storage refuses, a
    dtype cannot be stored, or the folder's checkpoint is committed already: a committed checkpoint is never rewritten.
    """
    if not 0 <= index < count:
        raise ValueError(f"got the shard index {index}, wanted 0 to {count - 1}")
    if storage.exists(join(folder, MANIFEST_FILE)):
        raise CheckpointError(f"{folder} is a finished checkpoint and is not written again; save at a later step")
    file = shard_file_name(index, count)
    for run in runs:
        _check(run)
    ordered = sorted(runs, key=lambda run: -run.values.dtype.itemsize)  # so all are aligned to their item size
    running = hashlib.sha256()
    nbytes = storage.write(join(folder, file), _chunks(_header(ordered, metadata), ordered, running))
    return ShardFile(file, nbytes, running.hexdigest())


def _check(run: Run) -> None:
    if run.values.dtype.name not in _CODES:
        known = ", ".join(_CODES)
        name = run.names[0] if run.names else ""
        raise CheckpointError(f"{name!r} has dtype {run.values.dtype.name}; a checkpoint stores {known}: convert it")
    if sum(map(math.prod, run.shapes)) != run.values.size or len(run.names) != len(run.shapes):
        raise ValueError(f"{len(run.names)} names and {len(run.shapes)} shapes do not describe {run.values.size} items")


def _header(runs: Sequence[Run], metadata: Mapping[str, str]) -> bytes:
    names = list(itertools.chain.from_iterable(run.names for run in runs))
    if METADATA in names:
        raise CheckpointError(f"a variable cannot be called {METADATA}; choose another name")
    if len(set(names)) != len(names):
        raise ValueError("two tensors of a shard have one name")
    # No empty metadata: some readers refuse it.
    entries = [f'"{METADATA}":{json.dumps(dict(metadata))}'] if metadata else []
    end = 0
    for run in runs:
        end = _entries(run, end, entries)
    text = f"{{{','.join(entries)}}}".encode()
    text += b" " * (-len(text) % ALIGN)
    if len(text) > MAX_HEADER_NBYTES:
        raise CheckpointError(
            f"a shard of {len(names)} tensors cannot be stored: its header has {len(text)} bytes, safetensors allows "
            f"{MAX_HEADER_NBYTES}; use more ps tasks"
        )
    return len(text).to_bytes(8, "little") + text


def _entries(run: Run, begin: int, entries: list[str]) -> int:
    """Add a run's entries to the header. Its bytes begin at `begin`; returns where they end."""
    code, item, quoted = _CODES[run.values.dtype.name], run.values.dtype.itemsize, json.encoder.encode_basestring_ascii
    known: dict[tuple[int, ...], tuple[str, int]] = {}
    for name, shape in zip(run.names, run.shapes, strict=True):
        found = known.get(shape)
        if found is None:
            text = f':{{"dtype":"{code}","shape":{json.dumps(list(shape))},"data_offsets":['
            found = known[shape] = text, math.prod(shape) * item
        end = begin + found[1]
        entries.append(f"{quoted(name)}{found[0]}{begin},{end}]}}")
        begin = end
    return begin


def _chunks(header: bytes, runs: Sequence[Run], running: Any) -> Iterator[bytes | memoryview]:
    running.update(header)
    yield header
    for run in runs:
        values = np.asarray(run.values, dtype=run.values.dtype.newbyteorder("<"), order="C")
        data = values.reshape(-1).view(np.uint8).data
        for at in range(0, len(data), PIECE_NBYTES):
            piece = data[at : at + PIECE_NBYTES]
            running.update(piece)
            yield piece
