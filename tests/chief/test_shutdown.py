"""The end of a run: every node is told or gone before the chief ends."""

from __future__ import annotations

from typing import Any

from dps.chief.ending import Shutdown
from dps.errors import DeadlineExceeded
from dps.messages.runs import StopTask
from tests.chief.desk import Desk


def begun(addresses: list[str], linger_s: float = 0.0) -> tuple[Desk, Shutdown, list[tuple[int, str]]]:
    desk, ended = Desk(), list[tuple[int, str]]()
    node: Any = desk
    shutdown = Shutdown(node, lambda code, reason: ended.append((code, reason)))
    shutdown.tell_nodes(StopTask(3, "ps:1 is gone"), addresses, linger_s)
    return desk, shutdown, ended


def test_it_ends_when_all_have_heard_or_did_not_answer() -> None:
    desk, shutdown, ended = begun(["b:1", "a:1"])
    first, second = desk.take()
    assert [q.to.address for q in (first, second)] == ["a:1", "b:1"] and first.message == StopTask(3, "ps:1 is gone")
    first.answer()
    assert desk.timers == []
    second.answer(DeadlineExceeded("silent"))
    ((seconds, end),) = desk.timers
    assert seconds == 0.0 and ended == []
    end()
    assert ended == [(3, "ps:1 is gone")] and shutdown.message == StopTask(3, "ps:1 is gone")


def test_a_node_that_is_known_to_be_away_is_not_waited_for() -> None:
    desk, shutdown, _ = begun(["a:1"])
    shutdown.mark_told("a:1")
    assert len(desk.timers) == 1
    desk.take()[0].answer()
    assert len(desk.timers) == 1  # it ends once


def test_with_nobody_to_tell_but_itself_it_ends_after_the_time_for_late_comers() -> None:
    desk, _, _ = begun(["127.0.0.1:1"], linger_s=5.0)
    assert desk.take() == [] and [seconds for seconds, _ in desk.timers] == [5.0]


def test_losses_before_the_end_are_none_of_its_business() -> None:
    desk = Desk()
    node: Any = desk
    shutdown = Shutdown(node, lambda code, reason: None)
    shutdown.mark_told("a:1")
    assert shutdown.message is None and desk.timers == []
