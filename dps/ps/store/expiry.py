"""When each row of a keyed table was pushed last, which rows have expired, and which row numbers are free again."""

from __future__ import annotations

import numpy as np

from dps.transport.wire import Array

FREE = np.int64(np.iinfo(np.int64).max)
"""The stamp of a row that no key has: it never expires."""
LEAST_LOOKED, LOOKED = 1024, 4
"""A sweep looks at so many rows, and so many more for each key of the push."""
LEAST_SWEPT, SWEPT = 64, 2
"""A sweep frees at most so many rows, and so many more for each key of the push: more than come."""


class Expiry:
    """The stamp of a row is the step of the last push that was applied to it. At the step `now` it has expired if its
    stamp is at least `steps` steps before. Used by the ps's thread. Row numbers are int64 (n,)."""

    def __init__(self, steps: int, rows: int) -> None:
        """`rows`: the most rows of the table. Raises MemoryError."""
        self._steps = steps
        self._stamps = np.zeros(rows, np.int64)
        self._free = np.empty(rows, np.uint32)
        """The numbers of rows that were freed; the first `_freed` count."""
        self._freed = self._used = self._next = 0
        """How many numbers are in `_free`, how many rows were ever given, and where the next sweep begins."""
        self._oldest = -FREE
        """No row has a stamp below this."""

    def has_expired(self, rows: Array, now: int) -> Array:
        """Whether each row has expired, bool (n,); False for a number below 0."""
        expired: Array = (self._stamps[rows] <= now - self._steps) & (rows >= 0)
        return expired

    def stamp_rows(self, rows: Array, step: int | Array) -> None:
        """A push was applied to these rows and made this step; or each has a stamp, int64 (n,), in a checkpoint."""
        self._stamps[rows] = step

    def take_numbers(self, n: int) -> Array:
        """Numbers for new rows, for which there is room: of freed rows first."""
        again = min(n, self._freed)
        self._freed -= again
        numbers = np.empty(n, np.int64)
        numbers[:again] = self._free[self._freed : self._freed + again]
        numbers[again:] = np.arange(self._used, self._used + n - again)
        self._used += n - again
        return numbers

    def free_rows(self, rows: Array) -> None:
        """These rows have no keys any more."""
        self._stamps[rows] = FREE
        self._free[self._freed : self._freed + rows.size] = rows
        self._freed += rows.size

    def sweep(self, now: int, pushed: int) -> Array:
        """Some rows that have expired, to be freed. Looks at the next piece of the table, larger the more keys a push
        has."""
        start, end = self._next, min(self._used, self._next + LEAST_LOOKED + LOOKED * pushed)
        expired = start + np.flatnonzero(self._stamps[start:end] <= now - self._steps)
        most = LEAST_SWEPT + SWEPT * pushed
        if expired.size > most:
            expired, end = expired[:most], int(expired[most - 1]) + 1
        self._next = 0 if end >= self._used else end
        return expired

    def sweep_all(self, now: int) -> Array:
        """All rows that have expired, to be freed. Looks at all rows, unless none can have expired since the last
        time."""
        if now - self._steps < self._oldest:
            return np.empty(0, np.int64)
        stamps = self._stamps[: self._used]
        has_expired = stamps <= now - self._steps
        self._oldest = np.int64(min(now, int(stamps[~has_expired].min(initial=FREE))))
        expired: Array = np.flatnonzero(has_expired)
        return expired

    def live_rows(self, now: int) -> Array:
        """The rows that have keys and have not expired."""
        stamps = self._stamps[: self._used]
        live: Array = np.flatnonzero((stamps > now - self._steps) & (stamps != FREE))
        return live

    def stamps_of(self, rows: Array) -> Array:
        """A copy of the stamps of rows, int64 (n,)."""
        return self._stamps[rows]

    @property
    def nbytes_of_row(self) -> int:
        """Bytes that each row takes here."""
        return self._stamps.itemsize + self._free.itemsize
