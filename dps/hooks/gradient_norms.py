"""Measures the norms of the gradients that a session pushes, for the hooks that ask for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from dps.hooks.scalars import TOTALS
from dps.variables.tree import Rows

SHARE = 0.02
"""The largest share of a loop's time that norms may take. Of gradients so large that the norm of each takes more, some
have none."""


class GradientWatch(Protocol):
    """Looks at what a session pushes and pulls."""

    def pulled(self, tree: Any) -> None:
        """These are the current values."""

    def pushed(self, plan: Any, gradients: Mapping[int, Any]) -> bool:
        """These gradients, by variable index, are pushed. Returns whether nothing more is to be seen."""


class GradientNorms:
    """Gives a function the norm of each push's gradients. Belongs to one session, whose thread calls it."""

    def __init__(
        self, function: Callable[[float], None], now: Callable[[], float], before: GradientWatch | None = None
    ) -> None:
        """`now`: a clock; `before`: another watch, which sees everything first."""
        self._function, self._now, self._before = function, now, before
        self._next = -math.inf

    def pulled(self, tree: Any) -> None:
        """As of GradientWatch."""
        if self._before is not None:
            self._before.pulled(tree)

    def pushed(self, plan: Any, gradients: Mapping[int, Any]) -> bool:
        """As of GradientWatch. It sees all pushes to the end."""
        if self._before is not None and self._before.pushed(plan, gradients):
            self._before = None
        totals = plan.by_name.get(TOTALS)
        self.measure([gradient for index, gradient in gradients.items() if index != totals])
        return False

    def measure(self, gradients: Collection[Any]) -> None:
        """Give the function the norm of these gradients, unless the norm before took so long that it is too early."""
        began = self._now()
        if began < self._next or not gradients:
            return
        self._function(norm(gradients))
        ended = self._now()
        self._next = ended + (ended - began) / SHARE


def norm(gradients: Iterable[Any]) -> float:
    """The Euclidean norm of all elements of some arrays and Rows: sqrt(sum of g**2). Of several Rows for the same row
    each counts for itself. Half precision is summed in float32, others in their own."""
    total = 0.0
    with np.errstate(all="ignore"):  # one that is not finite is for the ps to refuse
        for gradient in gradients:
            flat = np.asarray(gradient.values if isinstance(gradient, Rows) else gradient).reshape(-1)
            if flat.dtype not in (np.float32, np.float64):
                flat = flat.astype(np.float32)
            total += float(np.dot(flat, flat))
    return math.sqrt(total) if total >= 0 else math.nan
