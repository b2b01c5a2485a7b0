from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps.checkpoint import MemoryStorage, SavedPart, ShardHeader, commit, part_t, read_part, write_shard
from dps.errors import CheckpointError

from .model import Array, Model, read_back, save, small_model, write_unfinished

TABLE = small_model()["table"]


def test_three_parts_become_two_and_then_one() -> None:
    storage = MemoryStorage()
    manifest = save(storage, "run", parts=(3, 2, 2))
    two = {
        "w0": read_part(storage, "run", manifest, "table", 0, 4),
        "w1": read_part(storage, "run", manifest, "table", 4, 3),
    }
    np.testing.assert_array_equal(two["w0"], [[0, 1], [2, 3], [4, 5], [6, 7]])
    np.testing.assert_array_equal(two["w1"], [[8, 9], [10, 11], [12, 13]])

    manifest = save(storage, "run", step=130, parts=(4, 3))
    np.testing.assert_array_equal(read_part(storage, "run", manifest, "table", 0, 7), TABLE[None])
    manifest = save(storage, "run", step=140, parts=(7,))
    np.testing.assert_array_equal(read_part(storage, "run", manifest, "table", 2, 3), [[4, 5], [6, 7], [8, 9]])


def test_slots_are_cut_as_their_variable() -> None:
    storage = MemoryStorage()
    manifest = save(storage, "run", parts=(3, 2, 2))
    slot = read_part(storage, "run", manifest, "table", 2, 4, slot="a")
    np.testing.assert_array_equal(slot, [[40, 50], [60, 70], [80, 90], [100, 110]])


def test_a_scalar_comes_back_with_shape_nothing() -> None:
    storage = MemoryStorage()
    manifest = save(storage, "run")
    value = read_part(storage, "run", manifest, "bias", 0, 1)
    assert value.shape == () and value.dtype == np.float64 and value == 0.5
    with pytest.raises(ValueError, match="'bias' is a scalar"):
        read_part(storage, "run", manifest, "bias", 0, 0)


def test_no_rows_come_back_with_dtype_and_shape() -> None:
    storage = MemoryStorage()
    manifest = save(storage, "run")
    nothing = read_part(storage, "run", manifest, "table", 7, 0)
    assert nothing.shape == (0, 2) and nothing.dtype == np.float32


def test_a_variable_without_rows_comes_back() -> None:
    storage = MemoryStorage()
    empty: Model = {"empty": {None: np.zeros((0, 3), np.int32)}}
    manifest = write_unfinished(storage, "run", empty, {}, 1)
    commit(storage, "run", manifest)
    assert read_part(storage, "run", manifest, "empty", 0, 0).shape == (0, 3)


def test_the_rows_belong_to_the_caller() -> None:
    storage = MemoryStorage()
    manifest = save(storage, "run")
    for rows in (2, 7):
        read_part(storage, "run", manifest, "table", 0, rows)[:] = -1
    np.testing.assert_array_equal(read_back(storage, "run", manifest)["table"][None], TABLE[None])


@pytest.mark.parametrize(("row0", "rows"), [(-1, 2), (0, 8), (7, 1), (3, -1)])
def test_rows_that_the_variable_has_not_are_a_value_error(row0: int, rows: int) -> None:
    storage = MemoryStorage()
    manifest = save(storage, "run")
    with pytest.raises(ValueError, match="'table' has 7 rows"):
        read_part(storage, "run", manifest, "table", row0, rows)
    with pytest.raises(ValueError, match="'table' has 7 rows"):
        part_t(manifest, "table", row0, rows)


def test_what_was_not_saved_is_told_with_what_was() -> None:
    storage = MemoryStorage()
    manifest = save(storage, "run")
    with pytest.raises(CheckpointError, match="no variable 'tabel', it holds table, bias"):
        read_part(storage, "run", manifest, "tabel", 0, 1)
    with pytest.raises(CheckpointError, match="no slot 'm' of 'table', it holds a; use the optimizer that was saved"):
        read_part(storage, "run", manifest, "table", 0, 1, slot="m")
    with pytest.raises(CheckpointError, match="no slot 'm' of 'bias', it holds none"):
        read_part(storage, "run", manifest, "bias", 0, 1, slot="m")


def test_each_shard_s_header_is_read_once_when_the_dict_is_kept() -> None:
    class Counting(MemoryStorage):
        def size(self, path: str) -> int:
            sizes.append(path)
            return super().size(path)

    sizes: list[str] = []
    storage = Counting()
    manifest = save(storage, "run")
    headers: dict[str, ShardHeader] = {}
    sizes.clear()
    for row in range(7):
        for slot in (None, "a"):
            read_part(storage, "run", manifest, "table", row, 1, slot, headers)
    assert sorted(sizes) == [f"run/{manifest.name}/shard-0000{i}-of-00002.safetensors" for i in range(2)]


def test_t_is_the_highest_of_the_parts_that_overlap() -> None:
    manifest = save(MemoryStorage(), "run", parts=(3, 2, 2))
    table = replace(
        manifest.variables[0],
        parts=(SavedPart(0, 0, 3, 0, t=10), SavedPart(1, 3, 2, 1, t=30), SavedPart(2, 5, 2, 0, t=20)),
    )
    manifest = replace(manifest, variables=(table, manifest.variables[1]))
    assert [part_t(manifest, "table", *rows) for rows in [(0, 3), (0, 4), (3, 2), (5, 2), (4, 3), (0, 7)]] == [
        10, 30, 30, 20, 30, 30,
    ]  # fmt: skip
    assert part_t(manifest, "bias", 0, 1) == 100


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "holds no tensor 'bias'"),
        ({"bias": np.zeros(1)}, r"holds 'bias' as float64 \(1,\); its manifest says float64 \(\)"),
        ({"bias": np.array(1, np.float32)}, r"holds 'bias' as float32 \(\); its manifest says float64 \(\)"),
    ],
)
def test_a_shard_that_does_not_hold_what_the_manifest_says_is_told(tensors: dict[str, Array], reason: str) -> None:
    storage = MemoryStorage()
    manifest = write_unfinished(storage, "run", {"bias": small_model()["bias"]}, {}, 1)
    write_shard(storage, f"run/{manifest.name}", 0, 1, tensors, {})
    with pytest.raises(CheckpointError, match=reason):
        read_part(storage, "run", manifest, "bias", 0, 1)


@st.composite
def cuts(draw: st.DrawFn, rows: int) -> list[int]:
    """Rows of each part: any composition of `rows`, parts without rows included."""
    bounds = sorted(draw(st.lists(st.integers(0, rows), max_size=6)))
    return [end - start for start, end in zip([0, *bounds], [*bounds, rows], strict=True)]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(0, 20), st.sampled_from([(), (1,), (3, 2)]), st.integers(1, 4))
def test_any_cut_over_any_shards_restores_into_any_other(
    data: st.DataObject, rows: int, row_shape: tuple[int, ...], shards: int
) -> None:
    values = np.arange(rows * int(np.prod(row_shape)), dtype=np.int64).reshape(rows, *row_shape)
    storage = MemoryStorage()
    old = data.draw(cuts(rows))
    manifest = write_unfinished(storage, "run", {"w": {None: values, "m": -values}}, {"w": old}, shards)
    commit(storage, "run", manifest)
    row0 = 0
    for n in data.draw(cuts(rows)):
        np.testing.assert_array_equal(read_part(storage, "run", manifest, "w", row0, n), values[row0 : row0 + n])
        np.testing.assert_array_equal(read_part(storage, "run", manifest, "w", row0, n, "m"), -values[row0 : row0 + n])
        row0 += n
