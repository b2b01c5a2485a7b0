"""Converts between a user's nested arrays and the parts of a plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dps.client.dense import Whole, fit
from dps.transport.wire import Array
from dps.variables.layout import Gradient, check_gradients, check_is_nested
from dps.variables.plan import Plan, picker
from dps.variables.tree import Nesting, leaves


class Assembly:
    """The nesting of a plan's variables, and the places of their parts among those of all shards."""

    def __init__(self, plan: Plan, nesting: Nesting) -> None:
        """`nesting` has a leaf for each variable, under its name."""
        self.plan, self._nesting = plan, nesting
        names = [spec.name for spec in plan.variables]
        self._in_order = plan.all_trained and nesting.paths == names
        """Whether the leaves of the nesting are all variables in the order of the plan, and all are trained."""
        variables = range(len(names)) if nesting.paths == names else [plan.by_name[path] for path in nesting.paths]
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
            return self._nesting.build(self._pick(parts))
        join = join or _joined
        made = {at: parts[at[0]] if len(at) == 1 else join([parts[one] for one in at]) for at in set(self._places)}
        return self._nesting.build(list(map(made.__getitem__, self._places)))

    def still(self, memories: Sequence[Array]) -> Any:
        """Read-only values in the user's nesting, in the memory of all arenas of all shards."""
        found, at = [], 0
        for layout in self.plan.layouts.values():
            found += layout.listed(memories[at : at + len(layout.arenas)])
            at += len(layout.arenas)
        return self.values(found)

    def gradients(self, tree: Any) -> Mapping[int, Gradient]:
        """A user's nested gradients by variable index, checked as in `check_gradients`."""
        arrays = self._nesting.leaves(tree) if self._in_order else None
        if arrays is not None and fit(self.plan, arrays):
            return Whole(arrays)
        check_is_nested(self.plan, tree)
        return check_gradients(self.plan, leaves(tree))


def _joined(parts: list[Array]) -> Array:
    made: Array = np.concatenate(parts)
    made.flags.writeable = parts[0].flags.writeable
    return made
