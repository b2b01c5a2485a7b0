"""A shard file: everything that one ps holds, in the safetensors format, which other programs can read.

The layout (https://github.com/huggingface/safetensors#format): 8 bytes, little-endian, with the length of the
header; the header, JSON: `{name: {"dtype", "shape", "data_offsets": [begin, end]}}`; then the tensors' bytes, with
neither gaps nor overlaps. This module reads the header itself, and not by the library, because a restore reads some
rows of a tensor from any Storage, and because no file is trusted.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dps.checkpoint.files import MANIFEST_FILE, join, shard_file_name
from dps.checkpoint.storage import Storage
from dps.errors import CheckpointError
from dps.process.record import record

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64",
}  # fmt: skip
METADATA = "__metadata__"
MAX_HEADER_NBYTES = 100_000_000  # the library's own limit
_MAX_AXES = 32
_INT = {int}
_PIECE_NBYTES = 16 << 20

Array = npt.NDArray[Any]


@record
class ShardFile:
    """A written shard: its name in the checkpoint's folder, its size and its SHA-256 in hex (as sha256sum prints)."""

    file: str
    nbytes: int
    digest: str


class TensorEntry(NamedTuple):
    """A tensor's position in a shard file: dtype name, shape, first byte in the file, and size in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@record
class ShardHeader:
    """A shard file's table of contents, checked against the size of the file."""

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]


