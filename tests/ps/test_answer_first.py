"""Large asynchronous pushes whose pieces the ps keeps are answered before the pass that applies them, and nobody can
tell: whatever is asked after the answer finds the push applied."""

from __future__ import annotations

from typing import Any

import pytest

from dps.messages.sessions import APPLIED, NO_BASE, REFUSED, Pull, Pushed, Values
from dps.ps.store import arena
from dps.ps.store.gradients import GradientPieces
from dps.training.update_modes import Async
from tests.ps.test_ahead import Ps, after, push
from tests.ps.test_modes import sender
from tests.tuned import tune

FIRST = Pushed(1, APPLIED, 1, 0, 1, "", credit=True)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large shard, and nothing applied ahead."""
    tune(monkeypatch, store__large_pieces=0, store__ahead_pieces=1 << 30)


class Watched(Ps):
    """Notes the version at each answer."""

    def __init__(self, *incarnations: int, **given: Any) -> None:
        super().__init__(*incarnations, **given)
        self.said: list[tuple[Any, int]] = []
        answer = self.desk.answer

        def noted(to: Any, message: Any = None, done: Any = None) -> None:
            self.said.append((message, self.shard.store.counter))
            answer(to, message, done)

        self.desk.answer = noted  # type: ignore[method-assign]


def test_the_answer_comes_before_the_pass() -> None:
    ps = Watched(1)
    assert ps.bring(1, *push(1, 2.0)) == [FIRST] and ps.values == after(2.0)
    assert ps.said == [(FIRST, 0)], "the old version"
    assert ps.shard.ledgers[1].results[1] == FIRST and ps.shard.store.counter == 1
    lease = ps.shard.store.hold()
    assert lease is not None and lease.counter == 1


def test_one_that_reads_the_version_before_does_not_keep_the_answer() -> None:
    ps = Watched(1)
    reader = ps.shard.store.hold()
    assert reader is not None and ps.bring(1, *push(1, 2.0)) == [FIRST]
    assert ps.said == [(FIRST, 0)] and reader.arrays[0][0] == 0.0
    reader.release()


def test_a_push_that_is_asked_after_again_is_answered_as_it_was() -> None:
    ps = Ps(1)
    ps.bring(1, *push(1, 2.0))
    assert ps.bring(1, *push(1, 2.0)[:1]) == [FIRST] and ps.values == after(2.0)


def test_pushes_that_wait_for_an_earlier_one_are_answered_in_turn_each_with_its_version() -> None:
    ps = Ps(1)
    assert ps.bring(1, *push(2, 4.0), *push(3, 8.0)) == []
    answers = ps.bring(1, *push(1, 2.0))
    assert [(a.number, a.step, a.counter) for a in answers] == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]
    assert ps.values == after(14.0)


def test_a_pull_behind_the_push_has_its_values() -> None:
    ps = Ps(1)
    *first, last = push(1, 2.0)
    ps.bring(1, *first)
    ps.shard.reading.answer_pull(sender(1, 7), Pull(1, 0, 1, 0, NO_BASE, []))
    answer, values = ps.bring(1, last)
    assert answer == FIRST and isinstance(values, Values) and values.counter == 1


def test_what_is_not_certain_is_said_when_it_is() -> None:
    ps = Watched(1)
    (answer,) = ps.bring(1, *push(1, 2.0, bad=3))
    assert (answer.status, ps.shard.store.counter) == (REFUSED, 0) and ps.values == after()
    stale = Watched(1)
    stale.shard.mode = type(stale.shard.mode)(stale.shard, Async(compensation=0.1))  # type: ignore[call-arg]
    stale.bring(1, *push(1, 2.0))
    assert [counter for _, counter in stale.said] == [1]


def test_where_the_pass_needs_memory_of_its_own_it_has_that_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: GradientPieces) -> Any:
        raise MemoryError

    monkeypatch.setattr(arena.ArenaMemory, "may_take_pieces", False)
    ps = Watched(1)
    ps.bring(1, *push(1, 2.0))
    assert ps.said == [(FIRST, 0)] and ps.values == after(2.0)
    monkeypatch.setattr(GradientPieces, "array", full)
    with pytest.raises(MemoryError):
        ps.bring(1, *push(2, 2.0))
    assert len(ps.said) == 1 and ps.values == after(2.0) and 2 not in ps.shard.ledgers[1].results


def test_a_sender_that_wants_the_values_with_the_answer_waits_for_them() -> None:
    ps = Watched(1)
    ps.shard.reading.lending.record_wish(1, sender(1).request, True)
    ps.bring(1, *push(1, 2.0))
    assert [counter for _, counter in ps.said] == [1]


def test_the_next_push_has_credit_where_no_other_session_pushes() -> None:
    assert [a.credit for a in Ps(1).bring(1, *push(1, 2.0))] == [True]
    assert [a.credit for a in Ps(1, 2).bring(1, *push(1, 2.0))] == [False]


def test_a_small_shard_has_its_answer_with_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, store__large_pieces=1 << 30)
    ps = Watched(1)
    (answer,) = ps.bring(1, *push(1, 2.0))
    assert answer == Pushed(1, APPLIED, 1, 0, 1, "") and ps.said[0][1] == 1


def test_an_answer_that_cannot_be_given_is_given_after_the_pass() -> None:
    ps = Ps(1)
    *first, last = push(1, 2.0)
    ps.bring(1, *first)

    def fails() -> None:
        raise OSError("no descriptors left")

    ps.desk.flush = fails  # type: ignore[method-assign]
    assert ps.bring(1, last)[-1] == FIRST
    assert ps.shard.store.counter == 1 and ps.values == after(2.0)
    assert ps.shard.store.hold() is not None
