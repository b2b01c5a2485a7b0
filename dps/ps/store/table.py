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
from dps.ps.store.ahead import MemoryAhead
from dps.ps.store.expiry import Expiry
from dps.ps.store.gradients import RowGradient
from dps.ps.store.index import KeyIndex
from dps.ps.store.key_counts import KeyCounts, pushes_of
from dps.training import initializers
from dps.training import optimizers as optim
from dps.transport.dtypes import dtype_of
from dps.transport.wire import Array
from dps.variables.tables import TablePart, keys_of


@record
class SavedTable:
    """A copy of a table's rows for a checkpoint: the keys, int64 (n,), the values (n, dim), and the slots by name; and
    how often the optimizer was applied. `stamps`: with `expire_steps` the step of each row's last push, int64 (n,).
    `counted`: with `admit` the keys that have no row yet, int64 (m,), and how often each was pushed, uint8 (m,), in the
    order in which they are loaded again."""

    part: TablePart
    keys: Array
    values: Array
    slots: dict[str, Array]
    updates: int
    stamps: Array | None = None
    counted: tuple[Array, Array] | None = None


NONE = np.empty(0, np.int64)


def lacking_in(rows: Array) -> Array:
    """The positions of the numbers below 0, for keys that have no row, int64 (n,). Mostly there are none, and the least
    number says so in half of the time."""
    return NONE if rows.min(initial=0) >= 0 else np.flatnonzero(rows < 0)


class FoundRows:
    """The rows of the lists of codes that were looked for last: most pushes have the keys of a lookup before them.

    Without it lookups and pushes of 8,192 keys run at 0.87 of the speed of a fixed table, with it at 0.92. It may go
    once they reach 0.9 without it."""

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
            if (lacking := lacking_in(rows)).size:
                rows[lacking] = self._index.find(codes[lacking])
            return rows
        rows = self._index.find(codes)
        self._lists[key] = codes, rows
        if len(self._lists) > self.KEPT:
            self._lists.popitem(last=False)
        return rows

    def forget_lists(self) -> None:
        """Keys have lost their rows."""
        self._lists.clear()


