"""Small asynchronous pushes and pulls in shared memory on a ps: whole, in order, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps.actors.answers import Waiting
from dps.errors import Aborted, ProtocolError, Unavailable
from dps.messages.sessions import APPLIED, SHARED, Pull, Push, Pushed, SharedValues
from dps.training.update_modes import Async, Bounded
from dps.transport.current import runtime
from tests.ps.test_modes import sender
from tests.ps.test_whole_pushes import LAYOUT, Ps
from tests.tuned import tune


@pytest.fixture(autouse=True)
def everything_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, shard_nbytes=1)


def told(ps: Ps, message: Any, incarnation: int = 1, request: int = 99) -> Any:
    """What the ps answers, which is one thing."""
    ps.node.handle("ps", message, sender(incarnation, request))
    ((_, answer),) = ps.node.take()
    return answer


def push_of(memory: Any, number: int, counter: int = -1, lend: bool = False, epoch: int = 1, released: int = 0) -> Push:
    place = [memory, 0]
    return Push(epoch, number, 0, counter, SHARED, LAYOUT.gradient_nbytes, [], place, 0, lend, released)


def pull_of(epoch: int = 1, released: int = 0) -> Pull:
    return Pull(epoch, 0, 0, 0, -1, [], 0, True, released)


def test_a_push_is_applied_when_it_comes_and_tells_its_staleness() -> None:
    ps = Ps(Async())
    assert ps.shard.store.counter == 2
    ps.memories[1].array.view(np.float32)[:] = 3.0
    assert told(ps, push_of(ps.memories[1].name, 2, counter=1)) == Pushed(2, APPLIED, 3, 1, 3, "")
    assert ps.values == [-3.0] * 6 and ps.shard.reading.lending.lent(1, 99) is None
    ((_, answer),) = ps.step(2, 1.0, number=2)
    (memory,) = ps.shard.store.hold_shared().memories
    assert answer == Pushed(2, APPLIED, 4, 3, 4, "", [4, 4, [memory]]) and ps.values == [-4.0] * 6


def test_a_push_that_comes_twice_is_applied_once_and_answered_twice() -> None:
    ps = Ps(Async())
    ps.memories[1].array.view(np.float32)[:] = 1.0
    push = push_of(ps.memories[1].name, 2)
    first, again = told(ps, push), told(ps, push, request=100)
    assert first == again == Pushed(2, APPLIED, 3, 0, 3, "") and ps.values == [-1.0] * 6


def test_a_push_ahead_of_another_waits_for_it() -> None:
    ps = Ps(Async())
    ps.memories[1].array.view(np.float32)[:] = 1.0
    ps.node.handle("ps", push_of(ps.memories[1].name, 3), sender(1, 50))
    assert ps.values == [0.0] * 6
    ps.node.take()
    ps.node.handle("ps", push_of(ps.memories[1].name, 2), sender(1, 51))
    results = [answer for _, answer in ps.node.take() if not isinstance(answer, Waiting)]
    assert [(r.number, r.step) for r in results] == [(2, 3), (3, 4)] and ps.values == [-2.0] * 6


def test_a_gradient_that_is_not_finite_is_refused_in_the_ordinary_words() -> None:
    ps = Ps(Async())
    ps.memories[1].array.view(np.float32)[4] = np.inf
    answer = told(ps, push_of(ps.memories[1].name, 2))
    assert "has NaN or infinite values" in answer.reason and ps.shard.store.counter == 2


def test_strangers_and_other_epochs_are_told_so_and_change_nothing() -> None:
    ps = Ps(Async())
    for message in (push_of(ps.memories[1].name, 2), pull_of()):
        assert isinstance(told(ps, message, incarnation=7), Aborted)
    for message in (push_of(ps.memories[1].name, 2, epoch=9), pull_of(epoch=9)):
        assert isinstance(told(ps, message), Aborted)
    assert (
        ps.shard.store.counter == 2
        and ps.shard.reading.lending.lent(1, 99) is ps.shard.reading.lending.lent(7, 99) is None
    )


def test_memory_out_of_reach_is_told_and_changes_nothing() -> None:
    ps = Ps(Async())
    process, descriptor, inode, nbytes = ps.memories[1].name
    for name in ((process, descriptor + 5000, inode, nbytes), (process, descriptor, inode, 8), (-1, -1, -1, -1)):
        assert isinstance(told(ps, push_of(list(name), 2)), Unavailable | ProtocolError)
    assert ps.shard.store.counter == 2 and not ps.shard.ledgers[1].staged


def test_who_pulls_is_lent_the_version_of_now_until_it_says_that_it_has_read() -> None:
    ps = Ps(Async())
    before, pulls = ps.shard.store.leased(), ps.shard.counts["pulls"]
    for request in (20, 30):
        answer = told(ps, pull_of(), request=request)
        assert answer == SharedValues(1, 2, 2, ps.shard.reading.lending.lent(1, request).memories)
    assert ps.shard.store.leased() == before + 2 and ps.shard.counts["pulls"] == pulls + 2
    told(ps, pull_of(released=30), request=40)  # gives back what it has read under 20, and by its first push
    assert ps.shard.store.leased() == before + 1
    told(ps, push_of(ps.memories[1].name, 2, released=41))
    assert ps.shard.store.leased() == before - 1


def test_what_is_lent_stays_as_it_is_while_pushes_come() -> None:
    ps = Ps(Async())
    told(ps, pull_of(), request=10)
    shown = ps.shard.reading.lending.lent(1, 10)
    before = runtime().attach(shown.memories[0]).copy()
    for number in (2, 3, 4):
        ps.memories[1].array.view(np.float32)[:] = 1.0
        told(ps, push_of(ps.memories[1].name, number))
    np.testing.assert_array_equal(runtime().attach(shown.memories[0]), before)
    assert ps.values == [-3.0] * 6


@pytest.mark.parametrize("update", [Async(), Bounded(3)])
def test_no_push_is_admitted_while_pushes_are_held_back(update: Any) -> None:
    ps = Ps(update)
    ps.memories[1].array.view(np.float32)[:] = 1.0
    assert ps.shard.mode.hold_pushes("cut of a version") == [[1, 1], [2, 1]]
    ps.node.handle("ps", push_of(ps.memories[1].name, 2), sender(1, 50))
    assert ps.values == [0.0] * 6 and not ps.node.take()
    ps.shard.mode.resume_pushes("cut of a version")
    ((_, answer),) = ps.node.take()
    assert (answer.number, answer.status) == (2, APPLIED) and ps.values == [-1.0] * 6
    assert told(ps, push_of(ps.memories[1].name, 3)).number == 3 and ps.node.answered_now == 1


def test_a_push_of_a_large_shard_is_admitted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, small_nbytes=0)
    ps = Ps(Async())
    ps.memories[1].array.view(np.float32)[:] = 2.0
    assert told(ps, push_of(ps.memories[1].name, 2)).status == APPLIED and ps.values == [-2.0] * 6
    assert ps.node.answered_now == 1 and not ps.shard.is_small
