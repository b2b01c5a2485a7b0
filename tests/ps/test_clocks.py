"""Bounded staleness as a state machine: who may read, who is waited for, where a newcomer starts."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dps.ps.modes.clocks import Clocks


def two(bound: int) -> Clocks:
    clocks = Clocks(bound)
    clocks.set_members({11: "worker:0", 12: "worker:1"})
    return clocks


def test_lock_step_lets_nobody_read_ahead() -> None:
    clocks = two(0)
    assert clocks.may_read(11)
    clocks.record_pushes(11, 1)
    assert not clocks.may_read(11) and clocks.may_read(12) and clocks.slowest() == ["worker:1"]
    clocks.record_pushes(12, 1)
    assert clocks.may_read(11) and clocks.slowest() == ["worker:0", "worker:1"]


def test_a_worker_may_be_exactly_the_bound_ahead() -> None:
    clocks = two(2)
    clocks.record_pushes(11, 2)
    assert clocks.may_read(11)
    clocks.record_pushes(11, 3)
    assert not clocks.may_read(11) and clocks.lowest() == 0


def test_a_clock_never_falls() -> None:
    clocks = two(0)
    clocks.record_pushes(11, 3)
    clocks.record_pushes(11, 1)
    clocks.record_pushes(12, 2)
    assert not clocks.may_read(11)


def test_who_joins_starts_at_the_lowest_clock_and_counts_from_there() -> None:
    clocks = two(1)
    clocks.record_pushes(11, 5)
    clocks.record_pushes(12, 4)
    clocks.set_members({11: "worker:0", 12: "worker:1", 13: "worker:2"})
    assert clocks.lowest() == 4 and clocks.slowest() == ["worker:1", "worker:2"] and clocks.may_read(11)
    clocks.record_pushes(12, 5)
    clocks.record_pushes(11, 6)
    assert not clocks.may_read(11)
    clocks.record_pushes(13, 1)  # its first push
    assert clocks.may_read(11) and clocks.lowest() == 5


def test_who_leaves_no_longer_counts() -> None:
    clocks = two(0)
    clocks.record_pushes(11, 9)
    clocks.set_members({11: "worker:0"})
    assert clocks.may_read(11) and clocks.lowest() == 9


def test_a_session_that_comes_back_has_a_new_incarnation_and_starts_at_the_lowest() -> None:
    clocks = two(0)
    clocks.record_pushes(11, 3)
    clocks.record_pushes(12, 3)
    clocks.set_members({11: "worker:0", 14: "worker:1"})
    assert clocks.may_read(14) and clocks.may_read(11) and clocks.lowest() == 3


def test_readers_that_are_no_workers_always_may() -> None:
    clocks = two(0)
    clocks.record_pushes(99, 50)
    assert clocks.may_read(99) and Clocks(0).may_read(1)


class AnyOrder(RuleBasedStateMachine):
    """Against a model that counts in plain numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks, self.bound = Clocks(2), 2
        self.model: dict[int, int] = {}
        self.said: dict[int, int] = {}
        self.next = 1

    @rule()
    def join(self) -> None:
        self.model[self.next] = min(self.model.values(), default=0)
        self.said[self.next] = 0
        self.next += 1
        self._tell()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        del self.model[data.draw(st.sampled_from(sorted(self.model)))]
        self._tell()

    @precondition(lambda self: self.model)
    @rule(data=st.data(), late=st.integers(0, 2))
    def push(self, data: st.DataObject, late: int) -> None:
        who = data.draw(st.sampled_from(sorted(self.model)))
        self.said[who] += 1
        self.model[who] += 1
        self.clocks.record_pushes(who, self.said[who])
        self.clocks.record_pushes(who, max(0, self.said[who] - late))  # an older message comes after

    def _tell(self) -> None:
        self.clocks.set_members({i: f"worker:{i}" for i in self.model})

    @invariant()
    def reads_are_within_the_bound_and_the_slowest_may_always_read(self) -> None:
        lowest = min(self.model.values(), default=0)
        assert self.clocks.lowest() == lowest
        for who, clock in self.model.items():
            assert self.clocks.may_read(who) == (clock - lowest <= self.bound)
        assert sorted(self.clocks.slowest()) == sorted(f"worker:{i}" for i, c in self.model.items() if c == lowest)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=25)


def test_who_kept_a_reader_waiting_until_its_deadline_does_not_count_until_it_goes_on() -> None:
    clocks = Clocks(1)
    clocks.set_members({1: "worker:0", 2: "worker:1", 3: "worker:2"})
    clocks.record_pushes(1, 3)
    clocks.record_pushes(2, 2)
    assert not clocks.may_read(1)
    assert clocks.drop_late(1) == ["worker:2"]
    assert clocks.may_read(1) and clocks.may_read(3)
    clocks.record_pushes(3, 1)
    assert not clocks.may_read(1) and clocks.slowest() == ["worker:2"]
    assert clocks.drop_late(2) == []
