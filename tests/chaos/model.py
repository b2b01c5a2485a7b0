"""The variables of a chaos run. Each worker changes elements of its own, so that the values count its pushes.

With SGD at learning rate 1 a dense push takes `DENSE` from each element of the worker's part, and a push of rows takes
`ROW`. Whole numbers of this size are exact in float32. A synchronous step divides a dense gradient by the number of
workers in it, and 6 by 1, 2 or 3 stays whole; it divides a row by the number of workers that touched this row: one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

DENSE, ROW = 6.0, 1.0
DENSE_NAMES, ROW_NAMES = ("dense0", "dense1"), ("rows0", "rows1")
"""Two of each, so that two ps tasks have one of each."""


def names(kind: str) -> list[str]:
    """The variables of a run whose pushes are "dense", "rows" or "both"."""
    return [*(DENSE_NAMES if kind != "rows" else ()), *(ROW_NAMES if kind != "dense" else ())]


def part(worker: int, workers: int, rows: int) -> slice:
    """The rows of a variable that belong to a worker."""
    return slice(worker * rows // workers, (worker + 1) * rows // workers)


def unit(name: str) -> float:
    """What one push takes from each element."""
    return DENSE if name in DENSE_NAMES else ROW


def initial(kind: str, rows: int) -> dict[str, Any]:
    """The variables at the start: zeros."""
    return {name: np.zeros(rows if name in DENSE_NAMES else (rows, 2), np.float32) for name in names(kind)}


def gradients(kind: str, rows: int, worker: int, workers: int) -> dict[str, Any]:
    """What this worker pushes each time."""
    import dps

    own = part(worker, workers, rows)
    made: dict[str, Any] = {}
    for name in names(kind):
        if name in DENSE_NAMES:
            made[name] = np.zeros(rows, np.float32)
            made[name][own] = DENSE
        else:
            numbers = np.arange(own.start, own.stop)
            made[name] = dps.Rows(numbers, np.full((len(numbers), 2), ROW, np.float32))
    return made


def ends(array: Any, worker: int, workers: int) -> tuple[float, float]:
    """The least and the greatest element of a worker's part."""
    own = array[part(worker, workers, len(array))]
    return float(own.min()), float(own.max())
