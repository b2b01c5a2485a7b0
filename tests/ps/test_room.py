"""Room in a keyed table for synchronous pushes: one that was staged has room in its step, whatever happens before."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import dps
from dps.ps.modes.combine import combined
from dps.ps.store.gradients import Gradient, RowGradient
from dps.ps.store.table import KeyedTable
from dps.variables.plan import ShardLayout
from dps.variables.tables import TableSpec, codes_of, parts_of_table

KEYS = st.lists(st.integers(0, 40), max_size=12, unique=True)
LAYOUT = ShardLayout((), 0)


class Steps(RuleBasedStateMachine):
    """Pushes are staged where they find room beside the others that are staged. A step is made of some of them."""

    @initialize(capacity=st.integers(5, 25), admit=st.integers(1, 3), expire=st.sampled_from([0, 1, 2, 4]))
    def begin(self, capacity: int, admit: int, expire: int) -> None:
        wire, init = dps.optim.SGD(1.0).to_wire(), dps.init.Zeros().to_wire()
        spec = TableSpec("t", 1, "<f8", capacity, wire, init, (0,), admit, expire)
        self.table, self.now = KeyedTable(parts_of_table(spec, 0, 0)[0]), 0
        self.staged: list[RowGradient] = []

    @rule(keys=KEYS)
    def stage(self, keys: list[int]) -> None:
        codes = np.sort(codes_of(np.array(keys, np.int64)))
        push = RowGradient(codes, np.ones((codes.size, 1)))
        if not self.table.full_text([push, *self.staged], self.now):
            self.staged.append(push)

    @precondition(lambda self: self.staged)
    @rule(data=st.data())
    def make_step(self, data: Any) -> None:
        chosen = data.draw(st.lists(st.sampled_from(range(len(self.staged))), min_size=1, unique=True))
        pushes = [self.staged[at] for at in sorted(chosen)]
        self.staged = [push for at, push in enumerate(self.staged) if at not in chosen]
        update = combined([Gradient(None, {0: push}) for push in pushes], LAYOUT, "sum").parts[0]
        assert isinstance(update, RowGradient)
        assert self.table.full_text([update], self.now) == ""
        self.table.apply(update, self.now + 1, 1.0, self.now)
        self.now += 1
        assert self.table.count == self.table._index.count <= self.table.part.rows

    @precondition(lambda self: self.staged)
    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        del self.staged[data.draw(st.sampled_from(range(len(self.staged))))]

    @rule(steps=st.integers(1, 3))
    def pass_steps(self, steps: int) -> None:
        """Steps that have none of the keys."""
        self.now += steps


Steps.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestSteps = Steps.TestCase
