"""Asynchronous pushes at once on a ps: whole, in order, once, and with the books of the ordinary way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps.actors.messages import Waiting
from dps.errors import Aborted, ProtocolError, Unavailable
from dps.protocol import APPLIED, NOWHERE, Look, Push, Pushed, Shown, Step, Stepped
from dps.ps.modes.asynchronous import AsyncMode
from dps.transport.current import runtime
from dps.update import Async, Bounded, Update
from tests.ps.test_modes import sender
from tests.ps.test_stepping import Ps
from tests.tuned import tune


@pytest.fixture(autouse=True)
def everything_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, shard_nbytes=1)


def told(ps: Ps, message: Any, incarnation: int = 1, request: int = 99) -> Any:
    """What the ps answers, which is one thing."""
    ps.node.handle("ps", message, sender(incarnation, request))
    ((_, answer),) = ps.node.take()
    return answer


def step_of(ps: Ps, number: int, counter: int = -1, lend: int = 0, incarnation: int = 1) -> Step:
    return Step(1, number, 0, counter, 0, lend, *ps.memories[incarnation].name)


def test_a_push_is_applied_when_it_comes_and_tells_its_staleness() -> None:
    ps = Ps(Async())
    assert ps.shard.store.counter == 2
    ps.memories[1].array.view(np.float32)[:] = 3.0
    assert told(ps, step_of(ps, 2, counter=1)) == Stepped(2, 3, 1, 3, *NOWHERE)
    assert ps.values == [-3.0] * 6 and ps.shard.reading.lending.lent(1, 99) is None
    ((_, answer),) = ps.step(2, 1.0, number=2)
    (memory,) = ps.shard.store.hold(shared=True).memories
    assert answer == Stepped(2, 4, 3, 4, *memory) and ps.values == [-4.0] * 6


def test_the_books_are_those_of_the_ordinary_way() -> None:
    def books(ordinary: bool) -> dict[str, Any]:
        ps = Ps(Async())
        for value in (2.0, 4.0):
            ps.steps({1: value, 2: value + 1}, ordinary)
        mode = ps.shard.mode
        assert isinstance(mode, AsyncMode)
        return {
            "ledgers": {i: (led.done, led.results, led.staged, led.pulled) for i, led in ps.shard.ledgers.items()},
            "counts": ps.shard.counts, "staleness": ps.shard.staleness, "values": ps.values, "mode": mode._senders,
            "version": (ps.shard.store.counter, ps.shard.store.step, ps.shard.store.leased()),
        }  # fmt: skip

    assert books(ordinary=False) == books(ordinary=True)


def test_a_push_that_comes_twice_is_applied_once_and_answered_twice() -> None:
    ps = Ps(Async())
    ps.memories[1].array.view(np.float32)[:] = 1.0
    first, again = told(ps, step_of(ps, 2)), told(ps, step_of(ps, 2), request=100)
    assert isinstance(first, Stepped) and again == Pushed(2, APPLIED, 3, 0, 3, "") and ps.values == [-1.0] * 6


def test_a_push_ahead_of_another_waits_for_it() -> None:
    ps = Ps(Async())
    ps.memories[1].array.view(np.float32)[:] = 1.0
    ps.node.handle("ps", step_of(ps, 3), sender(1, 50))
    assert ps.values == [0.0] * 6
    ps.node.take()
    ps.node.handle("ps", step_of(ps, 2), sender(1, 51))
    results = [answer for _, answer in ps.node.take() if not isinstance(answer, Waiting)]
    assert [(r.number, r.step) for r in results] == [(2, 3), (3, 4)] and ps.values == [-2.0] * 6


@pytest.mark.parametrize(
    "update", [Async(max_staleness=3), Async(damping=0.5), Async(compensation=0.1), Bounded(1)], ids=str
)
def test_where_more_is_to_be_thought_of_it_is_an_ordinary_push(update: Update) -> None:
    ps = Ps(update)
    assert isinstance(told(ps, step_of(ps, 2)), Pushed)


def test_a_gradient_that_is_not_finite_is_refused_in_the_ordinary_words() -> None:
    ps = Ps(Async())
    ps.memories[1].array.view(np.float32)[4] = np.inf
    answer = told(ps, step_of(ps, 2))
    assert isinstance(answer, Pushed) and "has NaN or infinite values" in answer.reason and ps.shard.store.counter == 2


def test_strangers_and_other_epochs_are_told_so_and_change_nothing() -> None:
    ps = Ps(Async())
    for message in (step_of(ps, 2), Look(1, 0)):
        assert isinstance(told(ps, message, incarnation=7), Aborted)
    for message in (Step(9, 2, 0, 0, 0, 1, *ps.memories[1].name), Look(9, 0)):
        assert isinstance(told(ps, message), Aborted)
    assert (
        ps.shard.store.counter == 2
        and ps.shard.reading.lending.lent(1, 99) is ps.shard.reading.lending.lent(7, 99) is None
    )


def test_memory_out_of_reach_is_told_and_changes_nothing() -> None:
    ps = Ps(Async())
    process, descriptor, inode, nbytes = ps.memories[1].name
    for name in ((process, descriptor + 5000, inode, nbytes), (process, descriptor, inode, 8), (-1, -1, -1, -1)):
        assert isinstance(told(ps, Step(1, 2, 0, 0, 0, 1, *name)), Unavailable | ProtocolError)
    assert ps.shard.store.counter == 2 and not ps.shard.ledgers[1].staged


def test_who_looks_is_shown_the_version_of_now_until_it_says_that_it_has_read() -> None:
    ps = Ps(Async())
    before, pulls = ps.shard.store.leased(), ps.shard.counts["pulls"]
    for request in (20, 30):
        answer = told(ps, Look(1, 0), request=request)
        (memory,) = ps.shard.reading.lending.lent(1, request).memories
        assert answer == Shown(2, 2, *memory)
    assert ps.shard.store.leased() == before + 2 and ps.shard.counts["pulls"] == pulls + 2
    told(ps, Look(1, 30), request=40)  # gives back what it has read under 20, and before that by its first push
    assert ps.shard.store.leased() == before + 1
    assert isinstance(told(ps, Step(1, 2, 0, 0, 41, 0, *ps.memories[1].name)), Stepped)
    assert ps.shard.store.leased() == before - 1


def test_what_is_shown_stays_as_it_is_while_pushes_come() -> None:
    ps = Ps(Async())
    told(ps, Look(1, 0), request=10)
    shown = ps.shard.reading.lending.lent(1, 10)
    before = runtime().attach(shown.memories[0]).copy()
    for number in (2, 3, 4):
        ps.memories[1].array.view(np.float32)[:] = 1.0
        told(ps, step_of(ps, number))
    np.testing.assert_array_equal(runtime().attach(shown.memories[0]), before)
    assert ps.values == [-3.0] * 6


def test_who_cannot_be_lent_the_values_is_told_to_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    ps = Ps(Async())
    monkeypatch.setattr(ps.shard.store, "hold", lambda **_: None)
    assert told(ps, Look(1, 0)) == Waiting("ps:0 has no room for one more reader")
    assert told(ps, step_of(ps, 2, lend=1)) == Stepped(2, 3, 0, 3, *NOWHERE)


def test_a_push_in_two_ways_is_applied_once() -> None:
    ps = Ps(Async())
    ps.memories[1].array.view(np.float32)[:] = 1.0
    push = Push(1, 2, 0, 0, 4, 0, [], [ps.memories[1].name, 0])
    ps.node.handle("ps", step_of(ps, 2), sender(1, 50))
    ps.node.handle("ps", push, sender(1, 51))
    assert [type(answer) for _, answer in ps.node.take()] == [Stepped, Pushed] and ps.values == [-1.0] * 6
