"""Delay compensation of asynchronous pushes: `g + lambda * g**2 * (w - w_pulled)` (Zheng et al., ICML 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dps.kernels.halves import widened
from dps.ps.shard import Shard
from dps.ps.store.gradients import Gradient, GradientPieces, GradientSum, RowGradient
from dps.transport.wire import Array


class Compensation:
    """The values that each session read last, of one shard, and gradients that are compensated by them."""

    def __init__(self, shard: Shard, factor: float) -> None:
        """`factor`: lambda. With 0 nothing is remembered."""
        self._shard, self._factor = shard, factor
        self._pulled: dict[int, list[Array]] = {}
        """Of each incarnation the values of all arenas."""

    def record_read(self, incarnation: int, parts: Sequence[int], rows: Any) -> None:
        """A session reads the current values, as of `Mode.record_read`."""
        if not self._factor:
            return
        shard, kept = self._shard, self._pulled.get(incarnation)
        if kept is None or not parts:
            self._pulled[incarnation] = [arena.values.copy() for arena in shard.store.arenas]
        else:
            for part in [shard.plan.parts[index] for index in parts]:
                arena, start = shard.layout.place[part.index]
                kept[arena][start : start + part.size].reshape(part.shape)[rows] = shard.store.part(part)[rows]

    def forget_session(self, incarnation: int) -> None:
        """A session has ended."""
        self._pulled.pop(incarnation, None)

    def compensate(self, update: Gradient, incarnation: int) -> Gradient:
        """The gradient of a session as if it had been computed with the current values, to first order: in new memory.
        Variables that are not trained, or have no elements, stay as they are."""
        pulled = self._pulled.get(incarnation)
        if pulled is None:
            return update
        if update.run is not None:
            runs = [
                self._compensate_array(_whole(g), memory.values, then)
                if memory.optimizer is not None and len(then)
                else g
                for g, memory, then in zip(update.run, self._shard.store.arenas, pulled, strict=True)
            ]
            return Gradient(runs, {}, values=update.values)
        parts: dict[int, Any] = {}
        for index, gradient in update.parts.items():
            part = self._shard.plan.parts[index]
            arena, start = self._shard.layout.place[index]
            now = self._shard.store.part(part)
            then = pulled[arena][start : start + part.size].reshape(part.shape)
            if isinstance(gradient, RowGradient):
                shape = (part.shape[0], part.row_size)
                table, old = now.reshape(shape), then.reshape(shape)
                values = self._compensate_array(gradient.values, table[gradient.rows], old[gradient.rows])
                parts[index] = RowGradient(gradient.rows, values)
            else:
                parts[index] = self._compensate_array(gradient.reshape(part.shape), now, then)
        return Gradient(None, parts, values=update.values)

    def _compensate_array(self, g: Array, now: Array, then: Array) -> Array:
        g, now, then = widened(g), widened(now), widened(then)
        result: Array = g + g.dtype.type(self._factor) * g * g * (now - then)
        return np.ascontiguousarray(result)


def _whole(gradient: Array | GradientPieces | GradientSum) -> Array:
    return gradient if isinstance(gradient, np.ndarray) else gradient.array()
