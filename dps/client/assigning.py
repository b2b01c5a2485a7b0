"""Values that a session assigns: checked and copied; in sync mode kept until they are part of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dps.client.loading import check_finite
from dps.transport.wire import Array
from dps.variables.layout import array_for, check_is_nested, index_of
from dps.variables.plan import Plan
from dps.variables.tree import Rows, leaves


def checked(plan: Plan, tree: Any, finite: bool) -> dict[int, Array]:
    """Nested values as copies, by variable index; a leaf that is None is no value.

    Raises ValueError for a name, a shape or a dtype that no variable has and, where `finite`, for NaN and infinity;
    TypeError for what is no array."""
    check_is_nested(plan, tree, "assign wants values")
    found: dict[int, Array] = {}
    for name, value in leaves(tree) if tree is not None else ():
        if value is None:
            continue
        index = index_of(plan, name, "value")
        if isinstance(value, Rows):
            raise TypeError(f"assign sets whole variables; got dps.Rows for {name}, wanted an array of all its rows")
        array = array_for(plan, index, value, "value")
        if finite:
            check_finite(f"the value of {name}", array)
        if index in found and not np.array_equal(found[index], array):
            raise ValueError(
                f"{plan.variables[index].name} and {name} are one variable (tied weights) and got two values"
            )
        found[index] = array.copy()
    return found


class Assigned:
    """The values that one session has assigned and that are not part of a step yet, by variable index."""

    def __init__(self) -> None:
        self.waiting: Mapping[int, Array] = {}
        """The values that go with the next push."""
        self._newest: dict[int, Array] = {}

    def keep(self, values: Mapping[int, Array]) -> None:
        """Add values for the next push; the last value of a variable counts."""
        self._newest |= values
        self.waiting = {**self.waiting, **values}

    def sent(self) -> None:
        """A push that carries all of `waiting` was sent."""
        self.waiting = {}

    def settled(self, values: Mapping[int, Array], accepted: bool) -> None:
        """The push that carries these values has its result. If it was not accepted, they go with the next push, unless
        newer ones were assigned."""
        for index, value in values.items():
            if self._newest.get(index) is not value:
                continue
            if accepted:
                del self._newest[index]
            else:
                self.waiting = {**self.waiting, index: value}
