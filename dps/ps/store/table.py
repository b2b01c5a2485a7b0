"""The rows of a keyed table on one ps: an index from codes to row numbers, and values and slots by row number.

A key gets the next row number when a push that has it is applied, in the same turn of the ps's thread in which the push
is recorded. So what was dropped, refused or lost leaves nothing. No reader holds values here: a lookup copies them in
one turn. So updates are made in place, in memory that is reserved for all rows and used as rows come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from dps.errors import ConfigError
from dps.kernels import rows as row_kernels
from dps.kernels.first_values import FirstValues
from dps.kernels.halves import bits_in, is_half
from dps.kernels.optimizers import BoundOptimizer, initial_slots
from dps.process.record import record
from dps.ps.store.index import KeyIndex
from dps.training import initializers
from dps.training import optimizers as optim
from dps.transport.dtypes import dtype_of
from dps.transport.wire import Array
from dps.variables.tables import TablePart, keys_of


@record
class SavedTable:
    """A copy of a table's rows for a checkpoint: the keys, int64 (n,), the values (n, dim), and the slots by name; and
    how often the optimizer was applied."""

    part: TablePart
    keys: Array
    values: Array
    slots: dict[str, Array]
    updates: int


class FoundRows:
    """The rows of the lists of codes that were looked for last: most pushes have the keys of a lookup before them.

    It may go once the index is so fast that a push takes less than 20 % longer without it."""

    KEPT = 8

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        self._lists: OrderedDict[tuple[int, ...], tuple[Array, Array]] = OrderedDict()

    def rows_of(self, codes: Array) -> Array:
        """The row of each code, below 0 for those that have none. The caller may write the rows of new keys there, and
        nothing else; nobody changes the codes any more."""
        n = codes.size
        key = (n, int(codes[0]), int(codes[n // 2]), int(codes[-1])) if n else (0,)
        asked, rows = self._lists.get(key, (None, codes))
        if asked is not None and np.array_equal(asked, codes):
            self._lists.move_to_end(key)
            lacking = np.flatnonzero(rows < 0)
            if lacking.size:
                rows[lacking] = self._index.find(codes[lacking])
            return rows
        rows = self._index.find(codes)
        self._lists[key] = codes, rows
        if len(self._lists) > self.KEPT:
            self._lists.popitem(last=False)
        return rows


class KeyedTable:
    """All methods run on the ps's thread. Codes are int64 (n,) and of this part (`check_codes`).

    More than 12 attributes: the memory of a table, and what its kernels are given.
    """

    def __init__(self, part: TablePart) -> None:
        """Raises ConfigError if the system does not reserve memory for so many rows."""
        self.part, spec = part, part.spec
        self.dtype, self.dim = dtype_of(spec.dtype), spec.dim
        self.optimizer = optimizer = optim.from_wire(spec.optimizer)
        self._half = is_half(self.dtype)
        precision = np.dtype(np.float32) if self._half else self.dtype
        self._bound = BoundOptimizer(optimizer, precision)
        self._first = FirstValues(initializers.from_wire(spec.init), spec.name, (part.rows, spec.dim), self.dtype)
        self._index = KeyIndex(part.rows, part.lowest, part.highest)
        self._found = FoundRows(self._index)
        one = initial_slots(optimizer, 1, precision, 1)
        self._begin = {name: slot[0] for name, slot in one.items()}
        """What each slot of a new row is filled with."""
        try:
            self._codes = np.zeros(part.rows, np.int64)
            self._values = np.zeros((part.rows, spec.dim), self.dtype)
            self.slots = {
                name: np.zeros(part.rows if name in optimizer.row_slots else (part.rows, spec.dim), precision)
                for name in one
            }
        except MemoryError:
            raise ConfigError(
                f"{part.name}: the system reserves no memory for {part.rows:,} rows of {spec.dim} {self.dtype.name}; "
                "use a smaller capacity, or more ps"
            ) from None
        self._given, self._ordered = self._as_given(self._values), self._bound.ordered(self.slots)
        self.count = self.updates = 0
        """How many rows there are, and how often the optimizer was applied."""

    def _as_given(self, array: Array) -> Array:
        """Values or a gradient as kernels take them."""
        return bits_in(array) if self._half else array

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are there, with their slots, and of the index."""
        slots = sum(slot[:1].nbytes for slot in self.slots.values())
        return self.count * (self.dim * self.dtype.itemsize + slots + 8) + self._index.nbytes

    def check_codes(self, codes: Array) -> Array:
        """Codes as they came, in private memory. Raises ValueError for others than those of this part."""
        if codes.dtype != np.int64 or codes.ndim != 1:
            raise ValueError(f"codes of {self.part.name} are int64 of shape (n,), got {codes.dtype} {codes.shape}")
        private: Array = codes.copy()
        part = self.part
        if private.size and not (int(private.min()) >= part.lowest and int(private.max()) <= part.highest):
            raise ValueError(f"{self.part.name} has the slices {part.first} to {part.end - 1}; got codes of others")
        return private

    def gather(self, codes: Array, out: Array) -> None:
        """Copy the rows of codes to `out`, (n, dim): for keys without a row the first values."""
        found = self._found.rows_of(codes)
        lacking = np.flatnonzero(found < 0)
        row_kernels.gather(self._given, np.maximum(found, 0) if lacking.size else found, self._as_given(out))
        if lacking.size:
            self._first.fill_rows(out, lacking, keys_of(codes[lacking]))

    def full_text(self, many: Sequence[Array]) -> str:
        """Why the keys of pushes that are still to be applied find no room, each with distinct codes; "" if they do."""
        free = self.part.rows - self.count
        if sum(codes.size for codes in many) <= free:
            return ""
        codes = many[0] if len(many) == 1 else np.unique(np.concatenate(many))
        new = int(np.count_nonzero(self._found.rows_of(codes) < 0))
        if new <= free:
            return ""
        spec, several = self.part.spec, len(self.part.spec.ps) > 1
        share = f", of which ps:{self.part.ps} has {self.part.rows:,}" if several else ""
        return (
            f"the keyed table {spec.name} is full: {new:,} new keys do not fit beside {self.count:,} rows; it has "
            f"capacity={spec.capacity:,}{share}. Give it a larger capacity, and continue from a checkpoint"
        )

    def apply(self, codes: Array, gradient: Array, step: int, scale: float) -> None:
        """Update the rows of distinct codes, for which there is room, by a gradient (n, dim). Keys that have no row get
        one, with first values and initial slots."""
        rows = self._found.rows_of(codes)
        new = np.flatnonzero(rows < 0)
        if new.size:
            rows[new] = self._add_rows(codes[new])
        self.updates += 1
        self._bound.apply_rows(
            self._given, self._ordered, rows, self._as_given(gradient.reshape(-1, self.dim)), self.updates, step, scale
        )

    def _add_rows(self, codes: Array) -> Array:
        """Rows for codes that have none; their numbers."""
        first, end = self.count, self.count + codes.size
        numbers = np.arange(first, end)
        self._first.fill_rows(self._values, numbers, keys_of(codes))
        for name, begin in self._begin.items():
            if begin:
                self.slots[name][first:end] = begin
        self._codes[first:end] = codes
        self._index.insert(codes, numbers)
        self.count = end
        return numbers

    def copy(self) -> SavedTable:
        """A copy of all rows that are there."""
        n = self.count
        slots = {name: slot[:n].copy() for name, slot in self.slots.items()}
        return SavedTable(self.part, keys_of(self._codes[:n]), self._values[:n].copy(), slots, self.updates)

    def load_rows(self, codes: Array, values: Array, slots: Iterable[tuple[str, Array]]) -> None:
        """Add rows of a checkpoint: distinct codes of this part that have no rows yet, and for which there is room."""
        first, end = self.count, self.count + codes.size
        self._add_rows(codes)
        self._values[first:end] = values
        for name, rows in slots:
            self.slots[name][first:end] = rows
