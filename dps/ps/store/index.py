"""A hash index from int64 keys to row numbers that grows a piece at a time, for keyed tables."""

from __future__ import annotations

import math

import numpy as np

from dps.kernels import index as kernels
from dps.transport.wire import Array

LOAD = 0.85
"""The share of slots that are in use when a table begins to grow, and at capacity."""
FIRST = 64
"""The buckets of a new index."""
SOONER = 0.8
"""The share of a larger table's room after which all keys of the one before are moved."""
LEAST_MOVED = 64
"""How many buckets a call moves at least while a table grows."""

PAGE_NBYTES = 4096

Table = tuple[Array, Array, Array]
"""Keys (buckets, 8), rows (buckets, 8) and counts (buckets,); see `dps.kernels.index`."""


def _table(buckets: int) -> Table:
    """A table without keys, in memory that nobody has touched."""
    shape = buckets, kernels.WIDTH
    return np.zeros(shape, np.int64), np.zeros(shape, np.uint32), np.zeros(buckets, np.uint8)


class KeyIndex:
    """The row number of each key. One thread writes; the caller chooses row numbers, below 2**32 - 1."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: the most keys."""
        self.capacity, self.count = capacity, 0
        self._most_buckets = max(1, math.ceil(capacity / LOAD / kernels.WIDTH))
        self._table = _table(min(FIRST, self._most_buckets))
        self._old: Table | None = None
        """The table before this one, while it still has keys."""
        self._next: Table | None = None
        """The table after this one, from when this one is half full; without keys."""
        self._touched = 0.0
        """The share of its memory that was touched."""
        self._moved, self._rate = 0, 0.0
        """The buckets of the old table that are moved: the first ones; and how many are moved for each new key."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        tables = (self._table, self._old, self._next)
        return sum(array.nbytes for table in tables if table is not None for array in table)

    def find(self, keys: Array) -> Array:
        """The row of each key, int64 in the shape of `keys` (int64); -1 for a key that is not there."""
        wanted = np.ascontiguousarray(keys).reshape(-1)
        found = np.full(wanted.size, -1, np.int64)
        if kernels.find_rows(found, wanted, *self._table) and self._old is not None:
            kernels.find_rows(found, wanted, *self._old)
        return found.reshape(keys.shape)

    def insert(self, keys: Array, rows: Array) -> None:
        """Add keys, int64 (n,), that are neither there nor given twice, with these row numbers (n,). Raises ValueError,
        and adds none, if they are more than there is room for."""
        if self.count + keys.size > self.capacity:
            raise ValueError(f"{keys.size} keys do not fit beside {self.count}, wanted at most {self.capacity} in all")
        numbers = (rows + 1).astype(np.uint32)
        done = 0
        while done < keys.size:
            self._grow(keys.size - done)
            room = max(1, int(self._table[1].size * LOAD) - self.count)
            stop = min(keys.size, done + room)
            added = kernels.insert_keys(keys[done:stop], numbers[done:stop], *self._table)
            assert added == stop - done, "the table has room"
            self.count += added
            done = stop

    def remove(self, keys: Array) -> Array:
        """Remove keys, int64 (n,); the row of each, -1 for a key that was not there."""
        freed = np.full(keys.size, -1, np.int64)
        kernels.remove_keys(keys, freed, *self._table)
        if self._old is not None:
            kernels.remove_keys(keys, freed, *self._old)
        self.count -= int(np.count_nonzero(freed >= 0))
        return freed

    def _grow(self, coming: int) -> None:
        """Touch some memory of the next table, once this one is half full. Begin it if this one is full, and move some
        buckets of the one before to it: enough that all are moved before it is full."""
        size = self._table[1].size
        left = int(size * LOAD) - self.count - coming
        if size < self._most_buckets * kernels.WIDTH:
            if self._next is None and left < self.count + coming:
                self._next, self._touched = _table(min(2 * size // kernels.WIDTH, self._most_buckets)), 0.0
            if self._next is not None and left >= 0:
                self._touch_next(self._next, coming / max(coming, left))
            elif self._next is not None and self._old is None:
                self._old, self._table, self._next = self._table, self._next, None
                room = int(self._table[1].size * LOAD) - self.count
                self._moved, self._rate = 0, len(self._old[2]) / max(1.0, SOONER * room)
        if self._old is not None:
            due = max(LEAST_MOVED, math.ceil(coming * self._rate))
            stop = min(len(self._old[2]), self._moved + due)
            kernels.move_buckets(self._moved, stop, self._old, self._table)
            self._moved = stop
            if stop == len(self._old[2]):
                self._old = None

    def _touch_next(self, table: Table, share: float) -> None:
        """Touch a share of the memory of the next table that is not touched yet. The system zeroes huge pages at the
        first touch: a push that begins a table of 140 MB, with random keys, would wait 0.1 s for all of them."""
        end = min(1.0, self._touched + max(share, 1e-3) * (1.0 - self._touched) + 1e-6)
        for array in table:
            flat = array.reshape(-1).view(np.uint8)
            flat[int(self._touched * flat.size) : int(end * flat.size) : PAGE_NBYTES] = 0
        self._touched = end
