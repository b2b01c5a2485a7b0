"""Pushes that are applied while they arrive: whole or not there, once, with the bits of one pass at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps import optim
from dps.client.cargo import About, run_pieces, shared_message
from dps.errors import ProtocolError
from dps.messages.runs import Members
from dps.messages.sessions import APPLIED, REFUSED, RUN, Credit, Push, Pushed, PushMissing
from dps.process.backoff import Backoff
from dps.ps.modes.asynchronous import AsyncMode
from dps.ps.server import PsActor
from dps.ps.shard import Shard
from dps.training import update_modes as update
from dps.training.update_modes import Async
from dps.transport.current import runtime
from dps.transport.tuning import ORDINARY
from dps.variables.plan import VariableSpec, make_plan
from tests.ps.test_modes import Desk, sender
from tests.tuned import tune

SPECS = [
    VariableSpec("a", (4, 2), "<f4", optim.SGD(0.5).to_wire()), VariableSpec("n", (2,), "<i8", None),
    VariableSpec("b", (5,), "<f8", optim.SGD(0.25).to_wire()),
]  # fmt: skip
PLAN = make_plan(SPECS, (0,), lambda *_: 0, None)
LAYOUT = PLAN.layouts[0]


@pytest.fixture(autouse=True)
def nothing_is_small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        tune(patch, store__ahead_pieces=0)
        yield


class Ps:
    """A ps with a shard of zeros, and the sessions of these incarnations."""

    def __init__(self, *incarnations: int, settings: Any = None) -> None:
        self.desk, self.actor, self.version = Desk(), PsActor(), 0
        self.actor.node = self.desk  # type: ignore[assignment]
        self.shard = Shard(
            self.actor.node, 1, PLAN, 0, {}, {"update": update.to_wire(Async()), **(settings or {})}
        )  # fmt: skip
        self.shard.mode = AsyncMode(self.shard, Async())
        self.actor.shard = self.shard
        self.members(*incarnations)

    def members(self, *incarnations: int) -> None:
        self.version += 1
        self.shard.set_members(
            Members(1, self.version, [[i, f"worker:{i - 1}", i - 1, True] for i in incarnations], [], [], 0)
        )

    def bring(self, incarnation: int, *pieces: Push) -> list[Any]:
        for piece in pieces:
            self.actor.on_Push(piece, sender(incarnation))
        return [message for _, message in self.desk.take()]

    @property
    def values(self) -> list[float]:
        return [float(x) for part in (PLAN.parts[0], PLAN.parts[2]) for x in self.shard.store.part(part).reshape(-1)]

    @property
    def aside(self) -> int:
        return sum(buffer.drafted for memory in self.shard.store.arenas for buffer in memory.buffers)


def push(number: int, value: float, bad: int = -1) -> list[Push]:
    """A push of `value` for all elements, in pieces of 16 bytes; element `bad` is NaN."""
    run = np.zeros(LAYOUT.nbytes, np.uint8)
    views = LAYOUT.views(run)
    for place, index in enumerate((0, 2)):
        views[index][...] = value
        if 0 <= bad - 8 * place < views[index].size:
            views[index].reshape(-1)[bad - 8 * place] = np.nan
    return run_pieces(LAYOUT, run, 16, About(1, number, 0, -1))


def after(*applied: float) -> list[float]:
    """The values once pushes of these values have been applied: a has rate 0.5, b has 0.25."""
    return [-0.5 * sum(applied)] * 8 + [-0.25 * sum(applied)] * 5


def test_nothing_is_seen_of_a_push_before_its_last_piece_and_all_of_it_then() -> None:
    ps = Ps(1)
    *first, last = push(1, 2.0)
    assert ps.bring(1, *first) == [] and ps.values == after() and ps.shard.store.counter == 0
    assert ps.aside == 2
    assert ps.bring(1, last) == [Pushed(1, APPLIED, 1, 0, 1, "")]
    assert ps.values == after(2.0) and ps.shard.store.counter == 1 and ps.aside == 0


@pytest.mark.parametrize("sessions", [(1,), (1, 2)])
def test_nan_in_the_last_piece_means_that_nothing_is_applied(sessions: tuple[int, ...]) -> None:
    ps = Ps(*sessions)
    (answer,) = ps.bring(1, *push(1, 2.0, bad=12))
    assert answer == Pushed(1, REFUSED, 0, 0, 0, "the gradient of b has NaN or infinite values (first at element 4)")
    assert ps.values == after() and ps.aside == 0
    assert ps.bring(1, *push(2, 3.0))[0].status == APPLIED and ps.values == after(3.0)


def test_nan_is_let_through_where_nobody_wants_it_looked_for() -> None:
    ps = Ps(1, settings={"check_finite": False})
    (answer,) = ps.bring(1, *push(1, 2.0, bad=0))
    assert answer.status == APPLIED
    assert np.isnan(ps.values[0]) and ps.values[1:] == after(2.0)[1:]


def test_pieces_that_come_again_after_the_answer_count_for_nothing_whatever_they_hold() -> None:
    ps = Ps(1)
    ps.bring(1, *push(1, 2.0))
    answers = ps.bring(1, *push(1, 1000.0), *push(1, 1.0, bad=3))
    assert {answer.status for answer in answers} == {APPLIED} and ps.values == after(2.0)
    assert not ps.shard.ledgers[1].staged and ps.shard.counts["applied"] == 1


def test_a_piece_that_comes_twice_before_the_answer_is_applied_once() -> None:
    ps = Ps(1)
    ps.bring(1, *[piece for piece in push(1, 2.0) for _ in range(2)])
    assert ps.values == after(2.0) and ps.shard.counts["applied"] == 1


def test_a_piece_that_overlaps_others_is_refused_and_leaves_no_trace() -> None:
    ps = Ps(1)
    pieces = push(1, 2.0)
    ps.bring(1, pieces[0])
    wrong = Push(1, 1, 0, -1, RUN, LAYOUT.gradient_nbytes, [8], [], 0, arrays=(np.zeros(16, np.uint8),))
    with pytest.raises(ProtocolError, match="came before, cut otherwise"):
        ps.bring(1, wrong)
    ps.bring(1, *pieces[1:])
    assert ps.values == after(2.0)


def test_a_push_that_another_one_came_between_is_applied_after_it() -> None:
    ps = Ps(1, 2)
    *first, last = push(1, 2.0)
    ps.bring(1, *first)
    ps.bring(2, *push(1, 8.0))
    assert ps.values == after(8.0)
    assert ps.bring(1, last)[0] == Pushed(1, APPLIED, 2, 0, 2, "")
    assert ps.values == after(8.0, 2.0) and ps.aside == 0


def test_pieces_that_were_not_kept_are_asked_for_again_when_somebody_else_came_between() -> None:
    ps = Ps(1)
    pieces = push(1, 2.0)
    ps.bring(1, *pieces[:2])
    ps.members(1, 2)
    ps.bring(2, *push(1, 8.0))
    assert ps.bring(1, pieces[2]) == [PushMissing(1)]
    assert ps.bring(1, *pieces[3:]) == []
    assert ps.bring(1, *pieces)[0].status == APPLIED
    assert ps.values == after(8.0, 2.0) and ps.aside == 0


def test_a_session_that_ends_in_the_middle_leaves_no_trace() -> None:
    ps = Ps(1, 2)
    ps.bring(1, *push(1, 2.0)[:-1])
    ps.members(2)
    assert ps.aside == 0
    ps.bring(2, *push(1, 8.0))
    assert ps.values == after(8.0)


def test_a_sender_that_brings_nothing_loses_its_place_and_may_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ps = Ps(1)
    clock = [100.0]
    monkeypatch.setattr(type(ps.desk.runtime), "now", lambda self: clock[0])
    ps.actor.on_Credit(Credit(1, 1), sender(1))
    ps.bring(1, *push(1, 2.0)[:-1])
    assert ps.aside == 2
    clock[0] += ORDINARY.intake.credit_s + 1
    ps.actor._expire_credit()
    assert ps.aside == 0
    ps.bring(1, *push(1, 2.0))
    assert ps.values == after(2.0)


def test_a_reader_keeps_its_version_and_others_find_room_while_a_push_arrives() -> None:
    ps = Ps(1, 2)
    store = ps.shard.store
    *first, last = push(1, 2.0)
    ps.bring(1, *first)
    lease = store.hold()
    assert lease is not None
    ps.bring(2, *push(1, 8.0))  # one buffer is read, one is being written: the third
    newer = store.hold()
    ps.bring(1, last)
    assert ps.values == after(8.0, 2.0)
    assert lease.arrays[0].tolist() == after()[:8]
    assert newer is None or newer.arrays[0].tolist() == after(8.0)[:8]


def test_the_more_often_others_come_in_between_the_more_pushes_are_left_alone() -> None:
    worth = Backoff(63)
    assert worth.may_try()
    for skipped in (1, 3, 7):
        worth.record_try(False)
        assert [worth.may_try() for _ in range(skipped + 1)] == [False] * skipped + [True]
    for skipped in (3, 1, 0):
        worth.record_try(True)
        assert [worth.may_try() for _ in range(skipped + 1)] == [False] * skipped + [True]
    assert worth.may_try()


def test_all_of_the_push_in_shared_memory_may_follow_its_first_pieces() -> None:
    ps = Ps(1)
    pieces, memory = push(1, 2.0), runtime().share(LAYOUT.nbytes)
    for piece in pieces:
        for offset, data in zip(piece.offsets, piece.arrays, strict=True):
            memory.array[offset : offset + data.nbytes] = data
    ps.bring(1, *pieces[:2])
    (whole,) = shared_message(LAYOUT, memory.name, About(1, 1, 0, -1))
    assert [answer.status for answer in ps.bring(1, whole)] == [APPLIED]
    assert ps.values == after(2.0) and ps.aside == 0


@settings(max_examples=100, deadline=None)
@given(st.data(), st.booleans())
def test_whatever_comes_in_whatever_order_each_sound_push_is_applied_once_and_whole(data: Any, streams: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if streams:
            tune(patch, store__stream_nbytes=0)
        alone = data.draw(st.booleans())
        ps = Ps(1) if alone else Ps(1, 2)
        values = {(1, 1): 1.0, (1, 2): 2.0, (2, 1): 4.0, (2, 2): 8.0}
        bad = data.draw(st.dictionaries(st.sampled_from(list(values)), st.integers(0, 12), max_size=1))
        pieces = {key: push(key[1], value, bad.get(key, -1)) for key, value in values.items()}
        coming = data.draw(st.permutations([(key, piece) for key in pieces for piece in range(len(pieces[key]))]))
        joined, applied = not alone, 0.0
        results: dict[Any, str] = {}
        while coming:
            key, number = coming.pop(0)
            if key[0] == 2 and not joined:
                ps.members(1, 2)
                joined = True
            ps.actor.on_Push(pieces[key][number], sender(key[0]))
            for incarnation, answer in ps.desk.take():
                if isinstance(answer, PushMissing):
                    coming += [((incarnation, answer.number), p) for p in range(len(pieces[key]))]
                elif isinstance(answer, Pushed):
                    results[incarnation, answer.number] = answer.status
            applied = sum(values[k] for k, status in results.items() if status == APPLIED)
            assert ps.values == after(applied)
        assert results == {key: REFUSED if key in bad else APPLIED for key in values}
        assert ps.aside == 0