def read_header(storage: Storage, path: str) -> ShardHeader:
    """The table of contents of a shard file. Raises CheckpointError if it does not match the file."""
    size = storage.size(path)
    if size < 8:
        raise _broken(path, f"it has {size} bytes; a shard file has at least 8")
    nbytes = int.from_bytes(storage.read_range(path, 0, 8), "little")
    if nbytes > min(size - 8, MAX_HEADER_NBYTES):
        raise _broken(path, f"its header would have {nbytes} bytes, the file has {size}")
    try:
        header = json.loads(bytes(storage.read_range(path, 8, nbytes)), object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _broken(path, f"its header is a {type(header).__name__}, wanted an object")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken(path, "its metadata is not a map from text to text")
    entries = _entries(path, header, 8 + nbytes)
    _check_runs(path, entries, 8 + nbytes, size)
    return ShardHeader(entries, metadata)


def read_tensor_rows(
    storage: Storage, path: str, name: str, row0: int, rows: int, header: ShardHeader | None = None
) -> Array:
    """Rows `row0` to `row0 + rows` of a tensor, `(rows, ...)`; reads only their bytes. The caller owns the array.

    A scalar counts as one row and has shape `()`. Pass `header` if it was read before.
    Raises CheckpointError if the file is damaged, lacks the tensor, or the tensor lacks the rows.
    """
    if row0 < 0 or rows < 0:
        raise ValueError(f"{name}: got row0={row0}, rows={rows}, wanted 0 or more of each")
    entry = (header or read_header(storage, path)).tensors.get(name)
    if entry is None:
        raise _broken(path, f"it holds no tensor {name!r}")
    held = entry.shape[0] if entry.shape else 1
    if row0 + rows > held or (not entry.shape and rows != 1):
        raise _broken(path, f"rows {row0} to {row0 + rows} of {name!r} were wanted, it holds {held}")
    row_nbytes = entry.nbytes // held if held else 0
    data = storage.read_range(path, entry.offset + row0 * row_nbytes, rows * row_nbytes)
    values = np.frombuffer(data, dtype=numpy_dtype(entry.dtype).newbyteorder("<"))
    shape = (rows, *entry.shape[1:]) if entry.shape else ()
    values = values.astype(numpy_dtype(entry.dtype), copy=False).reshape(shape)
    return values if values.flags.writeable else values.copy()


def check_shard(storage: Storage, folder: str, shard: ShardFile, digest: bool = True) -> None:
    """Raise CheckpointError, with the reason, unless the file exists with its size and, if `digest`, its digest.

    The digest reads the whole file, in pieces of 16 MiB.
    """
    path = join(folder, shard.file)
    if not storage.exists(path):
        raise CheckpointError(f"{path} is missing")
    size = storage.size(path)
    if size != shard.nbytes:
        raise CheckpointError(f"{path} has {size} bytes; its manifest says {shard.nbytes}")
    if not digest:
        return
    running = hashlib.sha256()
    for offset in range(0, size, _PIECE_NBYTES):
        running.update(storage.read_range(path, offset, min(_PIECE_NBYTES, size - offset)))
    if running.hexdigest() != shard.digest:
        raise CheckpointError(f"{path} is altered: its SHA-256 is {running.hexdigest()}, wanted {shard.digest}")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of that name; bfloat16 is known if the package ml_dtypes is installed."""
    try:
        known: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)
    except (TypeError, ImportError) as error:
        raise CheckpointError(f"got dtype {name!r}, which is not known here; pip install 'dps[bfloat16]'") from error
    return known


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _entries(path: str, header: Mapping[str, Any], data0: int) -> dict[str, TensorEntry]:
    """The checked lines of a header; `data0` is where the tensors' bytes begin in the file."""
    known: dict[tuple[str, str], tuple[str, tuple[int, ...], int]] = {}
    found: dict[str, TensorEntry] = {}
    for name, value in header.items():
        if not isinstance(value, dict):
            raise _broken(path, f"the entry of {name!r} is not an object")
        dtype: Any = value.get("dtype")
        shape: Any = value.get("shape")
        offsets: Any = value.get("data_offsets")
        kind = str(dtype), str(shape)  # as texts, because 1, 1.0 and true are equal
        kept = known.get(kind)
        if kept is None:
            kept = known[kind] = _kind(path, name, dtype, shape)
        if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise _broken(path, f"{name!r} has data_offsets {str(offsets)[:80]}; wanted begin and end")
        nbytes = offsets[1] - offsets[0]
        if kept[2] != nbytes:
            raise _broken(path, f"{name!r} has shape {shape} of {dtype}, but {nbytes} bytes")
        found[name] = TensorEntry(kept[0], kept[1], data0 + offsets[0], nbytes)
    return found


def _kind(path: str, name: str, dtype: Any, shape: Any) -> tuple[str, tuple[int, ...], int]:
    """The dtype's name, the shape and the size in bytes of such tensors."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _broken(path, f"{name!r} has dtype {dtype!r}; wanted one of {', '.join(DTYPES)}")
    if not _are_sizes(shape) or len(shape) > _MAX_AXES:
        raise _broken(path, f"{name!r} has shape {str(shape)[:80]}; wanted up to {_MAX_AXES} sizes")
    itemsize = numpy_dtype(DTYPES[dtype]).itemsize
    if math.prod(size for size in shape if size) * itemsize >= 1 << 63:
        raise _broken(path, f"{name!r} has shape {str(shape)[:80]}, more than any memory holds")
    return DTYPES[dtype], tuple(shape), math.prod(shape) * itemsize


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= _INT and min(value, default=0) >= 0


def _check_runs(path: str, entries: Mapping[str, TensorEntry], data0: int, size: int) -> None:
    """Check that the tensors' bytes follow one another from the header to the end of the file."""
    end = data0
    if not _follow(entries.values(), end):
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
            if entry.offset != end:
                problem = "overlaps the one before" if entry.offset < end else "leaves a gap before it"
                raise _broken(path, f"{name!r} begins at byte {entry.offset} and {problem}, which ends at {end}")
            end += entry.nbytes
    end = data0 + sum(entry.nbytes for entry in entries.values())
    if end != size:
        raise _broken(path, f"its tensors end at byte {end}, the file has {size}")


def _follow(entries: Iterable[TensorEntry], end: int) -> bool:
    """Whether each entry begins where the previous one ends, in the given order. Most programs write them this way."""
    for entry in entries:
        if entry.offset != end:
            return False
        end += entry.nbytes
    return True


def _broken(path: str, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a whole shard file: {reason}; use an older checkpoint")


ALIGN = 8
"""Alignment of the tensors' bytes in the file, for programs that map it into memory."""
PIECE_NBYTES = 1 << 20
"""Bytes that are digested and written at a time, while they are in the caches."""
_CODES = {name: code for code, name in DTYPES.items()}


@record
class TensorRun:
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
    runs = [TensorRun([name], [values.shape], values) for name, values in tensors.items()]
    return write_runs(storage, folder, index, count, runs, metadata)


def write_runs(
    storage: Storage,
    folder: str,
    index: int,
    count: int,
    runs: Sequence[TensorRun],
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


def _check(run: TensorRun) -> None:
    if run.values.dtype.name not in _CODES:
        known = ", ".join(_CODES)
        name = run.names[0] if run.names else ""
        raise CheckpointError(f"{name!r} has dtype {run.values.dtype.name}; a checkpoint stores {known}: convert it")
    if sum(map(math.prod, run.shapes)) != run.values.size or len(run.names) != len(run.shapes):
        raise ValueError(f"{len(run.names)} names and {len(run.shapes)} shapes do not describe {run.values.size} items")


def _header(runs: Sequence[TensorRun], metadata: Mapping[str, str]) -> bytes:
    names = list(itertools.chain.from_iterable(run.names for run in runs))
    if METADATA in names:
        raise CheckpointError(f"a variable cannot be called {METADATA}; choose another name")
    if len(set(names)) != len(names):
        raise ValueError("two tensors of a shard have one name")
    # No empty metadata: some readers refuse it.
    entries = [f'"{METADATA}":{json.dumps(dict(metadata))}'] if metadata else []
    end = 0
    for run in runs:
        end = _write_entries(run, end, entries)
    text = f"{{{','.join(entries)}}}".encode()
    text += b" " * (-len(text) % ALIGN)
    if len(text) > MAX_HEADER_NBYTES:
        raise CheckpointError(
            f"a shard of {len(names)} tensors cannot be stored: its header has {len(text)} bytes, safetensors allows "
            f"{MAX_HEADER_NBYTES}; use more ps tasks"
        )
    return len(text).to_bytes(8, "little") + text


def _write_entries(run: TensorRun, begin: int, entries: list[str]) -> int:
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


def _chunks(header: bytes, runs: Sequence[TensorRun], running: Any) -> Iterator[bytes | memoryview]:
    running.update(header)
    yield header
    for run in runs:
        values = np.asarray(run.values, dtype=run.values.dtype.newbyteorder("<"), order="C")
        data = values.reshape(-1).view(np.uint8).data
        for at in range(0, len(data), PIECE_NBYTES):
            piece = data[at : at + PIECE_NBYTES]
            running.update(piece)
            yield piece
