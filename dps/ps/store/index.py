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
LEAST_MOVED = 64
"""How many buckets a call moves at least while a table grows."""

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
        self._moved = 0
        """The buckets of the old table that are moved: the first ones."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(array.nbytes for table in (self._table, self._old) if table is not None for array in table)

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
        """Begin a larger table if this one is nearly full, and move some buckets of the one before: enough that all are
        moved before the larger one is full."""
        buckets = len(self._table[2])
        if self._old is None and self.count + coming > buckets * kernels.WIDTH * LOAD and buckets < self._most_buckets:
            self._old, self._moved = self._table, 0
            self._table = _table(min(2 * buckets, self._most_buckets))
        if self._old is not None:
            stop = min(len(self._old[2]), self._moved + max(LEAST_MOVED, coming))
            kernels.move_buckets(self._moved, stop, self._old, self._table)
            self._moved = stop
            if stop == len(self._old[2]):
                self._old = None
