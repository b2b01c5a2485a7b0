"""Combines the pushes of a step, in the order of (task, incarnation, push number)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dps.kernels import rows as row_kernels
from dps.kernels.halves import widened
from dps.ps.intake.intake import Staged
from dps.ps.store.gradients import Gradient, GradientSum, RowGradient
from dps.transport.wire import Array
from dps.variables.plan import ShardLayout


def combined(gradients: Sequence[Gradient], layout: ShardLayout, reduction: str = "mean") -> Gradient:
    """Make one gradient of those of all pushes of a step, in their order. They are not changed, because their memory
    may be the sessions' own. For a "mean" a variable is divided by the number of pushes that have a gradient for it,
    and a sparse row by the number of pushes that have it. A "sum" is not divided. If all gradients are runs nothing is
    computed here: the pass that applies them sums. The result counts as checked for NaN and infinity.
    """
    gradients = [gradient for gradient in gradients if gradient.run is not None or gradient.parts]
    mean = reduction == "mean"
    if gradients and all(gradient.run is not None for gradient in gradients):
        return combined_runs([gradient.flats() for gradient in gradients], mean)
    parts: dict[int, list[Array | RowGradient]] = {}
    for gradient in gradients:
        for index, of_part in _parts(gradient, layout).items():
            parts.setdefault(index, []).append(_wide(of_part))
    return Gradient(None, {index: _part(parts[index], mean) for index in sorted(parts)})


def combined_runs(runs: Sequence[Sequence[Array]], mean: bool) -> Gradient:
    """Make one gradient of the runs of all pushes of a step, in their order: nothing is computed here. A run is an
    array for each arena. `mean`: the sum is divided by their number."""
    if len(runs) == 1:
        return Gradient(runs[0], {})
    divisor = len(runs) if mean else 1
    return Gradient([GradientSum(arrays, divisor) for arrays in zip(*runs, strict=True)], {})


def assigned(pushes: Sequence[Staged]) -> dict[int, Array]:
    """The values that the pushes of a step, in their order, set parts to: the last one of the lowest task. All ps make
    a step of the same pushes, so the parts of one variable get the values of one push."""
    found: dict[int, tuple[int, Array]] = {}
    for staged in pushes:
        for index, value in (staged.sound().values or {}).items():
            if index not in found or found[index][0] == staged.push.task:
                found[index] = staged.push.task, value
    return {index: value for index, (_, value) in found.items()}


def _wide(gradient: Array | RowGradient) -> Array | RowGradient:
    """Halves are summed in float32."""
    if isinstance(gradient, RowGradient):
        return RowGradient(gradient.rows, widened(gradient.values), gradient.pushes)
    return widened(gradient)


def _parts(gradient: Gradient, layout: ShardLayout) -> Mapping[int, Array | RowGradient]:
    if gradient.run is None:
        return gradient.parts
    arrays = gradient.flats()
    return {
        part.index: arrays[a][start : start + part.size]
        for a, arena in enumerate(layout.arenas)
        if arena.optimizer is not None
        for part, start in zip(arena.parts, arena.starts, strict=True)
    }


def _part(gradients: list[Array | RowGradient], mean: bool) -> Array | RowGradient:
    rows = [g for g in gradients if isinstance(g, RowGradient)]
    if not rows:
        flat = [g.reshape(-1) for g in gradients if not isinstance(g, RowGradient)]
        return GradientSum(tuple(flat), len(flat) if mean else 1).array()
    if len(rows) == len(gradients):
        unique, sums, counts = row_kernels.sum_duplicate_rows(
            np.concatenate([g.rows for g in rows]), np.concatenate([g.values for g in rows])
        )
        if mean:
            sums /= counts.astype(sums.dtype)[:, None]
        return RowGradient(unique, sums, counts)
    return _dense_part(gradients, mean)


def _dense_part(gradients: list[Array | RowGradient], mean: bool) -> Array:
    """Some pushes have all of the variable, some only rows: for a mean every row is divided by its own count."""
    dense = next(g for g in gradients if not isinstance(g, RowGradient))
    dim = next(g.values.shape[1] for g in gradients if isinstance(g, RowGradient))
    total = np.zeros((dense.size // max(dim, 1), dim), dense.dtype)
    counts = np.zeros(len(total), dense.dtype)
    for gradient in gradients:
        if isinstance(gradient, RowGradient):
            total[gradient.rows] += gradient.values
            counts[gradient.rows] += 1
        else:
            total += gradient.reshape(total.shape)
            counts += 1
    if mean:
        total /= np.maximum(counts, 1)[:, None]
    return total.reshape(-1)
