"""Who takes part, told to every ps until each has the newest."""

from __future__ import annotations

from typing import Any

from dps.actors.ref import Ref
from dps.chief.members import EpochRoster, RunMembers
from dps.errors import Aborted, DeadlineExceeded
from dps.messages.runs import Members
from tests.chief.desk import Desk


class Told:
    def __init__(self, ps: int = 2) -> None:
        self.desk, self.members = Desk(), RunMembers(["worker:0", "worker:1"])
        self.heard, self.refused = 0, list[int]()
        node: Any = self.desk
        refs = {task: Ref(f"ps:{task}", "ps") for task in range(ps)}
        self.roster = EpochRoster(node, 3, refs, self.members, self._heard, self.refused.append)

    def _heard(self, ps: int, ended: object) -> None:
        self.heard += 1


def test_every_ps_is_told_who_is_there_who_is_waited_for_and_how_many_are_gone() -> None:
    told = Told()
    told.members.admit_session(9, "worker:0", 0, True)
    told.roster.tell_members()
    questions = told.desk.take()
    assert [q.to.address for q in questions] == ["ps:0", "ps:1"]
    notes, tickets = told.members.notes(), [["", "worker:0", "worker", [1]]]
    assert questions[0].message == Members(3, 1, [[1, "worker:0", 0, True]], ["worker:1"], [], 0, notes, tickets)
    assert told.roster.known == -1 and told.roster.ps_behind() == [0, 1]
    questions[0].answer()
    assert told.roster.known == -1 and told.roster.ps_behind() == [1]
    questions[1].answer()
    assert told.roster.known == 1 and told.roster.ps_behind() == [] and told.heard == 2


def test_a_change_while_it_is_told_is_told_after() -> None:
    told = Told(ps=1)
    told.roster.tell_members()
    told.members.admit_session(9, "worker:0", 0, True)
    told.roster.tell_members()
    (first,) = told.desk.take()  # one at a time
    first.answer()
    (second,) = told.desk.take()
    assert isinstance(second.message, Members) and second.message.version == 1
    second.answer()
    assert told.roster.known == 1 and told.desk.take() == []


def test_a_ps_that_does_not_answer_is_told_again_with_the_newest() -> None:
    told = Told(ps=1)
    told.roster.tell_members()
    told.members.admit_session(9, "worker:0", 0, True)
    told.desk.take()[0].answer(DeadlineExceeded("silent"))
    (again,) = told.desk.take()
    assert isinstance(again.message, Members) and again.message.version == 1


def test_a_ps_that_has_lost_the_epoch_is_reported_and_not_told_again() -> None:
    told = Told(ps=1)
    told.roster.tell_members()
    told.desk.take()[0].answer(Aborted("serves run epoch 4"))
    assert told.refused == [0] and told.desk.take() == []


def test_when_the_epoch_is_over_nothing_more_is_told_or_heard() -> None:
    told = Told(ps=1)
    told.roster.tell_members()
    told.roster.is_over = True
    told.desk.take()[0].answer()
    assert told.heard == 0 and told.desk.take() == []
