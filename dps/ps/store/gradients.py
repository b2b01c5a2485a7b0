"""Updates as a store applies them: gradients of all of a shard, of parts or of rows, and values to set."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dps.errors import NOT_FINITE
from dps.kernels import cpu, halves
from dps.process.record import record
from dps.transport.wire import Array
from dps.variables.plan import Arena


@record
class GradientSum:
    """Flat gradients of one arena or part whose sum, in this order, is divided by `divisor`. That is 1 for a sum, which
    it does not change, and their number for a mean."""

    arrays: tuple[Array, ...]
    divisor: int

    def array(self, out: Array | None = None) -> Array:
        """The result, in `out` or in new memory; for a single array, that array. The gradients are not changed."""
        if len(self.arrays) == 1:
            return self.arrays[0]
        total = out = np.empty_like(self.arrays[0]) if out is None else out
        cpu.add_divide(out, summed(self.arrays[:-1], total), self.arrays[-1], out.dtype.type(self.divisor))
        return out


def summed(arrays: tuple[Array, ...], out: Array) -> Array:
    """The sum of arrays in their order, in `out`; a single array is returned itself."""
    total = arrays[0]
    for array in arrays[1:]:
        cpu.add(out, total, array)
        total = out
    return total


class GradientPieces:
    """A flat gradient of one arena in the pieces in which it came. Its memory is freed while it is applied."""

    __slots__ = ("arrays",)

    def __init__(self, arrays: Iterable[Array]) -> None:
        self.arrays = deque(arrays)

    def array(self) -> Array:
        """All pieces, in new memory."""
        return np.concatenate(list(self.arrays))

    def taken(self, nbytes: int) -> Iterator[list[Array]]:
        """All pieces in turn, in groups of so many bytes and more. A group is freed when the next one is asked for."""
        group = list[Array]()
        while self.arrays:
            group.append(self.arrays.popleft())
            if not self.arrays or sum(array.nbytes for array in group) >= nbytes:
                yield group
                group = []


@record
class RowGradient:
    """The gradient of some rows of a part: distinct sorted rows (n,), values (n, dim). Of a part of a keyed table the
    rows are codes of keys, which become row numbers when the gradient is applied."""

    rows: Array
    values: Array
    pushes: Array | None = None
    """How many pushes have each row, int64 (n,); None: one."""


@dataclass(slots=True)
class Gradient:
    """The update that one push, or several together, make to a shard. Either `run` (per arena a flat gradient of all
    of it) or `parts`; then `values`, which parts are set to.

    The gradient of an arena on a GPU may be there, too: an array of `dps.kernels.device`.
    """

    run: Sequence[Array | GradientPieces | GradientSum] | None
    parts: Mapping[int, Array | RowGradient]
    borrowed: bool = False
    """Whether it lies in the session's own memory, which does not change until the push is answered."""
    checked: bool = True
    """Whether it was checked for NaN and infinity."""
    values: Mapping[int, Array] | None = None
    """The values to set, by the index of their part, checked; None: no values."""

    @property
    def is_empty(self) -> bool:
        return self.run is None and not self.parts and not self.values

    def flats(self) -> list[Array]:
        """The arrays of `run`, if it came neither in pieces nor as a sum."""
        return [array for array in self.run or () if not isinstance(array, GradientPieces | GradientSum)]

    def own(self) -> Gradient:
        """The same gradient in memory of its own, so that the session's memory is free."""
        if not self.borrowed:
            return self
        run = None if self.run is None else [array.copy() for array in self.flats()]
        parts = {index: _copied(gradient) for index, gradient in self.parts.items()}
        values = self.values and {index: value.copy() for index, value in self.values.items()}
        return Gradient(run, parts, checked=self.checked, values=values)


def _copied(gradient: Array | RowGradient) -> Array | RowGradient:
    if isinstance(gradient, RowGradient):
        return RowGradient(gradient.rows, gradient.values.copy(), gradient.pushes)
    return gradient.copy()


def is_finite(array: Array) -> bool:
    """Whether no element is NaN or infinite; integers always are finite."""
    if array.dtype.char in "fd":
        return bool(cpu.all_finite(array if array.ndim == 1 else array.reshape(-1)))
    return not halves.is_half(array.dtype) or halves.all_finite(array)


def not_finite(arena: Arena, gradient: Array, start: int) -> str:
    """A sentence that names the part with NaN or infinite values in a gradient of an arena from element `start` on; ""
    if there is none."""
    if is_finite(gradient):
        return ""
    first = start + int(np.flatnonzero(~np.isfinite(gradient))[0])
    for part, begin in zip(arena.parts, arena.starts, strict=True):
        if begin <= first < begin + part.size:
            return f"the gradient of {part.name} {NOT_FINITE} (first at element {first - begin})"
    return ""


def size_of(gradient: Array | GradientSum) -> int:
    """How many elements the gradient is for."""
    return gradient.arrays[0].size if isinstance(gradient, GradientSum) else gradient.size


def cut(gradient: Array | GradientSum, start: int, stop: int) -> Array | GradientSum:
    """Elements `start` to `stop`, as views."""
    if isinstance(gradient, GradientSum):
        return GradientSum(tuple(array[start:stop] for array in gradient.arrays), gradient.divisor)
    return gradient[start:stop]
