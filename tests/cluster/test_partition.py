from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from dps.cluster.partition import Fixed, MaxSize, MinSize, Partitioner, RowRange, cut, num_parts, split_rows
from dps.errors import PlacementError


def test_thirteen_rows_over_five_shards_are_three_three_three_two_two() -> None:
    assert split_rows(13, 5) == [3, 3, 3, 2, 2]
    assert split_rows(10, 5) == [2, 2, 2, 2, 2]
    assert split_rows(2, 3) == [1, 1, 0]
    assert split_rows(7, 1) == [7]


@pytest.mark.parametrize(("rows", "shards"), [(-1, 2), (3, 0), (3, -1)])
def test_rows_cannot_be_split_over_nothing(rows: int, shards: int) -> None:
    with pytest.raises(ValueError, match="wanted rows from 0 and shards from 1"):
        split_rows(rows, shards)


@given(st.integers(0, 10**9), st.integers(1, 500))
def test_split_rows_sums_to_the_rows_and_differs_by_at_most_one(rows: int, shards: int) -> None:
    split = split_rows(rows, shards)
    assert len(split) == shards
    assert sum(split) == rows
    assert split == sorted(split, reverse=True)
    assert split[0] - split[-1] <= 1


def test_fixed_never_makes_more_parts_than_rows() -> None:
    assert [Fixed(5)((rows, 2), "float32") for rows in (13, 5, 3, 1, 0)] == [5, 5, 3, 1, 1]
    assert Fixed(5)((), "float32") == 1


@pytest.mark.parametrize(
    ("partitioner", "shape", "dtype", "shards"),
    [
        (MinSize(), (1 << 20,), "float32", 1),  # max_shards is 1 unless said
        (MinSize(max_shards=10), (1 << 16,), "float32", 1),  # 256 KiB over 256 KiB
        (MinSize(max_shards=10), ((1 << 16) + 1,), "float32", 2),  # four bytes more round up
        (MinSize(max_shards=10), (1 << 20,), "float32", 10),  # 16 wanted, 10 allowed
        (MinSize(max_shards=32), (3, 1 << 20), "float32", 3),  # 48 wanted, 3 rows
        (MinSize(max_shards=10), (8, 8), "float64", 1),
        (MinSize(min_bytes=100, max_shards=10), (20,), "string", 4),  # 320 bytes
        (MinSize(min_bytes=4, max_shards=3), (), "float32", 1),
        (MinSize(min_bytes=4, max_shards=3), (0, 4), "float32", 1),
    ],
)
def test_min_size_by_hand(partitioner: MinSize, shape: tuple[int, ...], dtype: str, shards: int) -> None:
    assert partitioner(shape, dtype) == shards


@pytest.mark.parametrize(
    ("partitioner", "shape", "dtype", "shards"),
    [
        (MaxSize(40), (10, 2), "float32", 2),  # 8 bytes a row, 5 rows a part
        (MaxSize(39), (10, 2), "float32", 3),  # 4 rows a part
        (MaxSize(80), (10, 2), "float32", 1),
        (MaxSize(1), (10, 2), "float32", 10),  # a part has at least one row
        (MaxSize(1, max_shards=4), (10, 2), "float32", 4),
        (MaxSize(32), (10,), "string", 5),  # 16 bytes a row
        (MaxSize(4), (), "float32", 1),
        (MaxSize(4), (0, 2), "float32", 1),
        (MaxSize(4), (5, 0), "float32", 1),
    ],
)
def test_max_size_by_hand(partitioner: MaxSize, shape: tuple[int, ...], dtype: str, shards: int) -> None:
    assert partitioner(shape, dtype) == shards


@given(st.integers(0, 300), st.integers(0, 50), st.integers(1, 5000), st.none() | st.integers(1, 9))
def test_max_size_keeps_every_part_within_its_bytes_or_at_one_row(
    rows: int, columns: int, max_bytes: int, max_shards: int | None
) -> None:
    shards = MaxSize(max_bytes, max_shards)((rows, columns), "float32")
    assert 1 <= shards <= max(1, rows)
    largest = split_rows(rows, shards)[0]
    if max_shards is None:
        assert largest <= 1 or largest * columns * 4 <= max_bytes
    else:
        assert shards <= max_shards


@given(st.integers(0, 300), st.integers(0, 50), st.integers(1, 5000), st.integers(1, 9))
def test_min_size_keeps_the_mean_part_above_its_bytes(rows: int, columns: int, min_bytes: int, most: int) -> None:
    shards = MinSize(min_bytes, most)((rows, columns), "float32")
    assert 1 <= shards <= min(most, max(1, rows))
    assert (shards - 1) * min_bytes < max(1, rows * columns * 4)
    if shards < min(most, rows):
        assert shards == max(1, math.ceil(rows * columns * 4 / min_bytes))


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, None])
def test_partitioners_refuse_sizes_that_are_no_count(wrong: object) -> None:
    for make in (Fixed, MinSize, lambda n: MinSize(max_shards=n), MaxSize):
        with pytest.raises(ValueError, match="wanted a whole number from 1"):
            make(wrong)  # type: ignore[arg-type]
    if wrong is not None:
        with pytest.raises(ValueError, match="max_shards"):
            MaxSize(10, max_shards=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [0, -1, 4, 2.0, "2", None, True])
def test_a_partitioner_that_answers_nonsense_is_refused(answer: object) -> None:
    def partitioner(shape: Sequence[int], dtype: DTypeLike) -> int:
        return answer  # type: ignore[return-value]

    with pytest.raises(PlacementError, match=r"partition of 'w', shape \(3, 2\): got .*parts from 1 to 3"):
        num_parts(partitioner, "w", (3, 2), "float32")


def test_a_scalar_cannot_be_cut() -> None:
    with pytest.raises(PlacementError, match="from 1 to 1"):
        cut("step", (), "int64", lambda shape, dtype: 2)


def test_parts_are_named_by_number_and_lie_one_after_the_other() -> None:
    assert cut("table", (13, 4), "float32", Fixed(5)) == (
        RowRange("table/part_0", 0, (3, 4)),
        RowRange("table/part_1", 3, (3, 4)),
        RowRange("table/part_2", 6, (3, 4)),
        RowRange("table/part_3", 9, (2, 4)),
        RowRange("table/part_4", 11, (2, 4)),
    )


@pytest.mark.parametrize("partitioner", [None, Fixed(1), MinSize()])
def test_one_shard_is_an_ordinary_variable(partitioner: Partitioner | None) -> None:
    assert cut("w", (13, 4), "float32", partitioner) == (RowRange("w", 0, (13, 4)),)
    assert cut("b", (), "float32", partitioner) == (RowRange("b", 0, ()),)
