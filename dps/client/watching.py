"""Warns of two mistakes, once each: values pushed instead of gradients, and pulls that undo what nobody assigned."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dps.errors import DpsError
from dps.telemetry import log
from dps.transport.dtypes import is_float
from dps.transport.wire import Array
from dps.variables.layout import Gradient
from dps.variables.plan import Plan
from dps.variables.tree import Variable, leaves, to_array

PUSHES = 2
"""How many pushes of a session are checked."""
PULLS = 5
"""How many pulls into the caller's arrays are checked, after the first push."""
EARLIER = 20
"""How many pulls are checked before that."""
VARIABLES = 100
"""How many variables are checked."""
SAMPLED = 64
"""How many elements of each are remembered: programs copy pulled values to a model and drop the arrays."""


class Watch:
    """The watch over one session that trains. It keeps no array alive."""

    def __init__(self, name: str, params: Any) -> None:
        self._name = name
        self._seen: dict[str, tuple[Callable[[], Any], Array]] = {}
        """The session's values, as it brought them or pulled them last, with some of their elements."""
        self._pushes = self._pulls = self._earlier = 0
        self._with_gradient: set[int] = set()
        self.pulled(params)

    def pulled(self, tree: Any) -> None:
        """These are the current values."""
        if self._earlier == EARLIER:
            return
        self._earlier += 1
        for number, (name, leaf) in enumerate(leaves(tree)):
            if number == VARIABLES:
                break
            leaf = leaf.value if isinstance(leaf, Variable) else leaf
            if isinstance(leaf, np.ndarray) or hasattr(leaf, "detach"):
                self._seen[name] = weakref.ref(leaf), _sample(leaf)

    def pushed(self, plan: Plan, gradients: Mapping[int, Gradient]) -> bool:
        """Warn if all gradients are the values themselves, which are not all zero. Returns whether this was the last
        check."""
        self._pushes += 1
        self._with_gradient.update(gradients)
        found = [(plan.variables[index].name, gradients[index]) for index in [*gradients][:VARIABLES]]
        values = [g for name, g in found if isinstance(g, np.ndarray) and self._is_value(name, g)]
        if values and len(values) == len(found) and any(np.any(_sample(value)) for value in values):
            self._pushes = PUSHES
            log.warning(
                "%s: the arrays that were pushed for %s are the values themselves; push wants gradients, which the ps "
                "subtract times the learning rate; session.assign({...}) sets values",
                self._name, ", ".join(name for name, _ in found[:3]) + (", ..." if len(found) > 3 else ""),
            )  # fmt: skip
        return self._pushes >= PUSHES

    def _is_value(self, name: str, gradient: Array) -> bool:
        seen, sample = self._seen.get(name, (lambda: None, None))
        value = seen()
        if value is None:
            return sample is not None and np.array_equal(sample, _sample(gradient))
        try:
            return value is gradient or np.array_equal(to_array(value, name), gradient)
        except (TypeError, DpsError):
            return False

    def replaces(self, plan: Plan, name: str, here: Array, value: Array) -> None:
        """A pull is about to write a value to the caller's array. Warn if it is a different one, of a variable of
        floats that gets no gradient."""
        if self._pushes == 0 or self._pulls >= PULLS or plan.by_name[name] in self._with_gradient:
            return
        if is_float(value.dtype) and not np.array_equal(here, value, equal_nan=True):
            self._pulls = PULLS
            log.warning(
                "%s: pull(out=) has replaced the value of %s, which gets no gradient, by that of the ps; what programs "
                "compute themselves, as batch normalisation does, reaches the ps by session.assign({...})",
                self._name, name,
            )  # fmt: skip

    def filled(self) -> bool:
        """A pull has written all values to the caller's arrays. Returns whether this was the last check."""
        self._pulls += self._pushes > 0
        return self._pulls >= PULLS


def _sample(leaf: Any) -> Array:
    """Some elements of an array or a tensor."""
    flat = leaf.flat if isinstance(leaf, np.ndarray) else leaf.detach().reshape(-1)
    found = flat[:: max(1, len(flat) // SAMPLED)]
    return found if isinstance(leaf, np.ndarray) else to_array(found, "")
