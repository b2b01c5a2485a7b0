"""Row numbers as they travel: sorted, distinct, cut into parts, and found again when they come a second time."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from dps.transport.tuning import ORDINARY, RowListTuning
from dps.variables.plan import Part
from dps.variables.rowlists import RowLists, range_of, within
from dps.variables.tables import codes_of

KEPT, LEAST = ORDINARY.rows.kept, ORDINARY.rows.least

ASKED = st.lists(st.integers(0, 9), max_size=12).map(lambda rows: np.array(rows, np.int64))


def parts(*sizes: int) -> list[Part]:
    ends = np.cumsum(sizes).tolist()
    return [Part(i, 0, "t", (n, 2), end - n, 0) for i, (n, end) in enumerate(zip(sizes, ends, strict=True))]


def part_of(rows: np.ndarray, part: Part) -> np.ndarray:
    first, last = range_of(part, rows)
    return within(part, rows[first:last])


@settings(max_examples=200)
@given(ASKED, st.sampled_from([(10,), (3, 7), (1, 8, 1)]))
def test_rows_that_come_part_by_part_are_put_in_the_callers_order(asked: np.ndarray, sizes: tuple[int, ...]) -> None:
    table = np.arange(20.0).reshape(10, 2)
    sent, which = RowLists(RowListTuning(least=1)).of(asked).to_read(len(sizes))
    came = [table[part.row0 : part.row0 + part.shape[0]][part_of(sent, part)] for part in parts(*sizes)]
    rows = np.concatenate(came)
    np.testing.assert_array_equal(rows if which is None else rows[which], table[asked])
    assert len(rows) == len(set(asked.tolist()))


@settings(max_examples=200)
@given(ASKED, st.sampled_from([(10,), (3, 7), (1, 8, 1)]))
def test_values_go_with_their_rows_and_equal_rows_in_the_order_in_which_they_came(
    asked: np.ndarray, sizes: tuple[int, ...]
) -> None:
    values = np.stack([asked, np.arange(len(asked))], axis=1).astype(np.float64)
    wanted = list(zip(asked.tolist(), range(len(asked)), strict=True))
    if len(sizes) > 1 or len(set(asked.tolist())) == len(asked):
        wanted.sort()  # else the ps does it
    got = []
    for part in parts(*sizes):
        gradient = RowLists(RowListTuning(least=1)).of(asked).of_part(part, values, len(sizes))
        out = np.empty((gradient.last - gradient.first, 2))
        gradient.fill(out)
        assert (gradient.numbers + part.row0).tolist() == out[:, 0].tolist()
        got += [(int(row), int(position)) for row, position in out]
    assert got == wanted


def test_row_numbers_beyond_what_fits_beside_a_position_are_sorted_all_the_same() -> None:
    asked = np.array([(1 << 62) + i % 7 for i in range(LEAST)])
    found = RowLists().of(asked)
    assert found.ends() == (1 << 62, (1 << 62) + 6)
    sent, which = found.to_read(2)
    assert sent.tolist() == [(1 << 62) + i for i in range(7)] and which is not None
    assert which.tolist() == [i % 7 for i in range(LEAST)]


def test_a_list_is_found_again_by_what_it_holds() -> None:
    lists, asked = RowLists(), np.arange(LEAST)
    first = lists.of(asked)
    assert lists.of(asked.copy()) is first
    asked[10] = 9
    assert lists.of(asked) is not first and first.asked[10] == 10


def test_only_the_last_lists_are_remembered_and_short_ones_never() -> None:
    lists = RowLists()
    made = [lists.of(np.arange(i, i + LEAST)) for i in range(KEPT + 1)]
    assert lists.of(np.arange(KEPT, KEPT + LEAST)) is made[-1]
    assert lists.of(np.arange(LEAST)) is not made[0]
    short = np.arange(LEAST - 1)
    assert lists.of(short) is not lists.of(short)


def test_a_short_list_goes_as_it_is_to_the_only_part() -> None:
    asked, (part,) = np.array([5, 1, 5]), parts(10)
    found = RowLists().of(asked)
    sent, which = found.to_read(1)
    gradient = found.of_part(part, np.ones((3, 2)), 1)
    assert (sent.tolist(), which, found.ends()) == ([5, 1, 5], None, (1, 5))
    assert gradient.numbers.tolist() == [5, 1, 5] and gradient.order is None
    assert RowLists().of(np.empty(0, np.int64)).ends() == (0, -1)


def test_row_numbers_are_sent_in_the_fewest_bytes_that_hold_those_of_their_part() -> None:
    rows = np.array([0, 5, (1 << 31) + 7])
    small, large = Part(0, 0, "t", (1 << 31, 2), 0, 0), Part(1, 0, "t", (1 << 32, 2), 0, 0)
    assert within(small, rows[:2]).dtype == np.int32 and within(small, rows[:2]).tolist() == [0, 5]
    assert within(large, rows).dtype == np.int64 and within(large, rows).tolist() == rows.tolist()


def test_keys_have_the_list_of_their_codes_beside_that_of_the_same_row_numbers() -> None:
    lists, keys = RowLists(), np.arange(LEAST) - 3
    rows, codes = lists.of(keys), lists.of_keys(keys)
    assert np.array_equal(rows.asked, keys) and np.array_equal(codes.asked, codes_of(keys))
    assert lists.of_keys(keys.copy()) is codes and lists.of(keys) is rows
    keys[10] = 77
    assert np.array_equal(lists.of_keys(keys).asked, codes_of(keys)) and codes.asked[10] == codes_of(np.array([7]))[0]
    assert np.array_equal(lists.of_keys(keys[::-40]).asked, codes_of(keys)[::-40])
