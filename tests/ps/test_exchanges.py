"""Calls that all workers in sync make together, as lists of events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps.actors.answers import Waiting
from dps.errors import Aborted, ConfigError
from dps.messages.sessions import APART, FIRST, TRAINED, Exchange, Exchanged
from dps.ps.modes.exchanges import KEPT, Exchanges
from dps.ps.modes.quorum import Quorum, QuorumMember


class FromWorker:
    """A sender."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation, self.name = incarnation, f"worker:{incarnation % 10}"


class Calls:
    """Workers 0, 1, ... under incarnations 10, 11, ...; each brings its incarnation."""

    def __init__(self, workers: int) -> None:
        self.quorum, self.pushed = Quorum([0], 0), set[int]()
        self.members = {10 + i: QuorumMember(i, f"worker:{i}") for i in range(workers)}
        self.quorum.set_members(self.members, [], 0)
        for incarnation in self.members:
            self.quorum.enter_session(incarnation)
        self.numbers = dict.fromkeys(self.members, 0)
        self.answers: dict[int, Any] = {}
        self.exchanges = Exchanges(
            self.quorum, lambda incarnation: incarnation in self.pushed, lambda to, it: self._told(to.incarnation, it)
        )

    def _told(self, incarnation: int, answer: Any) -> None:
        self.answers[incarnation] = (
            [int(array[0]) for array in answer.arrays] if isinstance(answer, Exchanged) and not answer.without
            else answer
        )  # fmt: skip

    def ask(self, incarnation: int, place: int = 0, since: int = TRAINED, what: str = "sum", call: int = 0) -> Any:
        step = self.quorum.step
        brought = (np.full(1, incarnation),)
        self.exchanges.join_call(
            Exchange(1, step, place, call or place, since, what, 0, brought), FromWorker(incarnation)
        )  # type: ignore[arg-type]
        return self.answers.get(incarnation)

    def step(self, *workers: int) -> None:
        """A step of pushes of these incarnations."""
        for incarnation in workers:
            self.numbers[incarnation] = self.numbers.get(incarnation, 0) + 1
            self.quorum.report_push(0, incarnation, self.numbers[incarnation], self.quorum.step, "")
        self.pushed -= set(workers)

    def ends(self, incarnation: int, then: int | None = None) -> None:
        """A worker is given up; `then`: its next incarnation."""
        member = self.members.pop(incarnation)
        if then is not None:
            self.members[then] = member
        self.quorum.set_members(self.members, [], int(then is None))
        if then is not None:
            self.quorum.enter_session(then)
        self.exchanges.settle_calls()


def test_all_parts_come_to_all_in_the_order_of_tasks_and_again_who_asks_again() -> None:
    calls = Calls(3)
    calls.step(10, 11, 12)
    assert isinstance(calls.ask(12), Waiting) and "waits for worker:0, worker:1" in calls.answers[12].reason
    calls.ask(10)
    assert calls.ask(11) == [10, 11, 12] and calls.answers == {10: [10, 11, 12], 11: [10, 11, 12], 12: [10, 11, 12]}
    calls.answers.clear()
    assert calls.ask(10) == [10, 11, 12] and not calls.exchanges.open


def test_a_worker_that_ends_is_not_waited_for() -> None:
    calls = Calls(3)
    calls.step(10, 11, 12)
    calls.ask(10), calls.ask(11)
    calls.ends(12)
    assert calls.answers == {10: [10, 11], 11: [10, 11]}


def test_a_worker_that_was_away_gets_the_sum_of_those_that_made_the_step() -> None:
    calls = Calls(2)
    calls.step(10, 11)
    calls.ends(11, then=21)
    calls.step(10)
    assert isinstance(calls.ask(21, since=APART), Waiting)
    assert calls.ask(10) == [10] and calls.answers[21] == [10]


def test_a_worker_that_was_away_and_calls_what_the_others_do_not_gets_its_own() -> None:
    calls = Calls(2)
    calls.step(10, 11)
    calls.ends(11, then=21)
    calls.step(10)
    calls.ask(21, since=APART)
    calls.pushed.add(10)
    calls.exchanges.settle_calls()
    assert isinstance(calls.answers[21], Exchanged) and "the other workers went on" in calls.answers[21].without
    assert [int(array[0]) for array in calls.answers[21].arrays] == [21]


def test_a_new_worker_is_told_to_make_a_step_first() -> None:
    calls = Calls(2)
    calls.step(10, 11)
    calls.ends(11, then=21)
    with pytest.raises(ConfigError, match="worker:1 has made no step since it came at step 1"):
        calls.ask(21, since=FIRST)


def test_calls_before_the_first_step_are_of_all() -> None:
    calls = Calls(2)
    calls.ask(10, since=FIRST)
    assert calls.ask(11, since=FIRST) == [10, 11]


def test_who_goes_on_without_the_call_ends_it_for_all() -> None:
    calls = Calls(3)
    calls.step(10, 11, 12)
    calls.ask(10)
    calls.pushed.add(12)
    calls.exchanges.settle_calls()
    error = calls.answers[10]
    assert isinstance(error, ConfigError) and str(error).startswith("worker:2 went on from step 1 without sum; all")
    assert calls.ask(11) is error


def test_who_makes_a_later_call_has_gone_on() -> None:
    calls = Calls(2)
    calls.step(10, 11)
    calls.ask(10, place=0)
    calls.ask(11, place=1)
    assert isinstance(calls.answers[10], ConfigError) and "worker:1 went on" in str(calls.answers[10])


def test_after_a_rollback_workers_meet_at_different_places() -> None:
    calls = Calls(2)  # a new run epoch: its quorum has made no step
    calls.ask(10, place=0, since=APART)
    calls.pushed.add(11)
    calls.exchanges.settle_calls()
    assert calls.answers[10].without == "worker:1 went on from step 0 without it"
    assert [int(array[0]) for array in calls.answers[10].arrays] == [10]


def test_one_that_begins_its_program_and_one_that_was_rolled_back_do_not_meet() -> None:
    calls = Calls(2)
    calls.ask(10, place=0, since=APART)
    calls.ask(11, place=0, since=FIRST)
    assert isinstance(calls.answers[11], ConfigError), "it would have got the sum of a loss and something else"
    calls.pushed.add(11)
    calls.exchanges.settle_calls()
    assert isinstance(calls.answers[10], Exchanged) and calls.answers[10].without


def test_a_step_that_begins_again_after_refused_gradients_has_its_calls_again() -> None:
    calls = Calls(2)
    calls.step(10, 11)
    calls.ask(10, call=1)
    assert calls.ask(11, call=1) == [10, 11]
    assert isinstance(calls.ask(11, since=APART, call=2), Waiting)
    assert calls.ask(10, since=APART, call=2) == [10, 11] and calls.answers[11] == [10, 11]


def test_messages_of_another_step_or_of_a_session_that_has_ended_are_not_counted() -> None:
    calls = Calls(2)
    calls.step(10, 11)
    old = Exchange(1, 0, 0, 0, TRAINED, "sum", 0, (np.zeros(1),))
    with pytest.raises(ConfigError, match="is at step 0, and the run at 1"):
        calls.exchanges.join_call(old, FromWorker(10))  # type: ignore[arg-type]
    with pytest.raises(Aborted):
        calls.ask(99)


def test_only_the_newest_results_are_kept() -> None:
    calls = Calls(2)
    calls.step(10, 11)
    for place in range(3 * KEPT):
        calls.ask(10, place), calls.ask(11, place)
    assert len(calls.exchanges._calls) == KEPT
