"""The queue as a list of events: what is accepted is got once, in order, whoever is lost and whatever comes again."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dps.errors import Aborted, ProtocolError
from dps.queues.state import ACCEPTED, REFUSED, WAITING, Action, Ended, Given, PutDone, QueueState


def opened(capacity: int = 2, clients: int = 3) -> QueueState:
    queue = QueueState("q", capacity)
    for client in range(1, clients + 1):
        queue.add_client(client, f"worker:{client}", f"node{client}")
    return queue


def test_items_come_in_the_order_in_which_they_were_put() -> None:
    queue = opened(5)
    for number in (1, 2, 3):
        assert queue.put(1, number, f"item {number}", "p") == [PutDone("p", number, ACCEPTED)]
    assert [queue.get(2, number, 1, "g") for number in (1, 2)] == [[Given("g", 1, "item 1")], [Given("g", 2, "item 2")]]


def test_a_put_waits_for_room_and_is_let_in_by_a_get() -> None:
    queue = opened(1)
    queue.put(1, 1, "a", "p1")
    assert queue.put(2, 1, "b", "p2") == []
    assert queue.is_put_waiting(2, 1)
    assert queue.get(3, 1, 1, "g") == [Given("g", 1, "a"), PutDone("p2", 1, ACCEPTED)]


def test_a_get_waits_for_an_item_and_the_first_asker_has_it() -> None:
    queue = opened()
    assert queue.get(1, 1, 1, "g1") == []
    assert queue.get(2, 1, 1, "g2") == []
    assert queue.put(3, 1, "a", "p") == [PutDone("p", 1, ACCEPTED), Given("g1", 1, "a")]
    assert queue.is_get_waiting(2, 1)


def test_what_comes_again_changes_nothing_and_is_answered_again() -> None:
    queue = opened()
    queue.put(1, 1, "a", "p")
    assert queue.put(1, 1, "a", "again") == [PutDone("again", 1, ACCEPTED)]
    assert len(queue.items) == 1
    queue.get(2, 1, 1, "g")
    assert queue.get(2, 1, 1, "again") == [Given("again", 1, "a")]
    assert queue.finish_get(2, 1) == (True, [])
    assert queue.finish_get(2, 1) == (True, [])
    assert queue.get(2, 1, 1, "late") == []
    assert not queue.is_get_waiting(2, 1)


def test_what_a_lost_client_has_not_acknowledged_goes_to_the_next_one_in_its_place() -> None:
    queue = opened(3)
    for number in (1, 2):
        queue.put(1, number, number, "p")
    queue.get(2, 1, 1, "g")
    queue.drop_node("node2")
    assert queue.get(3, 1, 1, "g3") == [Given("g3", 1, 1)]
    assert queue.finish_get(2, 1) == (False, [])
    assert queue.finish_get(3, 1) == (True, [])


def test_what_was_acknowledged_stays_so_when_its_client_is_lost() -> None:
    queue = opened()
    queue.put(1, 1, "a", "p")
    queue.get(2, 1, 1, "g")
    queue.finish_get(2, 1)
    queue.drop_node("node2")
    assert queue.finish_get(2, 1) == (True, [])
    assert queue.get(3, 1, 1, "g") == []


def test_a_withdrawn_put_is_never_accepted_however_late_it_comes() -> None:
    queue = opened(1)
    queue.put(1, 1, "a", "p")
    queue.put(2, 1, "b", "p2")
    assert not queue.withdraw_put(2, 1)
    assert not queue.withdraw_put(3, 1)
    queue.put(2, 1, "b", "late")
    queue.put(3, 1, "c", "late")
    assert queue.get(1, 1, 1, "g") == [Given("g", 1, "a")]
    assert queue.items == []
    assert queue.withdraw_put(1, 1)  # it was accepted
    assert queue.put(2, 2, "d", "next") == [PutDone("next", 2, ACCEPTED)]


def test_a_dropped_get_gives_back_what_came_for_it() -> None:
    queue = opened()
    queue.get(1, 1, 1, "g")
    queue.put(2, 1, "a", "p")
    queue.drop_gets(1, 1)
    assert [entry.value for entry in queue.items] == ["a"]
    assert queue.get(1, 1, 1, "late") == []
    assert queue.get(1, 2, 2, "g") == [Given("g", 2, "a")]


def test_closing_wakes_all_who_wait_and_leaves_what_is_there() -> None:
    queue = opened(1)
    queue.get(3, 1, 1, "g")
    assert queue.close() == [Ended("g")]
    queue = opened(1)
    queue.put(1, 1, "a", "p")
    queue.put(2, 1, "b", "p2")
    assert queue.close() == [PutDone("p2", 1, REFUSED)]
    assert queue.put(1, 2, "c", "p") == [PutDone("p", 2, REFUSED)]
    assert queue.get(3, 1, 1, "g") == [Given("g", 1, "a")]


def test_a_closed_queue_is_not_over_while_an_item_may_come_back() -> None:
    queue = opened()
    queue.put(1, 1, "a", "p")
    queue.get(2, 1, 1, "g2")
    queue.close()
    assert queue.get(3, 1, 1, "g3") == []
    assert queue.drop_node("node2") == [Given("g3", 1, "a")]
    assert queue.get(1, 1, 1, "g1") == []
    assert queue.finish_get(3, 1) == (True, [Ended("g1")])


def test_an_unknown_client_and_too_many_gets_are_refused() -> None:
    queue = opened()
    with pytest.raises(Aborted, match="open it again"):
        queue.put(9, 1, "a", "p")
    with pytest.raises(ProtocolError, match="at most 64 gets"):
        queue.get(1, 70, 1, "g")


class Machine(RuleBasedStateMachine):
    """Three clients and a network that loses, doubles and delays their messages, and answers to them."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = opened(2)
        self.puts = dict.fromkeys((1, 2, 3), 0)
        self.gets = dict.fromkeys((1, 2, 3), 1)
        self.sent: list[tuple[Any, ...]] = []
        """All messages ever sent: each may come at any time, again and again."""
        self.told: dict[tuple[int, int], str] = {}
        """Results of puts."""
        self.came: dict[tuple[int, int], Any] = {}
        self.own: list[Any] = []
        """What was acknowledged and confirmed: got."""

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, PutDone) and action.result in (ACCEPTED, REFUSED):
                before = self.told.setdefault((action.asker, action.number), action.result)
                assert before == action.result
            elif isinstance(action, Given):
                self.came[action.asker, action.number] = action.value

    clients = st.sampled_from([1, 2, 3])

    @rule(client=clients)
    def put(self, client: int) -> None:
        self.puts[client] += 1
        message = ("put", client, self.puts[client])
        self.sent.append(message)

    @rule(client=clients)
    def get(self, client: int) -> None:
        self.sent.append(("get", client, self.gets[client], self.gets[client]))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def comes(self, data: Any) -> None:
        kind, client, *rest = data.draw(st.sampled_from(self.sent[-12:]))
        if kind == "put":
            self.take(self.queue.put(client, rest[0], (client, rest[0]), client))
        else:
            self.take(self.queue.get(client, *rest, client))

    @rule(client=clients)
    def finish(self, client: int) -> None:
        number = self.gets[client]
        if (client, number) in self.came:
            yours, actions = self.queue.finish_get(client, number)
            self.take(actions)
            if yours:
                self.own.append(self.came[client, number])
            self.gets[client] += 1

    @rule(client=clients)
    def give_up(self, client: int) -> None:
        self.take(self.queue.drop_gets(client, self.gets[client]))
        self.gets[client] += 1
        withdrawn = (client, self.puts[client])
        if self.puts[client] and not self.queue.withdraw_put(*withdrawn):
            assert self.told.setdefault(withdrawn, "withdrawn") != ACCEPTED

    @rule(client=clients)
    def lost(self, client: int) -> None:
        self.take(self.queue.drop_node(f"node{client}"))

    @invariant()
    def each_accepted_item_is_in_one_place(self) -> None:
        there = [entry.value for entry in self.queue.entries()]
        assert len(set(self.own)) == len(self.own)
        assert not set(there) & set(self.own)
        assert len(set(there)) == len(there)
        accepted = {key for key, result in self.told.items() if result == ACCEPTED}
        assert accepted <= set(there) | set(self.own)
        withdrawn = {key for key, result in self.told.items() if result == "withdrawn"}
        assert not withdrawn & (set(there) | set(self.own))

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        waits = [c for c in (1, 2, 3) if self.queue.is_get_waiting(c, self.gets[c])]
        assert not (waits and self.queue.items)
        putting = [c for c in (1, 2, 3) if self.queue.clients[c].put_result == WAITING]
        assert not putting or len(self.queue.items) >= self.queue.capacity


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=75, stateful_step_count=60)
