"""The sessions that the chief knows: who waits, who may be let in, who can be told."""

from __future__ import annotations

import pytest

from dps.actors.ref import Sender
from dps.chief.members import RunMembers
from dps.chief.sessions import ClientSession, Sessions
from dps.errors import Aborted
from dps.messages.runs import OpenSession


def ask(sessions: Sessions, number: int, job: str = "worker", task: int = 0, plan: bool = True) -> ClientSession:
    message = OpenSession(number, job, task, 1, f"{job}{task}:1", 0, {"variables": []} if plan else {}, {})
    return sessions.open_session(message, Sender("route", number, f"{job}:{task}", 0), message.address)


def test_a_session_that_asks_again_is_the_same_with_its_newest_request() -> None:
    sessions = Sessions()
    first = ask(sessions, 7)
    first.opened = None
    assert sessions.waiting() == []
    assert ask(sessions, 7, plan=False) is first and sessions.waiting() == [first] and not first.trains


def test_the_first_that_waits_and_has_variables_brings_the_plan() -> None:
    sessions = Sessions()
    ask(sessions, 1, "client", plan=False)
    second, third = ask(sessions, 2), ask(sessions, 3, task=1)
    assert sessions.first_with_variables() is second
    second.opened = None
    assert sessions.first_with_variables() is third
    sessions.drop_session(third)
    assert sessions.first_with_variables() is None


def test_one_that_has_closed_never_opens_again() -> None:
    sessions = Sessions()
    assert sessions.mark_closed(4)  # it may be closed before it was ever seen here
    assert not sessions.mark_closed(4)
    with pytest.raises(Aborted, match="this session is closed"):
        ask(sessions, 4)
    assert sessions.known == {}


def test_sessions_are_found_by_node_and_by_task() -> None:
    sessions = Sessions()
    first, second = ask(sessions, 1), ask(sessions, 2)
    other = ask(sessions, 3, task=1)
    assert sessions.sessions_of("worker:0") == sessions.sessions_at("worker0:1") == [first, second]
    assert sessions.sessions_of("worker:1") == [other] and sessions.sessions_of("worker:2") == []
    assert (sessions.name(3), sessions.name(9), sessions.name(None)) == ("worker:1", "", "")


def test_those_that_wait_are_admitted_once_and_only_trainers_count_as_workers() -> None:
    sessions, members = Sessions(), RunMembers()
    ask(sessions, 1)
    ask(sessions, 2, "client", plan=False)
    ask(sessions, 3, task=1, plan=False)
    assert [(i, s.number) for i, s in sessions.admit_waiting(members)] == [(1, 1), (2, 2), (3, 3)]
    assert sessions.admit_waiting(members) == []
    assert [m.name for m in members.live.values() if m.worker] == ["worker:0"]


def test_a_session_is_told_when_every_ps_knows_the_version_with_it() -> None:
    sessions, members = Sessions(), RunMembers()
    first, second = ask(sessions, 1), ask(sessions, 2, task=1)
    sessions.admit_waiting(members)
    assert (first.version, second.version) == (1, 2)
    assert sessions.answerable(members, 0) == []
    assert sessions.answerable(members, 1) == [(1, first)]
    first.opened = None  # it was told
    assert sessions.answerable(members, 2) == [(2, second)]


def test_an_epoch_later_nobody_can_be_told_before_being_admitted_again() -> None:
    sessions, members = Sessions(), RunMembers()
    ask(sessions, 1)
    sessions.admit_waiting(members)
    members.begin_epoch()
    assert sessions.answerable(members, 99) == []
    ((incarnation, _),) = sessions.admit_waiting(members)
    assert incarnation == 2
