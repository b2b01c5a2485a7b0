"""Lists of row numbers that a session has sent: checked once, kept under its number for them while there is room."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from dps.kernels import rows as row_kernels
from dps.kernels.halves import widened
from dps.ps.store.gradients import RowGradient
from dps.transport.tuning import ORDINARY, RowListTuning
from dps.transport.wire import Array
from dps.variables.layout import out_of_range
from dps.variables.plan import Part


@dataclass(frozen=True, slots=True)
class Checked:
    """Row numbers of a part, int64, in this process's own memory and in range. `rises`: each is above the last."""

    rows: Array
    rises: bool


def row_gradient(rows: Checked, values: Array) -> RowGradient:
    """A gradient of rows, values (n, dim), with duplicates added up in the order in which they come; sums of halves are
    float32."""
    if rows.rises:
        return RowGradient(rows.rows, values)
    unique, sums, _ = row_kernels.sum_duplicate_rows(rows.rows, widened(values))
    return RowGradient(unique, sums)


def checked(part: Part, rows: Array) -> Checked:
    """Row numbers as they came, in private memory. Raises ValueError with what was got and wanted."""
    if not part.shape:
        raise ValueError(f"{part.name} is a scalar, which has no rows")
    if rows.dtype not in (np.int32, np.int64) or rows.ndim != 1:
        wanted = "int32 or int64 of shape (n,)"
        raise ValueError(f"row numbers of {part.name} are {wanted}, got indices {rows.dtype} {rows.shape}")
    private = rows.astype(np.int64)
    if not row_kernels.rows_in_range(private, part.shape[0]):
        raise ValueError(out_of_range(part.name, part.shape[0], private))
    return Checked(private, bool(row_kernels.rises(private)))


class RowLists:
    """Of one session, by part and number. A session that ends takes them with it."""

    def __init__(self, tuning: RowListTuning = ORDINARY.rows) -> None:
        self._tuning = tuning
        self._kept: OrderedDict[tuple[int, int], Checked] = OrderedDict()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, part: int, number: int) -> Checked | None:
        """A list that was sent before; None where it has to be sent again."""
        found = self._kept.get((part, number))
        if found is not None:
            self._kept.move_to_end((part, number))
        return found

    def take(self, part: Part, number: int, rows: Array) -> Checked:
        """A list that has come; number 0 is not kept. Raises ValueError."""
        found = checked(part, rows)
        if not number or found.rows.nbytes > self._tuning.kept_nbytes:
            return found
        before = self._kept.pop((part.index, number), None)
        self._nbytes += found.rows.nbytes - (0 if before is None else before.rows.nbytes)
        self._kept[part.index, number] = found
        while len(self._kept) > self._tuning.kept_by_ps or self._nbytes > self._tuning.kept_nbytes:
            self._nbytes -= self._kept.popitem(last=False)[1].rows.nbytes
        return found
