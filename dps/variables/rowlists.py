"""Prepares row numbers for sending: sorted and unique; a list that is used again is sorted only once."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from dps.process.record import record
from dps.transport.tuning import ORDINARY, RowListTuning
from dps.transport.wire import Array
from dps.variables.plan import Part
from dps.variables.tables import TablePart, codes_of, range_of_part

NARROW = 1 << 31
"""Numbers of so many rows fit in int32."""


def range_of(part: Part | TablePart, rows: Array) -> tuple[int, int]:
    """First and last position of a part's row numbers among those of its variable, which are sorted if it has several
    parts. Of a keyed table: of its codes."""
    if isinstance(part, TablePart):
        return range_of_part(part, rows) if len(part.spec.ps) > 1 else (0, len(rows))
    if not part.row0 and (not len(rows) or rows[-1] < part.shape[0]):
        return 0, len(rows)
    first, last = np.searchsorted(rows, (part.row0, part.row0 + part.shape[0]))
    return int(first), int(last)


def within(part: Part | TablePart, rows: Array) -> Array:
    """A part's row numbers, counted from its first row, as they are sent: int32 where the part has no more rows. Codes
    of keys are sent as they are."""
    if isinstance(part, TablePart):
        return rows
    rows = rows - part.row0 if part.row0 else rows
    return rows.astype(np.int32) if part.shape[0] <= NARROW else rows


@record
class RowsOfPart:
    """The rows of a gradient that one part gets, from `first` to `last` of all rows of the gradient, in their order."""

    numbers: Array
    """The row numbers, as they are sent."""
    first: int
    last: int
    values: Array
    """The values of the whole gradient, in the caller's order."""
    order: Array | None
    """How the values are reordered; None: not at all."""

    def fill(self, out: Array) -> None:
        """Write the values of these rows to `out`, in their order."""
        if self.order is None:
            out[...] = self.values[self.first : self.last]
        else:
            np.take(self.values, self.order[self.first : self.last], axis=0, out=out, mode="clip")


class RowList:
    """The row numbers that a caller gave, int64 (n,), with the mapping to the rows that are sent and back."""

    def __init__(self, asked: Array, least: int) -> None:
        """`asked` is kept and must not be changed. Fewer than `least` are sent as they are, if one ps has all."""
        self.asked, self._least = asked, least
        self._is_short = len(asked) < least
        self._rising: _Rising | None = None

    def ends(self) -> tuple[int, int]:
        """The lowest and the highest row number; (0, -1) if there are none."""
        if not len(self.asked):
            return 0, -1
        rows = self.asked if self._is_short else self._sorted().every
        return (int(rows.min()), int(rows.max())) if self._is_short else (int(rows[0]), int(rows[-1]))

    def to_read(self, parts: int) -> tuple[Array, Array | None]:
        """The rows to request, and the position of each of the caller's row numbers among them (None: unchanged).

        If one ps answers, it returns rows in the caller's order; then only repeated rows are removed from the request.
        """
        if parts == 1 and (self._is_short or (self._sorted().order is not None and not self._sorted().repeats)):
            return self.asked, None
        return self._sorted().distinct, self._sorted().which()

    def of_part(self, part: Part | TablePart, values: Array, parts: int) -> RowsOfPart:
        """The rows of a gradient for one of `parts`, sorted if that saves the ps work.

        The ps adds up repeated rows, because numpy takes three times as long as the ps's kernel.
        """
        if parts == 1 and (self._is_short or self._sorted().repeats):
            return RowsOfPart(within(part, self.asked), 0, len(self.asked), values, None)
        every = self._sorted().every
        first, last = range_of(part, every)
        return RowsOfPart(within(part, every[first:last]), first, last, values, self._sorted().order)

    def _sorted(self) -> _Rising:
        if self._rising is None:
            self._rising = _Rising(self.asked, self._least)
        return self._rising


class _Rising:
    """Row numbers in rising order."""

    def __init__(self, asked: Array, least: int) -> None:
        self.order: Array | None = None
        """Positions in `asked`, sorted by row number (stable); None if `asked` is sorted already."""
        self.repeats = False
        self._which: Array | None = None
        if len(asked) < 2 or bool((asked[1:] > asked[:-1]).all()):
            self.distinct = self.every = asked
            return
        rows, self.order = _sorted(asked, least)
        first = np.empty(len(rows), np.bool_)
        first[0] = True
        np.not_equal(rows[1:], rows[:-1], out=first[1:])
        self.distinct = self.every = rows
        self.repeats = not first.all()
        if self.repeats:
            self.distinct = rows[first]
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
        self._lists: OrderedDict[tuple[int, ...], tuple[Array, RowList]] = OrderedDict()
        """Each with what the caller gave."""

    def of(self, rows: Array) -> RowList:
        """The list of these row numbers, integers (n,). Keeps a copy, so the caller may change the array."""
        return self._list_of(rows, are_keys=False)

    def of_keys(self, keys: Array) -> RowList:
        """The list of the codes of these keys, int64 (n,). Keeps a copy, so the caller may change the array."""
        return self._list_of(keys, are_keys=True)

    def _list_of(self, given: Array, are_keys: bool) -> RowList:
        n, least = len(given), self._tuning.least
        if n < least:
            return RowList(codes_of(given) if are_keys else np.array(given, np.int64), least)
        key = (are_keys, n, int(given[0]), int(given[n // 2]), int(given[-1])) if n else (are_keys, 0)
        kept, found = self._lists.get(key, (None, None))
        if kept is not None and found is not None and np.array_equal(kept, given):
            self._lists.move_to_end(key)
            return found
        kept = np.array(given, np.int64)
        made = RowList(codes_of(kept) if are_keys else kept, least)
        self._lists[key] = kept, made
        if len(self._lists) > self._tuning.kept:
            self._lists.popitem(last=False)
        return made


def _sorted(rows: Array, least: int) -> tuple[Array, Array]:
    """Sorted row numbers and their former positions; the order of equal ones is kept.

    Sorting (row, position) packed in one int64 is several times faster than numpy's stable argsort, but not for fewer
    than `least` rows.
    """
    bits = len(rows).bit_length()
    if len(rows) < least:
        order = rows.argsort(kind="stable")
        return rows[order], order
    if int(rows.min()) < 0 or int(rows.max()) >> (63 - bits):  # codes of keys: their upper bits decide, if they differ
        order = (rows & ~np.int64((1 << bits) - 1)) | np.arange(len(rows))
        order.sort()
        order &= (1 << bits) - 1
        found = rows[order]
        if not bool((found[1:] >= found[:-1]).all()):
            order = rows.argsort(kind="stable")
            found = rows[order]
        return found, order
    keys = (rows << bits) | np.arange(len(rows))
    keys.sort()
    return keys >> bits, keys & ((1 << bits) - 1)
