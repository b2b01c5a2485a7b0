"""The hash index of keyed tables, against a dict."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dps.kernels import index as kernels
from dps.ps.store import index as module
from dps.ps.store.index import KeyIndex

EDGES = [0, -1, (1 << 63) - 1, -(1 << 63), 1, 2]
KEYS = st.one_of(st.sampled_from(EDGES), st.integers(-300, 300), st.integers(-(1 << 63), (1 << 63) - 1))


def array(keys: Any) -> Any:
    return np.array(list(keys), np.int64)


class AgainstADict(RuleBasedStateMachine):
    """Keys are added, removed and looked for, while tables of few buckets grow a bucket at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, int] = {}
        self.next_row = 0

    @initialize(capacity=st.integers(1, 900), first=st.integers(1, 3), moved=st.integers(1, 3))
    def begin(self, capacity: int, first: int, moved: int) -> None:
        self.kept = module.FIRST, module.LEAST_MOVED
        module.FIRST, module.LEAST_MOVED = first, moved
        self.index = KeyIndex(capacity)

    def teardown(self) -> None:
        module.FIRST, module.LEAST_MOVED = getattr(self, "kept", (module.FIRST, module.LEAST_MOVED))

    @rule(keys=st.lists(KEYS, max_size=60, unique=True))
    def insert(self, keys: list[int]) -> None:
        new = [key for key in keys if key not in self.known]
        rows = np.arange(self.next_row, self.next_row + len(new))
        if len(self.known) + len(new) > self.index.capacity:
            with pytest.raises(ValueError, match=f"wanted at most {self.index.capacity} in all"):
                self.index.insert(array(new), rows)
            return
        self.index.insert(array(new), rows)
        self.known |= dict(zip(new, rows.tolist(), strict=True))
        self.next_row += len(new)

    @rule(start=st.integers(-(1 << 62), 1 << 62), n=st.integers(1, 200))
    def insert_many(self, start: int, n: int) -> None:
        self.insert([start + 7 * i for i in range(min(n, self.index.capacity - len(self.known)))])

    @precondition(lambda self: self.known)
    @rule(data=st.data(), others=st.lists(KEYS, max_size=5))
    def remove(self, data: Any, others: list[int]) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.known)), max_size=80, unique=True))
        keys = [*chosen, *(key for key in dict.fromkeys(others) if key not in self.known)]
        assert self.index.remove(array(keys)).tolist() == [self.known.get(key, -1) for key in keys]
        for key in chosen:
            del self.known[key]

    @rule(keys=st.lists(KEYS, min_size=1, max_size=12))
    def find(self, keys: list[int]) -> None:
        wanted = array(keys).reshape(-1, 1)
        assert self.index.find(wanted).tolist() == [[self.known.get(key, -1)] for key in keys]

    @invariant()
    def has_what_the_dict_has(self) -> None:
        if hasattr(self, "index"):
            assert self.index.count == len(self.known)
            assert self.index.find(array(self.known)).tolist() == list(self.known.values())


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)


def test_a_full_index_has_less_than_24_bytes_a_row() -> None:
    index, size = KeyIndex(100_000), 100_000
    keys = np.random.default_rng(1).permutation(np.arange(size, dtype=np.int64) * 977 - 31_000_000)
    for start in range(0, size, 1000):
        index.insert(keys[start : start + 1000], np.arange(start, start + 1000))
    assert np.array_equal(index.find(keys), np.arange(size))
    assert index._old is None and index.nbytes / size < 22
    assert np.array_equal(index.keys_by_row(size), keys)
    with pytest.raises(ValueError, match="1 keys do not fit beside 100000"):
        index.insert(array([5]), array([0]))
    assert np.array_equal(index.remove(keys), np.arange(size)) and index.count == 0
    assert (index.find(keys) == -1).all() and not rows_of(index._table).any()


def rows_of(table: Any) -> Any:
    return table.view(np.uint32)[:, kernels.ROWS : kernels.PASSED]


def test_a_bucket_is_a_cache_line() -> None:
    for buckets in (1, 3, 70_000):
        table = kernels.new_lines(buckets)
        assert table.shape == (buckets, 8) and table.ctypes.data % kernels.LINE == 0 and table.flags.c_contiguous


def test_keys_far_behind_their_home_are_found_until_they_are_removed() -> None:
    """So many keys of one home that they fill 61 buckets, over the end of the table; every fourth is removed."""
    index, buckets, keys = KeyIndex(2000), 70, list[int]()
    key = 0
    while len(keys) < 303:
        key += 1
        if kernels.home_of(np.int64(key), buckets) == 33:
            keys.append(key)
    index._table, index.count = kernels.new_lines(buckets), 303
    assert kernels.insert_keys(array(keys), np.arange(1, 304, dtype=np.uint32), index._table) == 303
    counts = index._table.view(np.uint32)[:, kernels.PASSED]
    assert counts[33] == 298 and counts[69] == 118 and counts[0] == 113 and counts[23] == 0
    assert index.remove(array(keys[::4])).tolist() == [*range(0, 303, 4)]
    left = [-1 if n % 4 == 0 else n for n in range(303)]
    assert index.find(array(keys)).tolist() == left and counts[33] == 298 - 74
    assert index.remove(array(keys)).tolist() == left
    assert not counts.any() and not rows_of(index._table).any()


def test_a_table_without_room_says_so_and_stays_as_it_was() -> None:
    table = kernels.new_lines(2)
    keys = np.arange(20, dtype=np.int64)
    assert kernels.insert_keys(keys, np.arange(1, 21, dtype=np.uint32), table) == 10
    found = np.full(20, -1, np.int64)
    assert kernels.find_rows(found, keys, table) == 10 and found.tolist() == [*range(10), *[-1] * 10]


def test_no_call_moves_more_than_it_has_to() -> None:
    """64 buckets, or as many as the room of the new table leaves time for."""
    index, moves = KeyIndex(200_000), list[int]()
    for start in range(0, 200_000, 10):
        before = index._moved if index._old is not None else None
        index.insert(np.arange(start, start + 10, dtype=np.int64), np.arange(start, start + 10))
        if index._old is not None and before is not None:
            moves.append(index._moved - before)
    assert max(moves) == module.LEAST_MOVED


def test_the_memory_of_a_table_is_touched_before_it_begins() -> None:
    index, touched, size = KeyIndex(400_000), list[float](), 0
    for start in range(0, 400_000, 500):
        before, size = index._touched, index._table.size
        index.insert(np.arange(start, start + 500, dtype=np.int64), np.arange(start, start + 500))
        if size > 20_000 and index._table.size > size:
            touched.append(before)
            assert index._next is None and index._old is not None
    assert len(touched) >= 4 and min(touched) > 0.95
    assert index._next is None and index._old is None
