"""Published versions at the chief: one cut of all ps, then a number, then all keep it; followers hear of it then."""

from __future__ import annotations

from typing import Any

import pytest

from dps.actors.answers import Done, Waiting
from dps.actors.ref import Ref, Sender
from dps.chief.members import RunMembers
from dps.chief.publishing import Publishing, check_label
from dps.errors import Aborted, CheckpointError, DeadlineExceeded, ProtocolError
from dps.messages.runs import AskNumbers, NumbersAre, PublishedIs
from dps.messages.sessions import (
    CommitVersion,
    CutVersion,
    HoldPushes,
    PushesHeld,
    ResumePushes,
    SettleVersion,
    VersionCut,
)
from tests.chief.desk import Desk, Question

REFS = {ps: Ref(f"ps:{ps}", "ps") for ps in (0, 1)}


class Run:
    """A chief that publishes, with ps and nodes that answer when the test says so."""

    def __init__(self, problem: str = "") -> None:
        self.desk = Desk()
        node: Any = self.desk
        self.members, self.results, self.asked = RunMembers(), list[Any](), 0
        self.members.run = "1f"
        self.publishing = Publishing(node, self.members, lambda: problem)

    def publish(self, label: str = "one", mode: str = "sync") -> None:
        self.asked += 1
        self.publishing.publish(2, REFS, 0, mode in ("async", "bounded"), label, self.asked, self.results.append)

    def cut(self, numbers: tuple[int, int] = (0, 0), step: int = 7) -> None:
        for question, number in zip(self.desk.take(CutVersion), numbers, strict=True):
            question.answer(VersionCut(step, 9, number, step if question.to.address == REFS[0].address else 0))

    def commit(self) -> list[CommitVersion]:
        asked = self.desk.take(CommitVersion)
        for question in asked:
            question.answer(Done())
        return [question.message for question in asked if isinstance(question.message, CommitVersion)]


def test_all_ps_cut_then_commit_then_drop_what_is_older() -> None:
    run = Run()
    run.publish()
    run.cut()
    first, second = run.commit()
    assert first == second and (first.number, first.label, first.step) == (1, "one", 7)
    assert run.results == [PublishedIs("1f", 1, "one", 7, 0.0)]
    assert [question.message for question in run.desk.take(SettleVersion)] == [SettleVersion(2, 1)] * 2


def test_values_that_are_published_already_get_no_other_number() -> None:
    run = Run()
    for numbers in ((0, 0), (1, 1), (1, 0)):  # the last: one ps has another version by now
        run.publish(f"after {numbers}")
        run.cut(numbers)
        run.commit()
    assert [(told.number, told.label) for told in run.results] == [
        (1, "after (0, 0)"), (1, "after (0, 0)"), (2, "after (1, 0)"),
    ]  # fmt: skip


def test_one_version_is_published_at_a_time() -> None:
    run = Run()
    run.publish("one")
    run.publish("two")
    run.cut()
    assert run.desk.take(CutVersion) == []
    run.commit()
    run.cut()
    run.commit()
    assert [told.label for told in run.results] == ["one", "two"]


def test_all_who_ask_before_a_cut_begins_get_its_number_and_a_repeated_request_makes_no_cut() -> None:
    run = Run()
    run.publish("one")
    run.publish("two")
    run.publish("three")
    run.publishing.publish(2, REFS, 0, False, "one", 1, lambda told: run.results.append(("again", told)))
    run.publishing.publish(2, REFS, 0, False, "two", 2, lambda told: run.results.append(("again", told)))
    run.cut()
    run.commit()
    run.cut()
    run.commit()
    assert [told[0] if isinstance(told, tuple) else told.label for told in run.results] == ["again", "again", "two"]
    assert [told[1].number for told in run.results[:2]] == [1, 2] and run.desk.take(CutVersion) == []


def test_a_number_that_a_ps_has_not_committed_is_told_to_nobody_and_never_used_again() -> None:
    run = Run()
    follower = Sender("follower", 1, "evaluator:0", 0)
    run.publishing.tell_newer(5, follower, "", 0)
    run.publish()
    run.cut()
    good, bad = run.desk.take(CommitVersion)
    good.answer(Done())
    bad.answer(Aborted("gone"))
    assert isinstance(run.results[0], Aborted) and run.publishing.newest is None
    assert not [answer for _, answer in run.desk.answers if isinstance(answer, PublishedIs)]
    run.publish("again")
    run.cut()
    run.commit()
    assert run.results[1].number == 2
    assert [answer.number for to, answer in run.desk.answers if isinstance(answer, PublishedIs)] == [2]


def test_nothing_is_published_without_a_journal() -> None:
    run = Run("the disk is full")
    run.publish()
    run.cut()
    assert isinstance(run.results[0], CheckpointError) and "the disk is full" in str(run.results[0])
    assert run.commit() == []


