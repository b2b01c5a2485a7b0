"""Shard files written from runs of tensors: what any reader of safetensors finds in them."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import safetensors.numpy

from dps.checkpoint import MemoryStorage, TensorRun, read_header, read_tensor_rows, write_runs
from dps.checkpoint import shard as module
from dps.errors import CheckpointError

PATH = "f/shard-00000-of-00001.safetensors"


def test_the_tensors_of_a_run_are_read_by_the_safetensors_library() -> None:
    storage = MemoryStorage()
    values = np.arange(9, dtype=np.float32)
    runs = [
        TensorRun(["a", "n\u00fcll", 'c"\\'], [(2, 3), (0, 4), (3,)], values),
        TensorRun(["d"], [()], np.array([7], np.int64)),
        TensorRun([], [], np.zeros(0, np.float64)),
    ]
    file = write_runs(storage, "f", 0, 1, runs, {"by": "dps"})
    data = bytes(storage.read(PATH))
    loaded = safetensors.numpy.load(data)
    assert {name: array.tolist() for name, array in loaded.items()} == {
        "a": [[0, 1, 2], [3, 4, 5]], "n\u00fcll": [], 'c"\\': [6, 7, 8], "d": 7,
    }  # fmt: skip
    assert (file.nbytes, file.digest) == (len(data), hashlib.sha256(data).hexdigest())
    assert read_header(storage, PATH).metadata == {"by": "dps"}


def test_every_tensor_lies_at_a_multiple_of_its_item_size() -> None:
    storage = MemoryStorage()
    runs = [TensorRun([t], [(3,)], np.ones(3, t)) for t in ("uint8", "float16", "float64", "bool", "float32")]
    write_runs(storage, "f", 0, 1, runs, {})
    for name, entry in read_header(storage, PATH).tensors.items():
        assert entry.offset % np.dtype(name).itemsize == 0
        assert read_tensor_rows(storage, PATH, name, 0, 3).tolist() == [1, 1, 1]


def test_runs_of_many_pieces_come_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_NBYTES", 10)
    storage, values = MemoryStorage(), np.arange(100, dtype=np.int32)
    file = write_runs(storage, "f", 0, 1, [TensorRun(["w"], [(100,)], values)], {})
    assert file.digest == hashlib.sha256(bytes(storage.read(PATH))).hexdigest()
    assert read_tensor_rows(storage, PATH, "w", 0, 100).tolist() == list(range(100))


def test_tensors_that_cannot_be_told_apart_or_do_not_fit_are_refused() -> None:
    two = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="two tensors of a shard have one name"):
        write_runs(MemoryStorage(), "f", 0, 1, [TensorRun(["a"], [(2,)], two), TensorRun(["a"], [(2,)], two)], {})
    for names, shapes in ((["a"], [(3,)]), (["a", "b"], [(2,)]), (["a"], [(1,)])):
        with pytest.raises(ValueError, match="do not describe 2 items"):
            write_runs(MemoryStorage(), "f", 0, 1, [TensorRun(names, shapes, two)], {})
    with pytest.raises(CheckpointError, match="cannot be called __metadata__"):
        write_runs(MemoryStorage(), "f", 0, 1, [TensorRun(["__metadata__"], [(2,)], two)], {})


def test_a_header_that_no_reader_would_take_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    run = TensorRun(["w"], [(1,)], np.zeros(1, np.float32))
    line = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, separators=(",", ":"))
    padded = -(-len(line) // 8) * 8
    monkeypatch.setattr(module, "MAX_HEADER_NBYTES", padded)
    write_runs(MemoryStorage(), "f", 0, 1, [run], {})
    monkeypatch.setattr(module, "MAX_HEADER_NBYTES", padded - 1)
    with pytest.raises(CheckpointError, match=f"its header has {padded} bytes, safetensors allows {padded - 1}; use"):
        write_runs(MemoryStorage(), "f", 0, 1, [run], {})
