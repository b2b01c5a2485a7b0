"""Who is in a group: formed when all have come, again when one is gone; and what those are told that were lost."""

from __future__ import annotations

from typing import Any

import pytest

from dps.collectives.messages import GroupIs, JoinGroup
from dps.collectives.roster import GroupRoster
from dps.errors import ConfigError, TaskLost


def said(
    task: int, generation: int = 0, frozen: int = 0, completed: int = 0, doing: str = "", member: int = 0
) -> JoinGroup:
    place = "g", task, member or 100 + task, f"w{task}:1", "ticket", 1, []
    return JoinGroup(*place, generation, frozen, completed, doing, False, [])


def join(roster: GroupRoster, task: int, *rest: int, **more: int) -> GroupIs:
    return roster.join_member(said(task, *rest, **more), f"w{task}:1", "")


def formed(*tasks: int) -> GroupRoster:
    roster = GroupRoster("g", tasks)
    for task in tasks:
        join(roster, task, 0, 1)
    assert roster.generation == 1 and [member[0] for member in roster.members] == list(tasks)
    return roster


def test_a_group_is_formed_when_all_have_come_and_frozen() -> None:
    roster = GroupRoster("g", [0, 1])
    answer = join(roster, 0)
    assert (answer.generation, answer.forming, answer.text) == (0, 1, "worker:1 has not come to the group")
    join(roster, 0, 0, 1)
    join(roster, 1)
    answer = join(roster, 1, 0, 1)
    assert (answer.generation, answer.forming, [m[0] for m in answer.members]) == (1, 0, [0, 1])


def test_the_next_generation_begins_after_the_last_operation_that_some_member_has_completed() -> None:
    roster = formed(0, 1, 2)
    roster.remove_member(1, "was silent for 1.0 s")
    assert join(roster, 0, 1, 0, 4).forming == 2
    assert join(roster, 0, 1, 2, 4).generation == 1
    answer = join(roster, 2, 1, 2, 5)
    assert (answer.generation, answer.base, answer.source, answer.gone) == (
        2,
        5,
        2,
        [["worker:1", "was silent for 1.0 s"]],
    )


def test_an_operation_that_only_a_lost_member_has_completed_is_repeated() -> None:
    roster = formed(0, 1)
    join(roster, 1, 1, 0, 5)
    roster.remove_member(1, "was silent for 1.0 s")
    assert join(roster, 0, 1, 2, 4).base == 4


def test_who_has_left_in_order_takes_no_result_with_it_silently() -> None:
    roster = formed(0, 1)
    assert not roster.request_leave(0, 100, 5)
    roster.remove_member(0, "has left after 5 operations", 5)
    assert join(roster, 1, 1, 0, 4).forming == 2
    with pytest.raises(TaskLost, match="worker:0 has left group 'g' with the only result of operation 5"):
        join(roster, 1, 1, 2, 4)
    roster = formed(0, 1)
    join(roster, 1, 1, 0, 5)
    assert roster.request_leave(0, 100, 5)
    roster.remove_member(0, "has left after 5 operations", 5)
    assert join(roster, 1, 1, 2, 5).generation == 2


def test_a_member_that_was_lost_is_told_so_and_one_that_is_started_again_too() -> None:
    roster = formed(0, 1)
    roster.remove_member(1, "was silent for 1.0 s")
    for number in (101, 999):
        with pytest.raises(TaskLost, match=r"has gone on without worker:1, which was silent for 1.0 s; start all"):
            join(roster, 1, 1, 0, 0, member=number)
    with pytest.raises(TaskLost, match="has gone on without worker:1"):
        roster.request_leave(1, 101, 3)


def test_after_the_last_one_has_left_a_new_group_can_be_formed() -> None:
    roster = formed(0, 1)
    for task in (0, 1):
        roster.request_leave(task, 100 + task, 3)
        roster.remove_member(task, "has left after 3 operations", 3)
    assert join(roster, 0, 0, 0, 0, member=7).forming == 3
    join(roster, 0, 0, 3, 0, member=7)
    answer = join(roster, 1, 0, 3, 0, member=8)
    assert (answer.generation, answer.base, answer.gone) == (3, 0, [])


def test_a_worker_that_is_not_of_the_cluster_or_comes_twice_is_refused() -> None:
    roster = formed(0, 1)
    with pytest.raises(ConfigError, match="worker:7 is none of the workers of group 'g', which are worker:0, worker:1"):
        join(roster, 7)
    with pytest.raises(ConfigError, match="worker:1 has one g open already"):
        join(roster, 1, member=9)


def test_who_is_waited_for_is_named() -> None:
    roster = formed(0, 1, 2)
    join(roster, 2, 1, 0, 3, doing="all_reduce (number 4)")
    answer = join(roster, 0, 1, 0, 3, doing="all_reduce (number 4)")
    assert answer.text == "worker:1 has not come to it"
    roster.remove_member(1, "was silent for 1.0 s")
    assert join(roster, 0, 1, 2, 3).text == "the group is formed anew, and waits for worker:2"


def test_a_restarted_chief_goes_on_with_what_members_say() -> None:
    known = [[0, 100, "w0:1", "t", "", 1, []], [1, 101, "w1:1", "t", "", 1, []]]
    roster = GroupRoster("g", [0, 1])
    message = said(0, 3, 0, 9)
    answer = roster.join_member(
        JoinGroup(*[getattr(message, name) for name in message._fields[:-1]], known), "w0:1", ""
    )
    assert (answer.generation, answer.forming) == (3, 0)
    roster.remove_member(1, "was silent for 1.0 s")
    join(roster, 0, 3, 0, 9)
    assert join(roster, 0, 3, 4, 9).generation == 4


# -- a ps that sums -------------------------------------------------------------------------------------------------

PS = [0, "ps0:1", "ticket", "", "ps0:1"]


def through(roster: GroupRoster, task: int, *rest: int, ps: Any = (), lacks: str = "") -> GroupIs:
    message = said(task, *rest)
    fields = [getattr(message, name) if name != "through" else True for name in message._fields]
    return roster.join_member(JoinGroup(*fields), f"w{task}:1", "", ps, lacks)


def test_a_group_that_sums_through_a_ps_waits_for_one_by_name() -> None:
    roster = GroupRoster("g", [0, 1])
    for task in (0, 1):
        answer = through(roster, task, 0, 1, lacks="ps:0; start it with: ...")
    assert (answer.generation, answer.ps) == (0, [])
    assert answer.text == "the group sums through a ps, and waits for ps:0; start it with: ..."
    answer = through(roster, 0, 0, 1, ps=PS)
    assert (answer.generation, answer.ps) == (1, PS[:4])


def test_a_ps_that_is_lost_or_another_one_begins_a_generation() -> None:
    roster = GroupRoster("g", [0, 1])
    for task in (0, 1):
        through(roster, task, 0, 1, ps=PS)
    assert through(roster, 0, 1, 0, 4, ps=PS).forming == 0
    assert through(roster, 0, 1, 0, 4, lacks="ps:0 (1 s)").forming == 2
    for task, completed in ((0, 4), (1, 5)):
        answer = through(roster, task, 1, 2, completed, lacks="ps:0 (1 s)")
    assert (answer.generation, answer.text) == (1, "the group sums through a ps, and waits for ps:0 (1 s)")
    other = [0, "ps0:2", "another ticket", "", "ps0:2"]
    answer = through(roster, 1, 1, 2, 5, ps=other)
    assert (answer.generation, answer.ps, answer.base, answer.source) == (2, other[:4], 5, 1)
