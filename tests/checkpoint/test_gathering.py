"""Rows of many variables, read together: as each alone, in few calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from dps.checkpoint import (
    Manifest,
    MemoryStorage,
    RowReader,
    SavedPart,
    SavedShard,
    SavedVariable,
    ShardFile,
    Storage,
    TensorRun,
    commit,
    folder_name,
    read_part,
    write_runs,
)
from dps.checkpoint import restore as gathering
from dps.errors import CheckpointError
from tests.checkpoint.damage import truncate

from .model import Model, write_unfinished
from .test_restore import cuts

COUNT, DIM = 300, 5
FILE = "shard-00000-of-00001.safetensors"


class Counting(MemoryStorage):
    """Keeps what was read of tensors: every range but the header's two."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[int, int]] = []

    def read_range(self, path: str, offset: int, n: int) -> bytes | memoryview:
        if offset > 8:
            self.ranges.append((offset, n))
        return super().read_range(path, offset, n)


def many(storage: Storage, in_order: bool = True) -> Manifest:
    """COUNT variables v0, v1, ... of DIM float32 with slot m: v<i> is all i, its slot -i. One shard."""
    folder = f"run/{folder_name(5, 1)}"
    values = np.repeat(np.arange(COUNT, dtype=np.float32), DIM)
    names = [f"v{i}" for i in range(COUNT)]
    if in_order:
        runs = [
            TensorRun(names, [(DIM,)] * COUNT, values),
            TensorRun([f"{name}@m" for name in names], [(DIM,)] * COUNT, -values),
        ]
        file = write_runs(storage, folder, 0, 1, runs, {})
    else:  # as the library writes it: by name, values and slots in turn
        tensors: dict[str, np.ndarray[Any, Any]] = {}
        for i, name in enumerate(names):
            tensors |= {name: values[i * DIM : (i + 1) * DIM], f"{name}@m": -values[i * DIM : (i + 1) * DIM]}
        data = safetensors.numpy.save(tensors)
        storage.write(f"{folder}/{FILE}", [data])
        file = ShardFile(FILE, len(data), "")
    adam: dict[str, Any] = {"name": "adam"}
    part = (SavedPart(0, 0, DIM, 0),)
    variables = tuple(SavedVariable(name, "float32", (DIM,), part, adam, ("m",)) for name in names)
    manifest = Manifest(5, 1, (SavedShard(file, 1),), variables)
    commit(storage, "run", manifest)
    return manifest


def gathered(storage: Storage, manifest: Manifest, slot: str | None = None) -> np.ndarray[Any, Any]:
    wanted = RowReader(storage, "run", manifest, slot, {})
    out = np.full(COUNT * DIM, np.nan, np.float32)
    for i, variable in enumerate(manifest.variables):
        assert wanted.add(variable, 0, DIM, i * DIM) == DIM
    for start, values in wanted.runs():
        out[start : start + len(values)] = values
    return out


@pytest.mark.parametrize("in_order", [True, False])
def test_what_lies_together_is_read_with_one_call(in_order: bool) -> None:
    storage = Counting()
    manifest = many(storage, in_order)
    expected = np.repeat(np.arange(COUNT), DIM)
    for slot, sign in ((None, 1), ("m", -1)):
        storage.ranges.clear()
        assert gathered(storage, manifest, slot).tolist() == (sign * expected).tolist()
        assert len(storage.ranges) == 1
        if in_order:
            assert storage.ranges[0][1] == COUNT * DIM * 4


def test_no_more_than_a_piece_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "PIECE_NBYTES", 1000)
    monkeypatch.setattr(gathering, "GAP_NBYTES", 0)
    for in_order in (True, False):
        storage = Counting()
        manifest = many(storage, in_order)
        assert gathered(storage, manifest).tolist() == np.repeat(np.arange(COUNT), DIM).tolist()
        assert max(n for _, n in storage.ranges) <= 1000
        assert sum(n for _, n in storage.ranges) == COUNT * DIM * 4  # and nothing that nobody wants


def test_a_file_that_was_cut_short_meanwhile_is_told() -> None:
    storage = MemoryStorage()
    manifest = many(storage)
    wanted = RowReader(storage, "run", manifest, None, {})
    for i, variable in enumerate(manifest.variables):
        wanted.add(variable, 0, DIM, i * DIM)
    truncate(storage, f"run/{manifest.name}/{FILE}", 20_000)
    with pytest.raises(CheckpointError, match="is cut short"):
        list(wanted.runs())


def test_what_the_manifest_names_and_no_shard_holds_is_told() -> None:
    manifest = many(MemoryStorage())
    storage = MemoryStorage()
    run = TensorRun(["v0"], [(DIM,)], np.zeros(DIM, np.float32))
    write_runs(storage, f"run/{manifest.name}", 0, 1, [run], {})
    wanted = RowReader(storage, "run", manifest, None, {})
    wanted.add(manifest.variables[0], 0, DIM, 0)
    with pytest.raises(CheckpointError, match="holds no tensor 'v1', which its manifest names"):
        wanted.add(manifest.variables[1], 0, DIM, DIM)
    with pytest.raises(CheckpointError, match="holds no slot 'v' of 'v0', it holds m; use the optimizer"):
        RowReader(storage, "run", manifest, "v", {}).add(manifest.variables[0], 0, DIM, 0)
    with pytest.raises(ValueError, match="'v0' has 5 rows; rows 3 to 6 were wanted"):
        wanted.add(manifest.variables[0], 3, 3, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.data(),
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["<f4", "<f8", "<f2", "|u1"])), min_size=1, max_size=4),
    st.sampled_from([(), (1,), (3, 2)]),
    st.integers(1, 3),
    st.booleans(),
)
def test_any_rows_of_any_variables_come_as_each_alone(
    data: st.DataObject, sizes: list[tuple[int, str]], row_shape: tuple[int, ...], shards: int, small: bool
) -> None:
    storage = MemoryStorage()
    model: dict[str, dict[str | None, Any]] = {}
    for i, (rows, dtype) in enumerate(sizes):
        count = rows * int(np.prod(row_shape))
        model[f"w{i}"] = {None: np.arange(100 * i, 100 * i + count).astype(dtype).reshape(rows, *row_shape)}
    typed: Model = model
    old = {name: data.draw(cuts(len(arrays[None]))) for name, arrays in model.items()}
    manifest = write_unfinished(storage, "run", typed, old, shards)
    commit(storage, "run", manifest)
    wanted, alone, start = RowReader(storage, "run", manifest, None, {}), [], 3
    for variable in data.draw(st.permutations(manifest.variables)):
        row0 = data.draw(st.integers(0, variable.rows))
        rows = data.draw(st.integers(0, variable.rows - row0))
        start += wanted.add(variable, row0, rows, start)
        alone.append(read_part(storage, "run", manifest, variable.name, row0, rows).reshape(-1).astype(np.float64))
    out = np.full(start, -1.0)
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(gathering, "PIECE_NBYTES", 24)
        for first, values in wanted.runs():
            out[first : first + len(values)] = values
    assert out.tolist() == [-1.0] * 3 + np.concatenate(alone).tolist()
