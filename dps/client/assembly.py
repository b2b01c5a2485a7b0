"""Converts between a user's nested arrays and the parts of a plan."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dps.transport.wire import MAX_FRAMES, Array
from dps.variables.layout import Gradient, check_gradients, check_is_nested, split
from dps.variables.plan import Arena, Plan, ShardLayout, picker
from dps.variables.tree import Nesting, leaves

_view = np.ndarray.view
_described = operator.attrgetter("__class__", "dtype", "shape")


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


def is_whole(layout: ShardLayout, gradients: Mapping[int, Gradient]) -> bool:
    """Whether each trained part of a shard has a dense gradient, and no keyed table has one; False if there is no such
    part."""
    if isinstance(gradients, Whole):
        return bool(layout.trained)
    if layout.tables and any(table.variable in gradients for table in layout.tables):
        return False
    return bool(layout.trained) and set(map(type, map(gradients.get, layout.trained_variables))) <= {np.ndarray}


def gather(
    plan: Plan, layout: ShardLayout, gradients: Mapping[int, Gradient], flats: Sequence[Array],
    trained_only: bool = True,
) -> None:  # fmt: skip
    """Copy dense gradients of all trained parts (or values of all parts) into a shard's arenas, `flats` of a run."""
    arenas = zip(layout.arenas, flats, strict=True)
    fill(plan, [found for found in arenas if not trained_only or found[0].optimizer is not None], gradients)


def fill(plan: Plan, arenas: Sequence[tuple[Arena, Array]], gradients: Mapping[int, Gradient]) -> None:
    """Copy dense gradients (or values) of all parts of these arenas, each into a flat array."""
    arrays = gradients.arrays if isinstance(gradients, Whole) and not plan.is_split else None
    for arena, out in arenas:
        found = _sources(plan, arena, gradients) if arrays is None else arena.pick(arrays)
        if len(found) == 1:
            out[...] = found[0].reshape(-1)
        else:
            np.concatenate([array if array.ndim == 1 else array.reshape(-1) for array in found], out=out)


def pieces_of_parts(
    plan: Plan, layout: ShardLayout, values: Mapping[str, Array], most: int
) -> Iterator[tuple[list[int], tuple[Array, ...]]]:
    """The parts of a shard of which there are values, as offsets in its run and bytes: about `most` bytes each time,
    at least one element, and no more pieces than a message has frames."""
    offsets, arrays, nbytes = list[int](), list[Array](), 0
    for arena in layout.arenas:
        longest = max(1, most // arena.itemsize) * arena.itemsize
        for part, start in zip(arena.parts, arena.starts, strict=True):
            value = values.get(plan.variables[part.variable].name)
            if value is None or not part.size:
                continue
            whole = np.ascontiguousarray(split(value, part, len(plan.parts_of[part.variable])))
            data, at = whole.reshape(-1).view(np.uint8), arena.offset + start * arena.itemsize
            for begin in range(0, len(data), longest):
                piece = data[begin : begin + longest]
                if offsets and (nbytes + len(piece) > most or len(offsets) == MAX_FRAMES):
                    yield offsets, tuple(arrays)
                    offsets, arrays, nbytes = [], [], 0
                offsets.append(at + begin)
                arrays.append(piece)
                nbytes += len(piece)
    if offsets:
        yield offsets, tuple(arrays)


def _sources(plan: Plan, arena: Arena, gradients: Mapping[int, Gradient]) -> Sequence[Array]:
    """The gradients of an arena's parts, in the order of the run."""
    if not plan.is_split:
        return [gradients[part.variable] for part in arena.parts]  # type: ignore[misc]
    return [split(gradients[p.variable], p, len(plan.parts_of[p.variable])) for p in arena.parts]  # type: ignore[arg-type]


class Assembly:
    """The nesting of a plan's variables, and the places of their parts among those of all shards."""

    def __init__(self, plan: Plan, nesting: Nesting) -> None:
        """`nesting` has a leaf for each variable, and for each keyed table, under its name."""
        self.plan, self._nesting, self.named = plan, nesting, nesting.named
        paths = nesting.paths
        self._filled: list[int] = []
        """With keyed tables: the places of the leaves that are variables."""
        self._build: Callable[[Sequence[Any]], Any] = nesting.build
        """Makes the nesting of a sequence of all variables."""
        if plan.tables:
            self._build = self._build_some
            self._filled = [at for at, path in enumerate(paths) if path not in plan.tables_by_name]
            paths = [paths[at] for at in self._filled]
        self.names = paths
        """The leaves of the nesting that are variables."""
        names = [spec.name for spec in plan.variables]
        self._in_order = plan.all_trained and nesting.paths == names and not plan.tables
        """Whether the leaves of the nesting are all variables in the order of the plan, and all are trained."""
        variables = range(len(names)) if paths == names else [plan.by_name[path] for path in paths]
        place = {index: at for at, index in enumerate(itertools.chain(*[s.indices for s in plan.layouts.values()]))}
        self._places: list[tuple[int, ...]] = []
        """Of a plan with variables that have several parts."""
        self._pick: Callable[[Sequence[Array]], Sequence[Array]] | None = None
        if plan.is_split:
            self._places = [tuple([place[p.index] for p in plan.parts_of[variable]]) for variable in variables]
        else:  # the only part of a variable has its index
            self._pick = picker(list(map(place.__getitem__, variables)))

    def values(self, parts: Sequence[Array], join: Callable[[list[Array]], Array] | None = None) -> Any:
        """The values in the user's nesting. `parts`: those of all shards, in the order of their runs. `join` makes one
        array of the parts of a variable that has several."""
        if self._pick is not None:
            return self._build(self._pick(parts))
        join = join or _joined
        made = {at: parts[at[0]] if len(at) == 1 else join([parts[one] for one in at]) for at in set(self._places)}
        return self._build(list(map(made.__getitem__, self._places)))

    def _build_some(self, found: Sequence[Any]) -> Any:
        """The nesting with these variables, and None in place of keyed tables."""
        every: list[Any] = [None] * len(self._nesting.paths)
        for at, value in zip(self._filled, found, strict=True):
            every[at] = value
        return self._nesting.build(every)

    def views(self, parts: Sequence[Array]) -> Any:
        """As `values`, in views of the parts: what is done to their shapes is not seen in the parts."""
        views, pick = list(map(_view, parts)), self._pick
        return self.values(views) if pick is None else self._build(pick(views))

    def gradients(self, tree: Any) -> Mapping[int, Gradient]:
        """A user's nested gradients by variable index, checked as in `check_gradients`."""
        arrays: list[Any] = []
        if self._in_order and self._nesting.collect(tree, arrays):
            try:
                if tuple(map(_described, arrays)) == self.plan.described:
                    return Whole(arrays)
            except AttributeError:  # not even an array
                pass
        check_is_nested(self.plan, tree)
        return check_gradients(self.plan, leaves(tree))


def _joined(parts: list[Array]) -> Array:
    made: Array = np.concatenate(parts)
    made.flags.writeable = parts[0].flags.writeable
    return made
