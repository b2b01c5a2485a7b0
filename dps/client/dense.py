"""Dense gradients of a whole shard, or of all variables: checks them together, and copies them into a run."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dps.transport.wire import Array
from dps.variables.layout import Gradient, split
from dps.variables.plan import Arena, Plan, ShardLayout

_shape, _dtype = operator.attrgetter("shape"), operator.attrgetter("dtype")


class Whole(Mapping[int, Gradient]):
    """A dense gradient for each variable of a plan, by index.

    `arrays` are the user's own, of the right shapes and dtypes; some may be strided. An item is contiguous."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = arrays

    def get(self, index: int, default: Any = None) -> Any:
        """The user's own array, which may be strided."""
        return self.arrays[index]

    def __getitem__(self, index: int) -> Array:
        array = self.arrays[index]
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.arrays)))

    def __len__(self) -> int:
        return len(self.arrays)


def fit(plan: Plan, leaves: Sequence[object]) -> bool:
    """Whether these are arrays with the shapes and dtypes of the variables, in the order of the plan."""
    return (
        operator.countOf(map(type, leaves), np.ndarray) == len(leaves)
        and tuple(map(_dtype, leaves)) == plan.dtypes
        and all(map(operator.eq, map(_shape, leaves), plan.shapes))
    )


def is_whole(layout: ShardLayout, gradients: Mapping[int, Gradient]) -> bool:
    """Whether each trained part of a shard has a dense gradient; False if there is no such part."""
    if isinstance(gradients, Whole):
        return bool(layout.trained)
    return bool(layout.trained) and set(map(type, map(gradients.get, layout.trained_variables))) <= {np.ndarray}


def gather(
    plan: Plan, layout: ShardLayout, gradients: Mapping[int, Gradient], run: Array, trained_only: bool = True
) -> None:
    """Copy dense gradients of all trained parts (or values of all parts) into a shard's run of bytes."""
    for arena, values in zip(layout.arenas, layout.flats(run), strict=True):
        if arena.optimizer is not None or not trained_only:
            _lay(_sources(plan, arena, gradients), values)


def _sources(plan: Plan, arena: Arena, gradients: Mapping[int, Gradient]) -> Sequence[Array]:
    """The gradients of an arena's parts, in the order of the run."""
    if not plan.is_split:
        if isinstance(gradients, Whole):
            return arena.pick(gradients.arrays)
        return [gradients[part.variable] for part in arena.parts]  # type: ignore[misc]
    return [split(gradients[p.variable], p, len(plan.parts_of[p.variable])) for p in arena.parts]  # type: ignore[arg-type]


def _lay(arrays: Sequence[Array], out: Array) -> None:
    """Copy arrays one after the other to `out`: flat, of their dtype, and as long as all of them."""
    np.concatenate([array if array.ndim == 1 else array.reshape(-1) for array in arrays], out=out)
