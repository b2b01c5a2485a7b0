"""CPU kernels of a ps: they take arrays and return arrays, in one pass over each.

`passes(rule)` are those of an optimizer. `dps.kernels.cuda` has the same functions for a GPU, with the same arguments.
No kernel holds the GIL or runs in parallel, and nothing is checked.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels.elements import entry, number
from dps.kernels.gradients import add, add_divide
from dps.kernels.jit import compiled
from dps.kernels.looking import all_finite
from dps.kernels.passes import passes
from dps.kernels.rows import gather, prefetch, rows_in_range, sum_duplicate_rows
from dps.kernels.rowwise import adagrad_rowwise, adagrad_rowwise_rows

__all__ = [
    "adagrad_rowwise",
    "adagrad_rowwise_rows",
    "add",
    "add_divide",
    "all_finite",
    "follow",
    "follow_rows",
    "gather",
    "passes",
    "rows_in_range",
    "sum_duplicate_rows",
]

Array: TypeAlias = npt.NDArray[Any]
Rows: TypeAlias = npt.NDArray[np.int64]
Scalar: TypeAlias = "np.floating[Any]"


@compiled
def follow(average: Array, w: Array, share: Scalar) -> None:
    """average -= (average - w) * share. tf.train.ExponentialMovingAverage, with share = 1 - decay."""
    for i in range(average.size):
        average[i] -= (average[i] - number(w, i)) * share


@compiled
def follow_rows(average: Array, w: Array, rows: Rows, share: Scalar) -> None:
    """`follow` on the named rows."""
    for i in range(rows.size):
        prefetch(average, rows, i)
        prefetch(w, rows, i)
        r = rows[i]
        for j in range(w.shape[1]):
            average[r, j] -= (average[r, j] - entry(w, r, j)) * share
