"""Synchronous steps as lists of events; outcomes worked out by hand from the rules of SyncReplicas."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dps.ps.modes.quorum import Decision, Grant, Quorum, QuorumMember


class Steps:
    """A quorum with workers 0, 1, 2 ... under incarnations 10, 11, 12 ..., one ps unless said."""

    def __init__(self, workers: int, ps: int = 1, **settings: Any) -> None:
        self.quorum = Quorum(range(ps), 0, **settings)
        self.members = {10 + i: QuorumMember(i, f"worker:{i}") for i in range(workers)}
        self.number = dict.fromkeys(self.members, 0)
        self.gone = 0
        self.actions = self.quorum.set_members(self.members, [], 0)
        for incarnation in self.members:
            self.quorum.enter_session(incarnation)

    def push(self, worker: int, step: int, refusal: str = "", ps: int = 1) -> list[Decision | Grant]:
        incarnation = 10 + worker
        self.number[incarnation] += 1
        actions: list[Decision | Grant] = []
        for task in range(ps):
            actions += self.quorum.report_push(task, incarnation, self.number[incarnation], step, refusal)
        return actions

    def join(self, worker: int, is_worker: bool = True) -> list[Decision | Grant]:
        self.members[10 + worker] = QuorumMember(worker, f"worker:{worker}", is_worker)
        self.number[10 + worker] = 0
        return [*self.quorum.set_members(self.members, [], self.gone), *self.quorum.enter_session(10 + worker)]

    def leave(self, worker: int) -> list[Decision | Grant]:
        del self.members[10 + worker]
        self.gone += 1
        return self.quorum.set_members(self.members, [], self.gone)


def sets(actions: list[Decision | Grant]) -> list[list[tuple[int, int, int]]]:
    return [list(a.chosen) for a in actions if isinstance(a, Decision) and a.chosen]


def grants(actions: list[Decision | Grant]) -> list[tuple[int, int, str]]:
    """(worker, token, status) of the granted pushes."""
    return [(a.incarnation - 10, a.step, a.status) for a in actions if isinstance(a, Grant) and a.number]


def test_a_full_quota_makes_a_step_and_releases_everybody_with_it() -> None:
    s = Steps(2)
    assert s.push(1, 0) == []
    actions = s.push(0, 0)
    assert sets(actions) == [[(0, 10, 1), (1, 11, 1)]]
    assert grants(actions) == [(1, 1, "applied"), (0, 1, "applied")]


def test_a_push_counts_only_when_it_is_whole_on_every_ps() -> None:
    s = Steps(1, ps=2)
    assert s.quorum.report_push(0, 10, 1, 0, "") == []
    assert sets(s.quorum.report_push(1, 10, 1, 0, "")) == [[(0, 10, 1)]]


def test_reports_that_come_twice_or_late_do_nothing() -> None:
    s = Steps(1)
    s.push(0, 0)
    assert s.quorum.report_push(0, 10, 1, 0, "") == []


def test_numbers_of_a_session_are_taken_in_order() -> None:
    s = Steps(1, aggregate=2, total=1)
    assert s.quorum.report_push(0, 10, 2, 0, "") == []
    assert sets(s.quorum.report_push(0, 10, 1, 0, "")) == [[(0, 10, 1), (0, 10, 2)]]


def test_backup_workers_the_first_two_of_three_make_the_step_and_the_third_is_dropped() -> None:
    s = Steps(3, aggregate=2, total=3)
    s.push(2, 0)
    actions = s.push(0, 0)
    assert sets(actions) == [[(0, 10, 1), (2, 12, 1)]]
    late = s.push(1, 0)
    assert sets(late) == [] and grants(late) == [(1, 1, "dropped")]


def test_several_batches_a_worker_make_a_step_by_initial_tokens() -> None:
    s = Steps(2, aggregate=4, total=2)
    assert grants(s.push(0, 0)) == [(0, 0, "applied")]
    assert grants(s.push(1, 0)) == [(1, 0, "applied")]
    assert grants(s.push(0, 0)) == []
    actions = s.push(1, 0)
    assert sets(actions) == [[(0, 10, 1), (0, 10, 2), (1, 11, 1), (1, 11, 2)]]
    assert grants(actions) == [(0, 1, "applied"), (1, 1, "applied")]
    assert len(s.quorum.tokens) == 2


def test_initial_tokens_as_tensorflow_waste_the_round_after_the_first_update() -> None:
    s = Steps(2, aggregate=2, total=2, initial_tokens=2)
    assert grants(s.push(0, 0)) == [(0, 0, "applied")]
    actions = s.push(1, 0)
    assert sets(actions) == [[(0, 10, 1), (1, 11, 1)]] and grants(actions) == [(1, 0, "applied")]
    assert grants(s.push(0, 0)) == [(0, 1, "dropped")]
    assert grants(s.push(1, 0)) == [(1, 1, "dropped")]


def test_with_initial_tokens_a_worker_takes_the_oldest_token_and_its_value_is_the_next_local_step() -> None:
    s = Steps(3, aggregate=2, total=3, initial_tokens=3)
    local, steps = dict.fromkeys(range(3), 0), 0
    for worker in (0, 2, 1, 0, 1, 2):
        actions = s.push(worker, local[worker])
        steps += len(sets(actions))
        ((of, local[worker], _),) = grants(actions)
        assert of == worker
    assert (s.quorum.step, steps, local) == (1, 1, {0: 1, 1: 1, 2: 1})


def test_of_queued_tokens_one_goes_with_each_counted_worker_that_ends() -> None:
    s = Steps(3, aggregate=3, total=3, initial_tokens=3)
    for worker in range(3):
        s.push(worker, 0)
    assert len(s.quorum.tokens) == 3  # those of step 1
    s.leave(2)
    assert len(s.quorum.tokens) == 2
    s.join(3)  # one that comes needs no token
    assert len(s.quorum.tokens) == 2


def test_who_enters_gets_the_current_step_whatever_old_tokens_are_left() -> None:
    s = Steps(1, aggregate=1, total=2, initial_tokens=2)
    assert grants(s.push(0, 0)) == [(0, 0, "applied")]
    assert s.join(1) == [Grant(11, 0, 1, "applied")]
    assert grants(s.push(1, 1)) == [(1, 0, "applied")]  # and then takes the oldest token


def test_at_a_standstill_of_queued_tokens_those_of_the_current_step_are_granted() -> None:
    s = Steps(2, aggregate=2, total=2, initial_tokens=0)
    s.push(0, 0)
    s.push(1, 0)
    assert grants(s.push(0, 0)) == []
    assert grants(s.push(1, 1)) == [(0, 1, "dropped")]


def test_a_refused_gradient_lowers_the_quota_of_its_step_only_and_gets_a_token() -> None:
    s = Steps(2)
    refused = s.push(0, 0, "NaN in w")
    assert [a.refused for a in refused if isinstance(a, Decision)] == [(((0, 10, 1), "NaN in w"),)]
    actions = s.push(1, 0)
    assert sets(actions) == [[(1, 11, 1)]]
    assert grants(actions) == [(0, 1, "refused"), (1, 1, "applied")]
    assert s.push(0, 1) == [] and len(sets(s.push(1, 1))[0]) == 2


def test_when_all_are_refused_all_get_a_token_of_the_same_step() -> None:
    s = Steps(2)
    s.push(0, 0, "bad")
    actions = s.push(1, 0, "bad")
    assert sets(actions) == [] and grants(actions) == [(0, 0, "refused"), (1, 0, "refused")]


def test_a_worker_that_dies_before_its_push_lets_the_others_go_on() -> None:
    s = Steps(3)
    s.push(0, 0)
    s.push(1, 0)
    actions = s.leave(2)
    assert sets(actions) == [[(0, 10, 1), (1, 11, 1)]] and grants(actions) == [(0, 1, "applied"), (1, 1, "applied")]


def test_an_unacknowledged_push_of_a_worker_that_died_is_forgotten() -> None:
    s = Steps(3)
    s.push(0, 0)
    actions = s.leave(0)
    assert [a.ended for a in actions if isinstance(a, Decision)] == [(10,)]
    s.push(1, 0)
    assert sets(s.push(2, 0)) == [[(1, 11, 1), (2, 12, 1)]]


def test_an_acknowledged_push_of_a_worker_that_left_is_still_applied_and_only_then_forgotten() -> None:
    s = Steps(2, aggregate=4, total=2)
    assert grants(s.push(0, 0)) == [(0, 0, "applied")]
    assert s.leave(0) == []
    actions = s.leave(1)
    assert sets(actions) == [[(0, 10, 1)]]
    ended = [a.ended for a in actions if isinstance(a, Decision) and a.ended]
    assert sorted(i for group in ended for i in group) == [10, 11]


def test_a_late_worker_enters_at_the_next_step() -> None:
    s = Steps(2)
    s.push(0, 0)
    s.members[12] = QuorumMember(2, "worker:2")
    s.number[12] = 0
    s.quorum.set_members(s.members, [], 0)
    assert s.quorum.enter_session(12) == []
    actions = s.push(1, 0)
    assert sets(actions) == [[(0, 10, 1), (1, 11, 1)]]
    assert Grant(12, 0, 1, "applied") in actions
    s.push(0, 1)
    s.push(1, 1)
    assert len(sets(s.push(2, 1))[0]) == 3


def test_a_late_worker_enters_at_once_between_two_steps() -> None:
    s = Steps(1)
    s.members[11] = QuorumMember(1, "worker:1")
    s.quorum.set_members(s.members, [], 0)
    assert s.quorum.enter_session(11) == [Grant(11, 0, 0, "applied")]


def test_the_first_step_waits_for_workers_that_were_admitted_and_have_not_entered_yet() -> None:
    quorum = Quorum([0], 0)
    quorum.set_members(
        {10: QuorumMember(0, "worker:0"), 11: QuorumMember(1, "worker:1"), 12: QuorumMember(2, "reader", False)}, [], 0
    )
    quorum.enter_session(10)
    assert quorum.report_push(0, 10, 1, 0, "") == []
    assert quorum.missing() == ["worker:1"]
    quorum.enter_session(11)
    assert sets(quorum.report_push(0, 11, 1, 0, "")) == [[(0, 10, 1), (1, 11, 1)]]


def test_the_first_step_waits_for_workers_that_are_expected() -> None:
    quorum = Quorum([0], 0)
    quorum.set_members({10: QuorumMember(0, "worker:0")}, ["worker:1"], 0)
    quorum.enter_session(10)
    assert quorum.report_push(0, 10, 1, 0, "") == []
    assert quorum.missing() == ["worker:1"]
    assert sets(quorum.set_members({10: QuorumMember(0, "worker:0")}, [], 1)) == [[(0, 10, 1)]]


def test_a_worker_that_is_counted_enters_even_while_others_wait_for_it() -> None:
    quorum = Quorum([0], 5)
    quorum.set_members({10: QuorumMember(0, "worker:0")}, ["worker:1"], 0)
    quorum.enter_session(10)
    quorum.report_push(0, 10, 1, 5, "")
    quorum.set_members({10: QuorumMember(0, "worker:0"), 11: QuorumMember(1, "worker:1")}, [], 0)
    assert quorum.enter_session(11) == [Grant(11, 0, 5, "applied")]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_is_not_made_from_fewer_gradients_than_its_quota(workers: int) -> None:
    """There are half as many workers as the settings name, and all of them wait."""
    s = Steps(workers, aggregate=2 * workers, total=2 * workers)
    for worker in range(workers):
        assert s.push(worker, 0) == []
    assert (s.quorum.step, len(s.quorum.tokens)) == (0, 0)
    assert (
        s.quorum.shortage()
        == f"step 1 needs {2 * workers} gradients from {2 * workers} workers; this cluster has {workers}"
    )


def test_a_step_that_lacks_workers_lets_them_in_before_it_is_made() -> None:
    s = Steps(1, aggregate=2, total=2)
    s.push(0, 0)
    assert s.join(1) == [Grant(11, 0, 0, "applied")]
    assert s.quorum.shortage() == ""
    assert sets(s.push(1, 0)) == [[(0, 10, 1), (1, 11, 1)]]


def test_a_refused_gradient_is_told_at_once_where_a_step_lacks_workers() -> None:
    s = Steps(1, aggregate=2, total=2)
    assert grants(s.push(0, 0, "NaN in w")) == [(0, 0, "refused")]
    assert s.push(0, 0) == [] and s.quorum.shortage()


def test_only_workers_that_came_and_are_gone_lower_the_quota() -> None:
    s = Steps(2, aggregate=3, total=3)
    s.push(0, 0)
    s.push(1, 0)
    assert s.quorum.set_members(s.members, [], 0, ["worker:2"]) == [] and s.quorum.aggregate == 3
    assert sets(s.quorum.set_members(s.members, [], 1)) == [[(0, 10, 1), (1, 11, 1)]]


def test_a_worker_that_was_given_up_before_it_came_is_one_of_all_workers_still() -> None:
    quorum = Quorum([0], 0)
    quorum.set_members({10: QuorumMember(0, "worker:0")}, ["worker:1"], 0)
    quorum.enter_session(10)
    quorum.report_push(0, 10, 1, 0, "")
    assert quorum.set_members({10: QuorumMember(0, "worker:0")}, [], 0, ["worker:1"]) == []
    assert quorum.missing() == ["worker:1"]
    assert quorum.shortage() == "step 1 needs 2 gradients from 2 workers; this cluster has 1"
    assert sets(quorum.set_members({}, [], 1, ["worker:1"])) == []  # what had no token goes with its worker


def test_what_was_acknowledged_is_applied_when_only_workers_that_never_came_are_left() -> None:
    quorum = Quorum([0], 0, aggregate=4, total=2)
    quorum.set_members({10: QuorumMember(0, "worker:0")}, [], 0, ["worker:1"])
    quorum.enter_session(10)
    assert grants(quorum.report_push(0, 10, 1, 0, "")) == [(0, 0, "applied")]
    assert sets(quorum.set_members({}, [], 1, ["worker:1"])) == [[(0, 10, 1)]]


def test_more_workers_than_the_settings_name_may_lose_some_and_make_whole_steps() -> None:
    s = Steps(3, aggregate=2, total=2)
    s.leave(2)
    assert (s.quorum.aggregate, s.quorum.total) == (2, 2)
    s.leave(1)
    assert (s.quorum.aggregate, s.quorum.total) == (1, 1)


def test_a_session_from_elsewhere_that_took_part_and_ended_lowers_the_quota_too() -> None:
    s = Steps(1, aggregate=2, total=2)
    s.join(1, is_worker=False)
    s.push(0, 0)
    assert len(sets(s.push(1, 0))[0]) == 2
    s.push(0, 1)
    del s.members[11]
    assert sets(s.quorum.set_members(s.members, [], 0)) == [[(0, 10, 2)]]


def test_at_a_standstill_tokens_are_granted_to_those_who_have_no_gradient_in_the_step() -> None:
    s = Steps(3)
    for worker in range(3):
        s.push(worker, 0)
    s.push(1, 1)
    s.push(2, 1)
    assert grants(s.push(0, 0)) == [(0, 1, "dropped")]
    assert sets(s.push(0, 1)) == [[(0, 10, 3), (1, 11, 2), (2, 12, 2)]]


WHAT = ["push", "push", "push", "refuse", "leave", "join"]


@settings(max_examples=150)
@given(
    workers=st.integers(1, 4),
    extra=st.integers(-2, 3),
    configured=st.booleans(),
    events=st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 5)), max_size=60),
)
def test_no_sequence_of_events_stands_still(
    workers: int, extra: int, configured: bool, events: list[tuple[str, int]]
) -> None:
    """Each worker pushes when it may; as long as a counted worker lives, somebody may go on."""
    aggregate = max(1, workers + extra)
    options = {"aggregate": aggregate, "total": workers} if configured else {}
    s = Steps(workers, **options)
    local = dict.fromkeys(s.members, 0)
    waiting: set[int] = set()
    chosen: set[tuple[int, int]] = set()
    steps = 0

    def take(actions: list[Decision | Grant]) -> None:
        nonlocal steps
        for action in actions:
            if isinstance(action, Grant):
                waiting.discard(action.incarnation)
                assert action.step >= local.get(action.incarnation, 0)
                local[action.incarnation] = action.step
            elif action.chosen:
                steps += 1
                assert action.step == steps
                assert list(action.chosen) == sorted(action.chosen)
                for _, incarnation, number in action.chosen:
                    assert (incarnation, number) not in chosen
                    chosen.add((incarnation, number))

    following = 10 + workers
    for what, which in events:
        free = [i for i in s.members if i not in waiting]
        if what in ("push", "refuse") and free:
            incarnation = free[which % len(free)]
            waiting.add(incarnation)
            s.number[incarnation] += 1
            refusal = "bad" if what == "refuse" else ""
            take(s.quorum.report_push(0, incarnation, s.number[incarnation], local[incarnation], refusal))
        elif what == "leave" and s.members:
            incarnation = list(s.members)[which % len(s.members)]
            waiting.discard(incarnation)
            take(s.leave(incarnation - 10))
        elif what == "join":
            s.members[following] = QuorumMember(following - 10, f"worker:{following - 10}")
            s.number[following], local[following] = 0, 0
            waiting.add(following)
            take(s.quorum.set_members(s.members, [], s.gone))
            take(s.quorum.enter_session(following))
            following += 1
        assert not s.members or len(waiting) < len(s.members), "everybody waits"
