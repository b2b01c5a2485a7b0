"""A hash index from int64 keys to row numbers that grows a piece at a time, for keyed tables."""

from __future__ import annotations

import math

import numpy as np

from dps.kernels import index as kernels
from dps.ps.store.ahead import PAGE_NBYTES, MemoryAhead
from dps.transport.wire import Array

LOAD = 0.6
"""The share of slots that are in use when a table begins to grow, and at capacity: 21.3 bytes a key. A search takes 0.6
of the time that it takes at 0.85."""
FIRST = 64
"""The buckets of a new index, at most. They are a power of 2 less than those of a full one, so that there is always the
same time to move all keys of the table before: a last table that is hardly larger would have to be filled quickly."""
SOONER = 0.8
"""The share of a larger table's room after which all keys of the one before are moved."""
EARLIER = 10
"""All memory of the next table is touched, or asked for, when all but one in so many keys have come."""
LEAST_MOVED = 64
"""How many buckets a call moves at least while a table grows."""


class KeyIndex:
    """The row number of each key. One thread writes; the caller chooses row numbers, below 2**32 - 1."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: the most keys."""
        self.capacity, self.count = capacity, 0
        self._most_buckets = max(1, math.ceil(capacity / LOAD / kernels.WIDTH))
        doublings = ((self._most_buckets - 1) // FIRST).bit_length()
        self._table = kernels.new_lines(-(-self._most_buckets >> doublings))
        """See `dps.kernels.index`."""
        self._old: Array | None = None
        """The table before this one, while it still has keys."""
        self._next: Array | None = None
        """The table after this one, from when this one is half full; without keys."""
        self._ahead = MemoryAhead(self._table)
        """Prepares the memory of the next table."""
        self._touched = 0.0
        """The share of its memory that was touched or asked for."""
        self._moved, self._rate = 0, 0.0
        """The buckets of the old table that are moved: the first ones; and how many are moved for each new key."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.nbytes for table in (self._table, self._old, self._next) if table is not None)

    def find(self, keys: Array) -> Array:
        """The row of each key, int64 in the shape of `keys` (int64); -1 for a key that is not there."""
        wanted = np.ascontiguousarray(keys).reshape(-1)
        found = np.full(wanted.size, -1, np.int64)
        if kernels.find_rows(found, wanted, self._table) and self._old is not None:
            kernels.find_rows(found, wanted, self._old)
        return found.reshape(keys.shape)

    def keys_by_row(self, rows: int) -> Array:
        """The key of each row number below `rows`, int64 (rows,); all keys have such rows. 0 where no key has one."""
        keys = np.zeros(rows, np.int64)
        for table in (self._table, self._old):
            if table is not None:
                kernels.write_keys(keys, table)
        return keys

    @staticmethod
    def _room_of(table: Array) -> int:
        """How many keys a table has at most."""
        return int(len(table) * kernels.WIDTH * LOAD)

    def insert(self, keys: Array, rows: Array) -> None:
        """Add keys, int64 (n,), that are neither there nor given twice, with these row numbers (n,). Raises ValueError,
        and adds none, if they are more than there is room for."""
        if self.count + keys.size > self.capacity:
            raise ValueError(f"{keys.size} keys do not fit beside {self.count}, wanted at most {self.capacity} in all")
        numbers = (rows + 1).astype(np.uint32)
        done = 0
        while done < keys.size:
            self._grow(keys.size - done)
            room = max(1, self._room_of(self._table) - self.count)
            stop = min(keys.size, done + room)
            added = kernels.insert_keys(keys[done:stop], numbers[done:stop], self._table)
            assert added == stop - done, "the table has room"
            self.count += added
            done = stop

    def remove(self, keys: Array) -> Array:
        """Remove keys, int64 (n,); the row of each, -1 for a key that was not there."""
        freed = np.full(keys.size, -1, np.int64)
        kernels.remove_keys(keys, freed, self._table)
        if self._old is not None:
            kernels.remove_keys(keys, freed, self._old)
        self.count -= int(np.count_nonzero(freed >= 0))
        return freed

    def _grow(self, coming: int) -> None:
        """Touch some memory of the next table, once this one is half full. Begin it if this one is full, and move some
        buckets of the one before to it: enough that all are moved before it is full."""
        buckets = len(self._table)
        left = self._room_of(self._table) - self.count - coming
        if buckets < self._most_buckets:
            if self._next is None and left < self.count + coming:
                self._next, self._touched = kernels.new_lines(min(2 * buckets, self._most_buckets)), 0.0
                self._ahead = MemoryAhead(self._next)
            if self._next is not None and left >= 0:
                early = self._room_of(self._table) // EARLIER  # a thread may prefault it, and needs time
                self._touch_next(self._next, coming / max(coming, left - early))
            elif self._next is not None and self._old is None:
                self._old, self._table, self._next = self._table, self._next, None
                room = self._room_of(self._table) - self.count
                self._moved, self._rate = 0, len(self._old) / max(1.0, SOONER * room)
        if self._old is not None:
            due = max(LEAST_MOVED, math.ceil(coming * self._rate))
            stop = min(len(self._old), self._moved + due)
            kernels.move_buckets(self._moved, stop, self._old, self._table)
            self._moved = stop
            if stop == len(self._old):
                self._old = None

    def _touch_next(self, table: Array, share: float) -> None:
        """Touch a share of the memory of the next table that is not touched yet, or have it prepared. The system zeroes
        huge pages at the first touch: a push that begins a table of 140 MB, with random keys, would wait 0.1 s."""
        end = min(1.0, self._touched + max(share, 1e-3) * (1.0 - self._touched) + 1e-6)
        flat = table.reshape(-1).view(np.uint8)
        if not self._ahead.prepare(int(end * flat.size)):
            flat[int(self._touched * flat.size) : int(end * flat.size) : PAGE_NBYTES] = 0
        self._touched = end
