"""The feed as events: in each epoch every batch is finished once, whoever is lost, and its position gives the rest."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import dps
from dps.data.feeder import Feed
from dps.queues.state import Action, Ended, Given

START = {"from": {"epoch": 0, "at": 0}, "finished": []}


def at(number: int) -> dict[str, Any]:
    """The dataset's position ahead of a batch."""
    return {"epoch": 0, "at": number}


def fed(batches: int, ahead: int = 10, position: dict[str, Any] = START) -> Feed:
    feed = Feed("dataset", ahead, position)
    for worker in (1, 2, 3):
        feed.add_worker(worker, f"worker:{worker}", f"node{worker}")
    first = position["from"]["at"]
    for number in range(first, first + batches):
        feed.add_batch(number, at(number + 1))
    return feed


def given(actions: list[Action]) -> list[tuple[Any, int, Any]]:
    return [(a.asker, a.number, a.value[1]) for a in actions if isinstance(a, Given)]


def test_batches_go_to_who_asks_and_what_is_unfinished_goes_to_another_when_its_worker_is_lost() -> None:
    feed = fed(3)
    assert given(feed.request_batch(1, 0, 1, 1, [], "a")) == [("a", 1, 0)]
    assert given(feed.request_batch(2, 0, 1, 1, [], "b")) == [("b", 1, 1)]
    assert given(feed.request_batch(2, 0, 2, 2, [], "b")) == [("b", 2, 2)]  # and batch 1 is finished
    feed.end_reading()
    assert feed.request_batch(3, 0, 1, 1, [], "c") == []
    assert given(feed.drop_node("node2")) == [("c", 1, 2)]
    assert not feed.is_over
    assert feed.remove_worker(3, 0, 2, []) == []
    assert feed.unfinished() == ["worker:1"]
    feed.remove_worker(1, 0, 2, [])
    assert feed.is_over


def test_an_epoch_ends_for_all_when_its_last_batch_is_finished() -> None:
    feed = fed(1)
    feed.request_batch(1, 0, 1, 1, [], "a")
    feed.end_reading()
    assert feed.request_batch(2, 0, 1, 1, [], "b") == []
    assert feed.request_batch(1, 0, 2, 2, [], "a") == [Ended("b"), Ended("a")]
    assert feed.request_batch(1, 0, 3, 2, [], "late") == [Ended("late")]


def test_the_position_tells_what_is_finished_and_another_feed_gives_the_rest() -> None:
    feed = fed(6)
    for worker in (1, 2, 3):
        feed.request_batch(worker, 0, 1, 1, [], worker)
    assert feed.position == START
    feed.request_batch(2, 0, 2, 2, [], 2)  # has finished batch 1
    assert feed.position == {"from": at(0), "finished": [1]}
    feed.request_batch(1, 0, 2, 2, [], 1)  # has finished batch 0
    assert feed.position == {"from": at(2), "finished": []}
    feed.request_batch(2, 0, 3, 2, [2], 2)  # has finished its second one, batch 3
    assert feed.position == {"from": at(2), "finished": [1]}
    again = fed(4, position=feed.position)
    assert again.position == feed.position
    found = [given(again.request_batch(1, 0, n, 1, [], 1))[0][2] for n in (1, 2, 3)]
    assert found == [2, 4, 5]


def test_a_worker_that_is_not_known_is_told_so_and_a_wrong_position_refused() -> None:
    with pytest.raises(dps.Aborted, match="it was started again"):
        fed(1).request_batch(9, 0, 1, 1, [], "a")
    with pytest.raises(dps.ConfigError, match="wanted the position of a dataset that is served"):
        Feed("dataset", 1, {"epoch": 0})
    for wrong in ({"from": 3, "finished": []}, {"from": {"epoch": -1, "at": None}, "finished": []},
                  {"from": {"epoch": 0, "at": None}, "finished": 3},
                  {"from": {"epoch": 0, "at": None}, "finished": [-1]}):  # fmt: skip
        with pytest.raises(dps.ConfigError, match="^position: got "):
            Feed("dataset", 1, wrong)


class Machine(RuleBasedStateMachine):
    """Three workers with a window of two, that are lost and come again, and a reader."""

    def __init__(self) -> None:
        super().__init__()
        self.feed = fed(0, ahead=3)
        self.read, self.closed = 0, False
        self.next = dict.fromkeys((1, 2, 3), 1)
        self.floor = dict.fromkeys((1, 2, 3), 1)
        self.has: dict[tuple[int, int], int] = {}
        """Batches by worker and number: given, and neither finished nor taken back."""
        self.finished: list[int] = []

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Given):
                self.has[action.asker, action.number] = action.value[1]

    @precondition(lambda self: self.feed.has_room() and not self.closed)
    @rule()
    def reads(self) -> None:
        self.read += 1
        self.take(self.feed.add_batch(self.read - 1, at(self.read)))

    @precondition(lambda self: not self.closed and self.read > 5)
    @rule()
    def ends(self) -> None:
        self.closed = True
        self.take(self.feed.end_reading())

    workers = st.sampled_from([1, 2, 3])

    @rule(worker=workers)
    def wants(self, worker: int) -> None:
        if self.next[worker] < self.floor[worker] + 2:
            self.next[worker] += 1
            self.take(self.feed.request_batch(worker, 0, self.next[worker] - 1, self.floor[worker], [], worker))

    @rule(worker=workers)
    def wants_again(self, worker: int) -> None:
        for number in range(self.floor[worker], self.next[worker]):
            self.take(self.feed.request_batch(worker, 0, number, self.floor[worker], [], worker))

    @rule(worker=workers)
    def finishes(self, worker: int) -> None:
        number = self.floor[worker]
        if (worker, number) in self.has:
            self.finished.append(self.has.pop((worker, number)))
            self.floor[worker] = number + 1
            self.next[worker] = max(self.next[worker], number + 1)
            self.next[worker] += 1
            self.take(self.feed.request_batch(worker, 0, self.next[worker] - 1, number + 1, [], worker))

    @rule(worker=workers)
    def is_lost(self, worker: int) -> None:
        self.has = {key: batch for key, batch in self.has.items() if key[0] != worker}
        self.take(self.feed.drop_node(f"node{worker}"))

    @invariant()
    def a_batch_is_in_one_place(self) -> None:
        waiting = [entry.value[1] for entry in self.feed.line.items]
        places = waiting + list(self.has.values()) + self.finished
        assert sorted(places) == list(range(self.read))
        assert self.feed.is_over == (self.closed and len(self.finished) == self.read)

    @invariant()
    def the_position_gives_the_rest(self) -> None:
        position = self.feed.position
        first = position["from"]["at"]
        told = list(range(first)) + [first + n for n in position["finished"]]
        assert sorted(told) == sorted(self.finished)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=75, stateful_step_count=60)
