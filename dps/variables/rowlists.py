"""Prepares row numbers for sending: sorted and unique; a list that is used again is sent only once."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from dps.record import record
from dps.transport.tuning import ORDINARY, RowListTuning
from dps.transport.wire import Array
from dps.variables.plan import Part

NARROW = 1 << 31
"""Numbers of so many rows fit in int32."""


class SentList:
    """Row numbers of a variable; sorted if they are for several parts. Messages refer to them by `number`; it is 0 if
    the row numbers are sent each time."""

    __slots__ = ("_told", "number", "rows")

    def __init__(self, number: int, rows: Array) -> None:
        self.number, self.rows = number, rows
        self._told: dict[int, int] = {}

    def range_of(self, part: Part) -> tuple[int, int]:
        """First and last position in `rows` of a part's row numbers."""
        if not part.row0 and (not len(self.rows) or self.rows[-1] < part.shape[0]):
            return 0, len(self.rows)
        first, last = np.searchsorted(self.rows, (part.row0, part.row0 + part.shape[0]))
        return int(first), int(last)

    def within(self, part: Part) -> Array:
        """A part's row numbers, counted from its first row, as they are sent: int32 where the part has no more rows."""
        first, last = self.range_of(part)
        rows = self.rows[first:last] - part.row0 if part.row0 else self.rows[first:last]
        return rows.astype(np.int32) if part.shape[0] <= NARROW else rows

    def is_told(self, part: Part, incarnation: int) -> bool:
        """Whether the part's ps already has the list under this incarnation. Marks it as sent."""
        before = self._told.get(part.index)
        self._told[part.index] = incarnation
        return bool(self.number) and before == incarnation


@record
class RowsOfPart:
    """The rows of a gradient that one part gets: those of `sent` from `first` to `last`."""

    part: Part
    sent: SentList
    first: int
    last: int
    values: Array
    """The values of the whole gradient, in the caller's order."""
    order: Array | None

    @property
    def moves(self) -> bool:
        """Whether the values must be reordered."""
        return self.order is not None

    def fill(self, out: Array) -> None:
        """Write the values of these rows to `out`, in their order."""
        if self.order is None:
            out[...] = self.values[self.first : self.last]
        else:
            np.take(self.values, self.order[self.first : self.last], axis=0, out=out, mode="clip")


class RowList:
    """The row numbers that a caller gave, int64 (n,), with the mapping to the rows that are sent and back."""

    def __init__(self, asked: Array, numbers: itertools.count[int], tuning: RowListTuning = ORDINARY.rows) -> None:
        """`asked` is kept and must not be changed. `numbers` gives the numbers of the lists that are sent."""
        self.asked, self._numbers, self._least = asked, numbers, tuning.least
        self._is_short = len(asked) < tuning.least
        self._is_sent_once = tuning.least <= len(asked) <= tuning.most
        self._as_asked: SentList | None = None
        self._rising: _Rising | None = None

    def ends(self) -> tuple[int, int]:
        """The lowest and the highest row number; (0, -1) if there are none."""
        if not len(self.asked):
            return 0, -1
        rows = self.asked if self._is_short else self._sorted().every.rows
        return (int(rows.min()), int(rows.max())) if self._is_short else (int(rows[0]), int(rows[-1]))

    def to_read(self, parts: int) -> tuple[SentList, Array | None]:
        """The rows to request, and the position of each of the caller's row numbers among them (None: unchanged).

        If one ps answers, it returns rows in the caller's order; then only repeated rows are removed from the request.
        """
        if parts == 1 and (self._is_short or self._sorted().only_moved):
            return self._in_order(), None
        return self._sorted().distinct, self._sorted().which()

    def of_part(self, part: Part, values: Array, parts: int) -> RowsOfPart:
        """The rows of a gradient for one of `parts`, sorted if that saves the ps work.

        The ps adds up repeated rows, because numpy takes three times as long as the ps's kernel.
        """
        if parts == 1 and (self._is_short or self._sorted().repeats):
            return RowsOfPart(part, self._in_order(), 0, len(self.asked), values, None)
        every = self._sorted().every
        return RowsOfPart(part, every, *every.range_of(part), values, self._sorted().order)

    def _in_order(self) -> SentList:
        if self._as_asked is None:
            self._as_asked = SentList(self._number(), self.asked)
        return self._as_asked

    def _sorted(self) -> _Rising:
        if self._rising is None:
            self._rising = _Rising(self.asked, self._number, self._least)
        return self._rising

    def _number(self) -> int:
        return next(self._numbers) if self._is_sent_once else 0


class _Rising:
    """Row numbers in rising order."""

    def __init__(self, asked: Array, number: Callable[[], int], least: int) -> None:
        self.order: Array | None = None
        """Positions in `asked`, sorted by row number (stable); None if `asked` is sorted already."""
        self.only_moved = False
        """Whether `asked` is not sorted and has no duplicates."""
        self.repeats = False
        self._which: Array | None = None
        if len(asked) < 2 or bool((asked[1:] > asked[:-1]).all()):
            self.distinct = self.every = SentList(number(), asked)
            return
        rows, self.order = _sorted(asked, least)
        first = np.empty(len(rows), np.bool_)
        first[0] = True
        np.not_equal(rows[1:], rows[:-1], out=first[1:])
        self.distinct = self.every = SentList(number(), rows)
        self.only_moved = bool(first.all())
        self.repeats = not self.only_moved
        if self.repeats:
            self.distinct = SentList(number(), rows[first])
            self._which = np.empty(len(rows), np.int64)
            self._which[self.order] = np.cumsum(first) - 1

    def which(self) -> Array | None:
        """For each of `asked`, the position of its row in `distinct`; None if they are the same."""
        if self._which is None and self.order is not None:
            self._which = np.empty(len(self.order), np.int64)
            self._which[self.order] = np.arange(len(self.order))
        return self._which


class RowLists:
    """The lists that a session used last, found again by their contents."""

    def __init__(self, tuning: RowListTuning = ORDINARY.rows) -> None:
        self._tuning = tuning
        self._lists: OrderedDict[tuple[int, ...], RowList] = OrderedDict()
        self._numbers = itertools.count(1)

    def of(self, rows: Array) -> RowList:
        """The list of these row numbers, integers (n,). Keeps a copy, so the caller may change the array."""
        n = len(rows)
        if n < self._tuning.least:
            return RowList(np.array(rows, np.int64), self._numbers, self._tuning)
        key = (n, int(rows[0]), int(rows[n // 2]), int(rows[-1])) if n else (0,)
        found = self._lists.get(key)
        if found is not None and np.array_equal(found.asked, rows):
            self._lists.move_to_end(key)
            return found
        made = RowList(np.array(rows, np.int64), self._numbers, self._tuning)
        self._lists[key] = made
        if len(self._lists) > self._tuning.kept:
            self._lists.popitem(last=False)
        return made


def _sorted(rows: Array, least: int) -> tuple[Array, Array]:
    """Sorted row numbers and their former positions; the order of equal ones is kept.

    Sorting (row, position) packed in one int64 is several times faster than numpy's stable argsort, but not for fewer
    than `least` rows.
    """
    bits = len(rows).bit_length()
    if len(rows) < least or int(rows.min()) < 0 or int(rows.max()) >> (63 - bits):
        order = rows.argsort(kind="stable")
        return rows[order], order
    keys = (rows << bits) | np.arange(len(rows))
    keys.sort()
    return keys >> bits, keys & ((1 << bits) - 1)
