"""Dense gradients of all of a shard, or of all shards: checked together, and laid into a run with few calls."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dps.client.recycled import MANY
from dps.transport.wire import Array
from dps.variables.layout import Gradient, split
from dps.variables.plan import FEW, Arena, Plan, ShardLayout

SMALL_NBYTES = 1 << 10
"""Arrays that are shorter, taken together, are joined as bytes before they are laid into a run: that takes half as long
as numpy takes for 16 numbers, and as long for 256."""
BLOCK_NBYTES = 1 << 16
"""So many bytes at a time, which are still in the cache then."""

_shape, _dtype = operator.attrgetter("shape"), operator.attrgetter("dtype")


class Whole(Mapping[int, Gradient]):
    """A dense gradient for each variable of a plan, by its index.

    `arrays` are the user's own, of the right shape and dtype; there may be strided ones among them. What is asked for
    by its index is contiguous."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = arrays

    def __getitem__(self, index: int) -> Array:
        array = self.arrays[index]
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.arrays)))

    def __len__(self) -> int:
        return len(self.arrays)


def fit(plan: Plan, leaves: Sequence[object]) -> bool:
    """Whether these are arrays of the shapes and dtypes of the variables, in their order."""
    if len(leaves) >= MANY:
        from dps.kernels.headers import are_like

        if are_like(leaves, plan.headers):
            return True
    return (
        operator.countOf(map(type, leaves), np.ndarray) == len(leaves)
        and tuple(map(_dtype, leaves)) == plan.dtypes
        and all(map(operator.eq, map(_shape, leaves), plan.shapes))
    )


def is_whole(layout: ShardLayout, gradients: Mapping[int, Gradient]) -> bool:
    """Whether every trained part of a shard has a dense gradient."""
    if isinstance(gradients, Whole):
        return True
    return set(map(type, map(gradients.get, layout.trained_variables))) <= {np.ndarray}


def are_many(gradients: Mapping[int, Gradient]) -> bool:
    """Whether these are looked at in the runs that they are gathered in: a call for each would cost more."""
    return isinstance(gradients, Whole) or (len(gradients) > FEW and set(map(type, gradients.values())) == {np.ndarray})


def gather(
    plan: Plan, layout: ShardLayout, gradients: Mapping[int, Gradient], run: Array, trained_only: bool = True
) -> None:
    """Copy dense gradients (or values) of all trained parts, or of all, into a shard's run (bytes)."""
    for arena, values in zip(layout.arenas, layout.flats(run), strict=True):
        if arena.optimizer is not None or not trained_only:
            _lay(_sources(plan, arena, gradients), values)


def gather_pieces(
    plan: Plan, layout: ShardLayout, gradients: Mapping[int, Gradient], run: Array, size: int
) -> Iterator[tuple[int, int]]:
    """`gather`, some `size` bytes at a time; the offset and the bytes of each range that is ready."""
    for arena, values in zip(layout.arenas, layout.flats(run), strict=True):
        if arena.optimizer is None:
            continue
        sources, starts, item = _sources(plan, arena, gradients), arena.bounds, arena.itemsize
        most, at, end = size // item, 0, arena.size
        while at < end:
            # The part that `at` lies in, and the first one of which not all fits.
            first, beyond = np.searchsorted(starts, [at, at + most], "right") - 1
            stop = int(starts[beyond]) if beyond > first else min(at + most, end)
            some = list(sources[first : max(beyond, first + 1)])
            begin = at - int(starts[first])
            if begin or beyond == first:
                some[0] = some[0].reshape(-1)[begin : begin + stop - at]
            _lay(some, values[at:stop])
            yield arena.offset + at * item, (stop - at) * item
            at = stop


def _sources(plan: Plan, arena: Arena, gradients: Mapping[int, Gradient]) -> Sequence[Array]:
    """The gradients of an arena's parts, as they lie."""
    if not plan.is_split:
        if isinstance(gradients, Whole):
            return arena.pick(gradients.arrays)
        return [gradients[part.variable] for part in arena.parts]  # type: ignore[misc]
    return [split(gradients[p.variable], p, len(plan.parts_of[p.variable])) for p in arena.parts]  # type: ignore[arg-type]


def _lay(arrays: Sequence[Array], out: Array) -> None:
    """Copy arrays one after the other to `out`, which is flat, of their dtype and as long as they are together."""
    if len(arrays) >= MANY:
        from dps.kernels.headers import lay

        if lay(arrays, out):
            return
    if len(arrays) > FEW and 0 < out.nbytes < SMALL_NBYTES * len(arrays):
        target, at, step = out.view(np.uint8), 0, max(1, BLOCK_NBYTES * len(arrays) // out.nbytes)
        try:
            for first in range(0, len(arrays), step):
                block = b"".join(arrays[first : first + step])  # type: ignore[arg-type]
                target[at : at + len(block)] = np.frombuffer(block, np.uint8)
                at += len(block)
        except (BufferError, TypeError, ValueError):
            pass  # strided ones cannot be joined
        else:
            return
    np.concatenate([array if array.ndim == 1 else array.reshape(-1) for array in arrays], out=out)