class KeyedTable:
    """All methods run on the ps's thread. Codes are int64 (n,) and of this part (`check_codes`). `now` is the step that
    the ps has reached, by which rows expire: an expired row is as none, whether it is still there or not.

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
        self._index = KeyIndex(part.rows)
        self._found = FoundRows(self._index)
        one = initial_slots(optimizer, 1, precision, 1)
        self._begin = {name: slot[0] for name, slot in one.items()}
        """What each slot of a new row is filled with."""
        try:
            self._codes = np.zeros(part.rows, np.int64) if spec.expire_steps else None
            """The code of each row, by which an expired row is removed from the index."""
            self._values = np.zeros((part.rows, spec.dim), self.dtype)
            self.slots = {
                name: np.zeros(part.rows if name in optimizer.row_slots else (part.rows, spec.dim), precision)
                for name in one
            }
            self.key_counts = KeyCounts(part) if spec.admit > 1 else None
            self._expiry = Expiry(spec.expire_steps, part.rows) if spec.expire_steps else None
        except MemoryError:
            raise ConfigError(
                f"{part.name}: the system reserves no memory for {part.rows:,} rows of {spec.dim} {self.dtype.name}; "
                "use a smaller capacity, or more ps"
            ) from None
        arrays = [self._values, *self.slots.values(), *([] if self._codes is None else [self._codes])]
        self._ahead = [MemoryAhead(array) for array in arrays]
        self._given, self._ordered = self._as_given(self._values), self._bound.ordered(self.slots)
        self.count = self.updates = 0
        """How many keys have rows, and how often the optimizer was applied."""
        self.counts = {"admitted": 0, "dropped": 0, "expired": 0, "refused": 0}
        """For people: since the run epoch began, the keys that got a row, the gradients of a key that were dropped
        because it was not admitted yet, one for each push, the expired rows that were freed, and the pushes that found
        no room."""

    def _as_given(self, array: Array) -> Array:
        """Values or a gradient as kernels take them."""
        return bits_in(array) if self._half else array

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are there, with their slots, of the index, and of all counts of keys without a row."""
        slots = sum(slot[:1].nbytes for slot in self.slots.values())
        counts = self.key_counts.nbytes if self.key_counts else 0
        stamp = 8 + self._expiry.nbytes_of_row if self._expiry else 0
        return self.count * (self.dim * self.dtype.itemsize + slots + stamp) + self._index.nbytes + counts

    def check_codes(self, codes: Array) -> Array:
        """Codes as they came, in private memory. Raises ValueError for others than those of this part."""
        if codes.dtype != np.int64 or codes.ndim != 1:
            raise ValueError(f"codes of {self.part.name} are int64 of shape (n,), got {codes.dtype} {codes.shape}")
        private: Array = codes.copy()
        part = self.part
        if private.size and not (int(private.min()) >= part.lowest and int(private.max()) <= part.highest):
            raise ValueError(f"{self.part.name} has the slices {part.first} to {part.end - 1}; got codes of others")
        return private

    def gather(self, codes: Array, out: Array, now: int) -> None:
        """Copy the rows of codes to `out`, (n, dim): for keys without a row the first values."""
        self.copy_rows(codes, self.rows_to_read(codes, now), out)

    def rows_to_read(self, codes: Array, now: int) -> Array:
        """The number of the row of each code, int64 (n,), below 0 for those that have none; not to be changed."""
        found = self._found.rows_of(codes)
        return found if self._expiry is None else np.where(self._expiry.has_expired(found, now), -1, found)

    def copy_rows(self, codes: Array, found: Array, out: Array) -> None:
        """`gather` of codes whose rows were found in the same turn, of all or of a slice of them."""
        lacking = lacking_in(found)
        row_kernels.gather(self._given, np.maximum(found, 0) if lacking.size else found, self._as_given(out))
        if lacking.size:
            self._first.fill_rows(out, lacking, keys_of(codes[lacking]))

    def full_text(self, many: Sequence[RowGradient], now: int) -> str:
        """Why the keys of pushes that are still to be applied find no room; "" if they do, whichever of the pushes are
        applied, in which order, and whatever expires meanwhile: an expired row that is swept, or that a push of its key
        finds, leaves room for one."""
        free = self.part.rows - self.count
        if sum(gradient.rows.size for gradient in many) <= free:
            return ""
        new = self._new_rows(many)
        if new > free and self._expiry is not None and (expired := self._expiry.sweep_all(now)).size:
            self._remove_rows(expired)
            new = self._new_rows(many)
        text = self.no_room_text(new)
        self.counts["refused"] += bool(text)
        return text

    def _new_rows(self, many: Sequence[RowGradient]) -> int:
        """How many rows these gradients, if they are several each of one push, make if all are applied."""
        if len(many) == 1:
            codes, pushes = many[0].rows, pushes_of(many[0])
        else:
            codes, pushes = np.unique(np.concatenate([gradient.rows for gradient in many]), return_counts=True)
        new = lacking_in(self._found.rows_of(codes))
        if self.key_counts is None:
            return new.size
        return int(np.count_nonzero(self.key_counts.would_admit(codes[new], pushes[new])))

    def no_room_text(self, new: int) -> str:
        """Why so many new rows do not fit; "" if they do."""
        if new <= self.part.rows - self.count:
            return ""
        spec, several = self.part.spec, len(self.part.spec.ps) > 1
        share = f", of which ps:{self.part.ps} has {self.part.rows:,}" if several else ""
        return (
            f"the keyed table {spec.name} is full: {new:,} new keys do not fit beside {self.count:,} rows; it has "
            f"capacity={spec.capacity:,}{share}. Give it a larger capacity, and continue from a checkpoint"
        )

    def apply(
        self, gradient: RowGradient, step: int, scale: float, now: int, rated_at: int | None = None
    ) -> None:  # fmt: skip
        """Update the rows of distinct codes, for which there is room, by a gradient (n, dim). Keys that have no row get
        one, with first values and initial slots, if they are admitted; else their gradients are dropped. `step`: the
        step that this makes; the rate is that of step `rated_at` (None: the one before it), multiplied by `scale`."""
        codes, values = gradient.rows, gradient.values.reshape(-1, self.dim)
        rows = self._found.rows_of(codes)
        if self._expiry is not None and (expired := np.flatnonzero(self._expiry.has_expired(rows, now))).size:
            self._remove_rows(rows[expired])
            rows[expired] = -1
        new = lacking_in(rows)
        if self.key_counts is not None and new.size:
            pushes = pushes_of(gradient)[new]
            admitted = self.key_counts.count(codes[new], pushes)
            self.counts["dropped"] += int(pushes[~admitted].sum())
            new = new[admitted]
        if new.size:
            rows[new] = self._add_rows(codes[new])
            self.counts["admitted"] += new.size
        if self.key_counts is not None and not (kept := rows >= 0).all():
            rows, values = rows[kept], values[kept]
        self.updates += 1
        rated_at = step - 1 if rated_at is None else rated_at
        self._bound.apply_rows(self._given, self._ordered, rows, self._as_given(values), self.updates, rated_at, scale)
        if self._expiry is not None:
            self._expiry.stamp_rows(rows, step)
            if (expired := self._expiry.sweep(now, codes.size)).size:
                self._remove_rows(expired)

    def _add_rows(self, codes: Array) -> Array:
        """Rows for codes that have none; their numbers."""
        first, end = self.count, self.count + codes.size
        numbers = np.arange(first, end) if self._expiry is None else self._expiry.take_numbers(codes.size)
        where = slice(first, end) if self._expiry is None else numbers
        for ahead in self._ahead:
            ahead.use_rows(int(numbers.max(initial=-1)) + 1)
        self._first.fill_rows(self._values, numbers, keys_of(codes))
        for name, begin in self._begin.items():
            if begin or self._expiry is not None:  # other memory is 0 as long as nobody has used it
                self.slots[name][where] = begin
        if self._codes is not None:
            self._codes[where] = codes
        self._index.insert(codes, numbers)
        self.count = end
        return numbers

    def _remove_rows(self, rows: Array) -> None:
        """Free expired rows."""
        assert self._expiry is not None and self._codes is not None, "no others are removed"
        self._index.remove(self._codes[rows])
        self._found.forget_lists()
        self._expiry.free_rows(rows)
        self.count -= rows.size
        self.counts["expired"] += rows.size

    def copy(self, now: int) -> SavedTable:
        """A copy of all rows that have not expired."""
        where: slice | Array = slice(0, self.count)
        stamps = None
        if self._expiry is not None:
            where = self._expiry.live_rows(now)
            stamps = self._expiry.stamps_of(where)
        codes = self._index.keys_by_row(self.count) if self._codes is None else self._codes[where]
        keys, values = keys_of(codes), self._values[where].copy()
        slots = {name: slot[where].copy() for name, slot in self.slots.items()}
        counted = None
        if self.key_counts is not None:
            waiting, pushes = self.key_counts.copy()
            counted = keys_of(waiting), pushes
        return SavedTable(self.part, keys, values, slots, self.updates, stamps, counted)

    def load_rows(
        self, codes: Array, values: Array, slots: Iterable[tuple[str, Array]], stamps: Array | int = 0
    ) -> None:
        """Add rows of a checkpoint: distinct codes of this part that have no rows yet, and for which there is room.
        `stamps`: the step of the last push of each, or of all; only used with `expire_steps`."""
        numbers = self._add_rows(codes)
        self._values[numbers] = values
        for name, rows in slots:
            self.slots[name][numbers] = rows
        if self._expiry is not None:
            self._expiry.stamp_rows(numbers, stamps)
