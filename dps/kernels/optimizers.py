"""From an optimizer's definition to the kernel call that applies it.

Nothing here holds state: the caller owns variables and slots, counts updates and steps, and may call from any thread
on arrays that no other thread writes. `t` is the number of this update of the variable, from 1 (Adam's bias
corrections); `step` is the global step before the update (schedules); `scale` multiplies the rate (staleness damping).

All arrays of one call have one dtype, float32 or float64, and are C-contiguous. The arithmetic is elementwise: the
bits of an element do not depend on where the run that it lies in begins or ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels import cpu
from dps.training.optimizers import Optimizer, optimizer_names
from dps.training.schedules import rate_at

Array: TypeAlias = npt.NDArray[Any]
Scalars: TypeAlias = tuple[float | None, ...]  # in double; a bool and None stay what they are


def initial_slots(optimizer: Optimizer, n: int, dtype: npt.DTypeLike, rows: int = 0) -> dict[str, Array]:
    """New slots for a variable of `n` elements: 1-D arrays by name, zeros but for initial accumulators.

    `rows`: how many rows the variable has, for slots that have an element for each.
    """
    start = getattr(optimizer, "initial_accumulator", 0.0)
    return {
        name: np.full(rows if name in optimizer.row_slots else n, start if "accumulator" in name else 0.0, dtype)
        for name in optimizer.slots
    }


class BoundOptimizer:
    """An optimizer with its kernels, for arrays of one dtype that are known to fit: nothing is checked here. A ps keeps
    one for each arena.

    `w`, `slots` (in the order of `ordered`) and `g` have one shape (n,); for row-wise optimizers (rows, dim), and slots
    (rows,). The new variable goes to `out`, which is `w`, or memory that does not overlap it; `w` is then left as it
    was.
    """

    def __init__(self, optimizer: Optimizer, dtype: npt.DTypeLike, kernels: ModuleType = cpu) -> None:
        """`kernels`: those of where the arrays are, `dps.kernels.cpu` or `dps.kernels.cuda`.

        Raises ValueError for an optimizer without kernels."""
        self.optimizer, self._number = optimizer, np.dtype(dtype).type
        self.counts = optimizer.counts_updates
        """Whether an update depends on `t`."""
        self.by_rows = bool(optimizer.row_slots)
        """Whether arrays are of shape (rows, dim) in dense updates, too, and slots of shape (rows,)."""
        self.fused: Callable[..., bool | None] | None = None
        """The pass over several gradients, or to another buffer."""
        if self.by_rows:
            name = f"{getattr(optimizer, 'name', '')}_rowwise"
            if not hasattr(kernels, name):
                wanted = (
                    "an optimizer with kernels for slots with one element per row; try one of Adagrad(rowwise=True)"
                )
                raise ValueError(f"got {optimizer!r}, wanted {wanted}")
            self._slots = optimizer.slots
            self._kernel, self._kernel_of_rows = getattr(kernels, name), getattr(kernels, f"{name}_rows")
        else:
            if optimizer.rule is Optimizer.rule:
                raise ValueError(f"got {optimizer!r}, wanted an optimizer with a rule; try one of {optimizer_names()}")
            passes = kernels.passes(optimizer.rule)
            if not set(optimizer.slots) <= set(passes.slots):
                raise ValueError(f"got the slots {optimizer.slots}, wanted those that the rule takes: {passes.slots}")
            self._slots, self._kernel, self._kernel_of_rows = passes.slots, passes.dense, passes.rows
            self.fused = passes.fused
        self._rate = optimizer.learning_rate
        self._scalars: tuple[tuple[float, int], list[Any]] = ((math.nan, 0), [])

    def ordered(self, slots: Mapping[str, Array]) -> list[Array | None]:
        """The slots as the kernels take them."""
        return [slots.get(name) for name in self._slots]

    def apply(
        self, out: Array, w: Array, slots: Sequence[Array | None], gs: tuple[Array, ...], n: int,
        t: int, step: int, scale: float,
    ) -> bool:  # fmt: skip
        """One dense update; slots change in place. Returns False if the pass found NaN or infinity in the gradient.
        Only the `fused` pass of an optimizer without slots looks for them.

        The gradient is the sum of `gs` divided by `n`; this takes an optimizer that is `fused`. With `n` 0 it is the
        only one of `gs`, and the plain kernel takes it."""
        scalars = self._of(t, step, scale)
        if not scalars:
            if out is not w:
                np.copyto(out, w)
        elif n and self.fused is not None:
            return self.fused(out, w, *slots, gs, self._number(n), *scalars) is not False
        elif self.by_rows:
            self._kernel(out, w, *slots, gs[0], *scalars, *self._dim(w))
        else:
            self._kernel(out, w, *slots, gs[0], *scalars)
        return True

    def apply_rows(
        self, w: Array, slots: Sequence[Array | None], rows: npt.NDArray[np.int64], g: Array,
        t: int, step: int, scale: float,
    ) -> None:  # fmt: skip
        """One sparse update in place: g[i] is the gradient of row rows[i]; other rows and their slots keep their bits.

        `w` and slots have shape (n, dim), `g` has (len(rows), dim); `rows` is in range and rises without repeats."""
        scalars = self._of(t, step, scale)
        if scalars:
            self._kernel_of_rows(w, *slots, rows, g, *scalars, *(self._dim(w) if self.by_rows else ()))

    def _dim(self, w: Array) -> tuple[Any, ...]:
        """The length of a row, for kernels that take a mean over it."""
        return (self._number(w.shape[1]),)

    def _of(self, t: int, step: int, scale: float) -> list[Any]:
        """The scalars of an update, in the arrays' dtype; none where nothing changes."""
        rate = self._rate
        lr = (rate if rate.__class__ is float else rate_at(rate, step)) * scale
        key, found = self._scalars
        if key[0] != lr or (self.counts and key[1] != t):
            found = _cast(self.optimizer.scalars(lr, t), self._number)
            self._scalars = (lr, t), found
        return found


def _cast(scalars: Scalars, dtype: Any) -> list[Any]:
    if any(scalar is True or scalar is False or scalar is None for scalar in scalars):
        return [scalar if scalar is None or isinstance(scalar, bool) else dtype(scalar) for scalar in scalars]
    return list(np.array(scalars, dtype))  # half the time of one after the other
