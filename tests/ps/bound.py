"""One update by an optimizer whose kernels are bound for it alone; slots by name."""

from __future__ import annotations

from typing import Any

from dps.kernels.optimizers import BoundOptimizer
from dps.training.optimizers import Optimizer


def apply(optimizer: Optimizer, out: Any, w: Any, slots: Any, g: Any, t: int, step: int, scale: float = 1.0) -> None:
    bound = BoundOptimizer(optimizer, w.dtype)
    bound.apply(out, w, bound.ordered(slots), (g,), 0, t, step, scale)


def apply_rows(optimizer: Optimizer, w: Any, slots: Any, rows: Any, g: Any, t: int, step: int) -> None:
    bound = BoundOptimizer(optimizer, w.dtype)
    bound.apply_rows(w, bound.ordered(slots), rows, g, t, step, 1.0)
