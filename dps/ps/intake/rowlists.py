"""Checks row numbers as they come from a session, in private memory, and makes gradients of such rows."""

from __future__ import annotations

import numpy as np

from dps.kernels import rows as row_kernels
from dps.kernels.halves import widened
from dps.ps.store.gradients import RowGradient
from dps.transport.wire import Array
from dps.variables.layout import out_of_range
from dps.variables.plan import Part


def row_gradient(rows: Array, values: Array) -> RowGradient:
    """A gradient of rows that `checked` returned, values (n, dim), in which duplicates are added up in the order in
    which they come. Sums of halves are float32."""
    if row_kernels.rises(rows):
        return RowGradient(rows, values)
    unique, sums, _ = row_kernels.sum_duplicate_rows(rows, widened(values))
    return RowGradient(unique, sums)


def checked(part: Part, rows: Array) -> Array:
    """Row numbers as they came, int64 and in private memory. Raises ValueError that says what was got and wanted."""
    if not part.shape:
        raise ValueError(f"{part.name} is a scalar, which has no rows")
    if rows.dtype not in (np.int32, np.int64) or rows.ndim != 1:
        wanted = "int32 or int64 of shape (n,)"
        raise ValueError(f"row numbers of {part.name} are {wanted}, got indices {rows.dtype} {rows.shape}")
    private: Array = rows.astype(np.int64)
    if not row_kernels.rows_in_range(private, part.shape[0]):
        raise ValueError(out_of_range(part.name, part.shape[0], private))
    return private
