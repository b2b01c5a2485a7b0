"""Who takes part in the run, as a state machine."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dps.chief.members import RunMembers

W0, W1 = "worker:0", "worker:1"


def joined(*names: str) -> tuple[RunMembers, list[int]]:
    members = RunMembers(["worker:0", "worker:1"])
    return members, [members.admit_session(100 + i, name, int(name[-1]), True) for i, name in enumerate(names)]


def test_incarnations_rise_and_are_never_used_again() -> None:
    members, (first, second) = joined(W0, W1)
    assert (first, second) == (1, 2)
    members.end_incarnation(second, lost=False)
    assert members.admit_session(101, W1, 1, True) == 3
    assert members.admit_session(100, W0, 0, True) == 4 and list(members.live) == [3, 4]  # a session has one at a time


def test_the_first_step_waits_for_those_that_are_expected() -> None:
    members, _ = joined(W0)
    assert members.waiting() == [W1]
    members.admit_session(200, W1, 1, True)
    assert members.waiting() == []


def test_where_the_number_is_not_known_those_that_joined_are_expected() -> None:
    members = RunMembers()
    assert members.waiting() == [] and not members.is_all_done()
    members.admit_session(1, "worker:7", 7, True)
    members.begin_epoch()
    assert members.waiting() == ["worker:7"]


def test_all_are_done_when_each_has_joined_and_left_or_is_given_up() -> None:
    members, (first,) = joined(W0)
    members.end_incarnation(first, lost=False)
    assert not members.is_all_done()
    members.give_up(W1)
    assert members.is_all_done() and (members.finished, members.given_up) == ([W0], [W1]) and members.gone() == 1


def test_one_that_was_given_up_before_it_came_is_absent_and_not_gone() -> None:
    members, _ = joined(W0)
    members.give_up(W1)
    assert (members.absent(), members.gone(), members.waiting()) == ([W1], 0, [])
    version = members.version
    assert members.mark_come(W1) and members.version > version
    assert (members.absent(), members.gone(), members.waiting()) == ([], 0, [W1])
    assert not members.mark_come(W1)
    members.give_up(W1)  # now it was lost
    assert (members.absent(), members.gone(), members.waiting()) == ([], 1, [])
    assert not members.mark_come(W1) and members.gone() == 1


def test_a_lost_worker_that_comes_back_takes_part_again() -> None:
    members, (first, _) = joined(W0, W1)
    members.end_incarnation(first, lost=True)
    assert members.given_up == [W0] and members.gone() == 1
    members.admit_session(300, W0, 0, True)
    assert members.given_up == [] and members.gone() == 0 and not members.is_all_done()


def test_a_worker_with_two_sessions_is_done_with_the_last() -> None:
    members = RunMembers([W0])
    one, two = members.admit_session(1, W0, 0, True), members.admit_session(2, W0, 0, True)
    members.end_incarnation(one, lost=False)
    assert members.finished == [] and not members.is_all_done()
    members.end_incarnation(two, lost=False)
    assert members.finished == [W0] and members.is_all_done()


def test_a_program_that_ended_with_an_error_is_noted_once_and_finished() -> None:
    members = RunMembers([W0])
    for session in (1, 2):
        members.end_incarnation(members.admit_session(session, W0, 0, True), lost=False, failed=True)
    assert members.failed == [W0] and members.finished == [W0]


def test_readers_take_part_in_nothing_but_the_list() -> None:
    members, (first,) = joined(W0)
    members.give_up(W1)
    reader = members.admit_session(7, "client:0", 0, False)
    members.end_incarnation(first, lost=False)
    assert members.is_all_done() and members.live[reader].name == "client:0"
    members.end_incarnation(reader, lost=True)
    assert members.given_up == [W1]


def test_the_session_of_the_lowest_living_worker_leads() -> None:
    members = RunMembers()
    assert members.leader() is None
    members.admit_session(1, "client:0", 0, False)
    assert members.leader() == 1
    low = members.admit_session(3, "worker:2", 2, True)
    members.admit_session(2, "worker:5", 5, True)
    assert members.leader() == 3
    members.end_incarnation(low, lost=True)
    assert members.leader() == 2


def test_giving_up_ends_all_sessions_of_a_worker_and_strangers_are_not_given_up() -> None:
    members, (first, second) = joined(W0, W1)
    version = members.version
    members.give_up(W0)
    assert list(members.live) == [second] and first not in members.live and members.version > version
    members.give_up("worker:9")
    assert members.given_up == [W0]


def test_a_worker_that_finished_under_an_earlier_chief_is_done_here_too() -> None:
    members = RunMembers([W0, W1])
    members.mark_finished_before(W0)
    assert members.waiting() == [W1] and members.joined == [W0]
    live = members.admit_session(1, W0, 0, True)
    members.mark_finished_before(W0)  # but not while it is here
    assert members.finished == [] and live in members.live


NAMES = ["worker:0", "worker:1", "worker:2"]


class AnyOrder(RuleBasedStateMachine):
    """A version for every change; nobody is both expected and gone; the end comes only when nobody is left."""

    def __init__(self) -> None:
        super().__init__()
        self.members = RunMembers(NAMES[:2])
        self.used: list[int] = []
        self.session = 0
        self.seen: tuple[int, list[object]] = (-1, [])

    @rule(name=st.sampled_from([*NAMES, "client:0"]))
    def admit(self, name: str) -> None:
        self.session += 1
        self.used.append(self.members.admit_session(self.session, name, int(name[-1]), name != "client:0"))

    @precondition(lambda self: self.members.live)
    @rule(data=st.data(), lost=st.booleans())
    def end(self, data: st.DataObject, lost: bool) -> None:
        incarnation = data.draw(st.sampled_from(sorted(self.members.live)))
        self.members.end_incarnation(incarnation, lost)
        version = self.members.version
        self.members.end_incarnation(incarnation, lost)
        assert self.members.version == version  # a second time is nothing

    @rule(name=st.sampled_from(NAMES))
    def give_up(self, name: str) -> None:
        self.members.give_up(name)

    @rule(name=st.sampled_from(NAMES))
    def came(self, name: str) -> None:
        self.members.mark_come(name)

    @rule()
    def new_epoch(self) -> None:
        self.members.begin_epoch()

    @invariant()
    def all_is_in_order(self) -> None:
        members = self.members
        assert self.used == sorted(set(self.used)) and all(i < members.next_incarnation for i in self.used)
        there = {m.name for m in members.live.values() if m.worker}
        assert not set(members.waiting()) & (there | set(members.finished) | set(members.given_up))
        absent = members.absent()
        assert not set(absent) & (there | set(members.waiting()) | set(members.finished) | set(members.joined))
        now: tuple[int, list[object]] = (members.version, [*members.live, members.waiting(), absent, members.gone()])
        assert now[0] >= self.seen[0] and (now[0] > self.seen[0] or now[1] == self.seen[1])
        self.seen = now
        if members.is_all_done():
            assert not there and set(NAMES[:2]) <= set(members.finished) | set(members.given_up)
        if there:
            leader = members.leader()
            tasks = sorted(m.task for m in members.live.values() if m.worker)
            assert any(m.session == leader and m.task == tasks[0] for m in members.live.values())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=25)


def test_a_worker_whose_next_session_ends_well_has_succeeded() -> None:
    members = RunMembers(["worker:0"])
    for failed in (True, False):
        members.end_incarnation(members.admit_session(1, "worker:0", 0, True), lost=False, failed=failed)
        assert members.has_succeeded() is not failed