def test_the_end_of_a_run_epoch_ends_what_is_under_way_and_forgets_the_newest() -> None:
    run = Run()
    run.publish()
    run.cut()
    run.commit()
    run.publish("two")
    run.publish("three")
    late = run.desk.take(CutVersion)
    run.publishing.end_epoch()
    assert [type(result) for result in run.results] == [PublishedIs, Aborted, Aborted]
    late[0].answer(VersionCut(8, 10, 0))
    late[1].answer(VersionCut(8, 10, 0))
    assert run.commit() == [] and run.publishing.newest is None


def test_a_follower_hears_of_a_higher_number_or_another_run() -> None:
    run = Run()
    run.publish()
    run.cut()
    run.commit()

    def asked(session: int, name: str, newer_than: int) -> list[Any]:
        before = len(run.desk.answers)
        run.publishing.tell_newer(session, Sender(session, 1, "evaluator:0", 0), name, newer_than)
        return [type(answer) for _, answer in run.desk.answers[before:]]

    assert asked(1, "", 0) == [PublishedIs] and asked(2, "1f", 0) == [PublishedIs]
    assert asked(3, "1f", 1) == [Waiting] and asked(4, "another", 9) == [PublishedIs]
    run.publishing.drop_follower(3)
    before = len(run.desk.answers)
    run.publish("two")
    run.cut()
    run.commit()
    assert run.desk.answers[before:] == []


def held(run: Run, *done: list[list[int]]) -> list[Question]:
    """All ps hold pushes back; what the nodes are asked."""
    for question, numbers in zip(run.desk.take(HoldPushes), done, strict=True):
        question.answer(PushesHeld(numbers))
    return run.desk.take(AskNumbers)


def admitted(run: Run) -> int:
    return run.members.admit_session(77, "worker:0", 0, True, address="worker:0")


def test_in_async_a_cut_is_where_each_session_has_begun_its_last_push() -> None:
    run = Run()
    incarnation = admitted(run)
    run.publish(mode="async")
    (asked,) = held(run, [[incarnation, 3], [99, 5]], [[incarnation, 4]])
    asked.answer(NumbersAre([[77, incarnation, [[0, 4], [1, 4]]], [1234, 99, [[0, 50]]]]))
    first, second = [question.message for question in run.desk.take(CutVersion)]
    assert isinstance(first, CutVersion) and isinstance(second, CutVersion) and first.holds
    assert first.numbers == [[incarnation, 4], [99, 5]], "one that is gone counts with what was applied"
    assert second.numbers == [[incarnation, 4]]


@pytest.mark.parametrize(
    "answer",
    [DeadlineExceeded("silence"), NumbersAre([7]), NumbersAre([[77, 1, [[0, "x"]]]]), NumbersAre([[77, 1, 5]])],
)
def test_a_session_that_does_not_tell_is_named_and_pushes_go_on(answer: Any) -> None:
    run = Run()
    admitted(run)
    run.publish(mode="bounded")
    (asked,) = held(run, [[1, 3]], [])
    asked.answer(answer)
    assert isinstance(run.results[0], DeadlineExceeded) and "worker:0 did not tell" in str(run.results[0])
    assert len(run.desk.take(ResumePushes)) == 2 and run.desk.take(CutVersion) == []


def test_a_session_that_has_ended_meanwhile_need_not_tell() -> None:
    run = Run()
    incarnation = admitted(run)
    run.publish(mode="async")
    (asked,) = held(run, [[incarnation, 3]], [[incarnation, 3]])
    run.members.end_incarnation(incarnation, lost=True)
    asked.answer(DeadlineExceeded("silence"))
    assert len(run.desk.take(CutVersion)) == 2


def test_what_a_ps_says_must_be_pairs_of_numbers() -> None:
    run = Run()
    run.publish(mode="async")
    assert held(run, [[1, "x"]], []) == []
    assert isinstance(run.results[0], ProtocolError)


def test_a_label_is_short() -> None:
    check_label("x" * 200)
    with pytest.raises(ValueError, match="got a label of 201 characters, wanted at most 200"):
        check_label("x" * 201)


def test_a_session_that_has_pushed_nothing_is_not_asked() -> None:
    run = Run()
    worker = admitted(run)
    reader = run.members.admit_session(78, "evaluator:0", 0, False, address="evaluator:0")
    run.publish(mode="async")
    (asked,) = held(run, [[worker, 3], [reader, 0]], [[worker, 3]])
    assert asked.to.address == "worker:0"
    asked.answer(NumbersAre([[77, worker, [[0, 3], [1, 3]]]]))
    orders = [question.message for question in run.desk.take(CutVersion)]
    assert [order.numbers for order in orders if isinstance(order, CutVersion)] == [[[worker, 3], [reader, 0]]] * 2
