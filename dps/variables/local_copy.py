"""Local mode: the copy of all variables that a worker trains between two rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dps.training.optimizers import from_wire
from dps.transport.wire import Array
from dps.variables.copies import HostCopy, ready
from dps.variables.layout import Gradient, row_numbers
from dps.variables.packed import PackedGradient
from dps.variables.plan import Plan
from dps.variables.tree import Nesting, leaves, list_names, nested


class LocalCopy:
    """A worker's own values of all variables, and the slots of its optimizers.

    It begins each round with the common values and keeps its slots. `steps` counts its updates in the round.
    """

    def __init__(self, plan: Plan, membership: object) -> None:
        """`membership`: of the session that it is made for; one that joins again makes another copy."""
        self._plan, self.membership = plan, membership
        self._copies: list[HostCopy] = []
        self._common: dict[str, Array] = {}
        self._nesting: Nesting
        self._updates = [0] * len(plan.variables)
        self.steps = 0
        self.is_common = False
        """Whether its values are still those that the round began with."""
        self.ended = True
        """Whether the round has ended, so that `begin_round` comes next."""

    def begin_round(self, common: Any, rounds: int) -> str:
        """Begin a round, after `rounds` others, from these nested values, which nobody changes any more. Returns what
        people are to know of slots that begin as new though the run has made rounds; "" for nothing."""
        begun: list[str] = []
        self._nesting, self._common = Nesting(common), dict(leaves(common))
        values = [self._common[spec.name] for spec in self._plan.variables]
        if not self._copies:
            optimizers = [
                None if spec.optimizer is None else from_wire(spec.optimizer) for spec in self._plan.variables
            ]
            self._copies = [HostCopy(*pair) for pair in zip(values, optimizers, strict=True)]
            begun = sorted({name for copy in self._copies for name in copy.slots()})
        for copy, value in zip(self._copies, values, strict=True):
            copy.assign(value)
        self.steps, self.is_common, self.ended = 0, True, False
        if not (begun and rounds):
            return ""
        return (
            f"the slots of its own copy ({', '.join(begun)}) begin as new at round {rounds}: in local mode each worker "
            "has its own, and no checkpoint holds them"
        )

    def apply(self, gradients: Mapping[int, Gradient], step: int) -> None:
        """Update the values once. `gradients`: checked, by variable index. `step`: how many steps were made before this
        one, for schedules."""
        for index, gradient in gradients.items():
            assert not isinstance(gradient, PackedGradient), "what is pushed is packed, after the round"
            self._updates[index] += 1
            self._copies[index].update(ready(gradient), self._updates[index], step)
        self.steps, self.is_common = self.steps + 1, False

    def assign(self, values: Any) -> None:
        """Set nested values, which are checked."""
        for name, value in leaves(values):
            if value is not None:
                self._copies[self._plan.by_name[name]].assign(np.asarray(value))
                self.is_common = False

    def differences(self) -> dict[int, Array]:
        """How far each trained variable has moved in this round, as a gradient: the common value less the own one."""
        return {
            index: np.asarray(self._common[spec.name] - self._copies[index].host())
            for index, spec in enumerate(self._plan.variables)
            if spec.optimizer is not None
        }

    # -- reading ------------------------------------------------------------------------------------------------

    def values(self, names: Sequence[str] | None, still: bool = False) -> Any:
        """The values as `Session.pull` nests them. `still`: read-only, in the copy's own memory. ValueError for names
        that no variable has."""
        nesting = self._nesting if names is None else Nesting(nested(list_names(names)))
        found = [self._copies[self._index(path)].host() for path in nesting.paths]
        return nesting.build(found if still else [value.copy() for value in found])

    def lookup(self, name: str | Mapping[str, Any], rows: Any, out: Any) -> Any:
        """As `Session.lookup`, of the own values. The arguments are checked."""
        if not isinstance(name, str):
            return {each: self.lookup(each, of, (out or {}).get(each)) for each, of in name.items()}
        found = self._copies[self._index(name)].host()[row_numbers(rows, "rows")]
        if out is None:
            return found
        out[...] = found
        return out

    def _index(self, name: str) -> int:
        if name not in self._plan.by_name:
            raise ValueError(f"no variables {[name]}; there are {list(self._plan.by_name)[:10]}")
        return self._plan.by_name[name]
