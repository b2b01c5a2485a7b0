"""Credit for large pushes: one at a time where memory counts, two where one is slow, and nobody waits for ever."""

from __future__ import annotations

from typing import Any

import pytest

from dps.actors.answers import Waiting
from dps.messages.sessions import APPLIED, Credit
from dps.ps.intake.credit import Credits
from dps.ps.modes.sync import SyncMode
from dps.training.update_modes import SyncReplicas
from dps.transport.tuning import ORDINARY
from tests.ps.test_ahead import Ps, after, push
from tests.ps.test_modes import sender
from tests.tuned import tune

SLOW, CREDIT_TIMEOUT_S = ORDINARY.intake.slow_windows, ORDINARY.intake.credit_s
SLOW_NBYTES_S, WINDOW_S = ORDINARY.serving.slow_nbytes_s, ORDINARY.serving.window_s
GRANTED = None
"""What the desk notes of an answer without a message."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A large shard, nothing applied ahead, and a clock that stands still unless it is moved."""
    now = [100.0]
    tune(monkeypatch, store__large_pieces=0, store__ahead_pieces=1 << 30)
    monkeypatch.setattr(type(Ps(1).desk.runtime), "now", lambda self: now[0])
    return now


def ask(ps: Ps, incarnation: int, number: int = 1) -> list[tuple[int, Any]]:
    ps.actor.on_Credit(Credit(1, number), sender(incarnation))
    return ps.desk.take()


def waits(answers: list[tuple[int, Any]]) -> bool:
    return len(answers) == 1 and isinstance(answers[0][1], Waiting)


def test_the_next_push_of_a_large_shard_begins_when_the_one_before_is_applied() -> None:
    ps = Ps(1, 2, 3)
    assert ask(ps, 1) == [(1, GRANTED)]
    assert waits(ask(ps, 2)) and waits(ask(ps, 3))
    *first, last = push(1, 2.0)
    assert ps.bring(1, *first) == []
    ps.actor.on_Push(last, sender(1))
    (one, result), (two, granted) = ps.desk.take()
    assert one == 1 and result.status == APPLIED and (two, granted) == (2, GRANTED)
    assert ps.values == after(2.0)


def test_two_begin_at_once_where_a_shard_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, store__large_pieces=1 << 30)
    ps = Ps(1, 2, 3)
    assert ask(ps, 1) == [(1, GRANTED)] and ask(ps, 2) == [(2, GRANTED)] and waits(ask(ps, 3))


def test_two_begin_at_once_in_sync_where_their_memory_stays_until_the_step() -> None:
    ps = Ps(1, 2, 3)
    ps.shard.mode = SyncMode(ps.shard, SyncReplicas(3))
    assert ask(ps, 1) == [(1, GRANTED)] and ask(ps, 2) == [(2, GRANTED)] and waits(ask(ps, 3))


def slow(ps: Ps, clock: list[float], windows: int) -> list[tuple[int, Any]]:
    heard: list[tuple[int, Any]] = []
    for _ in range(windows):
        clock[0] += WINDOW_S
        heard += ps.desk.moment()
    return heard


def test_a_push_that_is_brought_slowly_is_not_waited_for(clock: list[float]) -> None:
    ps = Ps(1, 2, 3)
    ask(ps, 1)
    ask(ps, 2)
    assert slow(ps, clock, SLOW - 1) == [] and slow(ps, clock, 1) == [(2, GRANTED)]
    assert waits(ask(ps, 3))  # there are two


def test_once_pushes_are_slow_two_begin_at_once_until_one_is_fast(clock: list[float]) -> None:
    ps = Ps(1, 2, 3)
    ask(ps, 1)
    ask(ps, 2)
    slow(ps, clock, SLOW)
    ps.bring(1, *push(1, 1.0))
    assert ask(ps, 3) == [(3, GRANTED)]  # beside that of 2
    ps.bring(2, *push(1, 1.0))
    ps.bring(3, *push(1, 1.0))  # took no time at all
    assert ask(ps, 1, 2) == [(1, GRANTED)] and waits(ask(ps, 2, 2))


def test_a_push_that_keeps_its_pace_is_waited_for(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, serving__slow_nbytes_s=16 / WINDOW_S)
    ps = Ps(1, 2)
    ask(ps, 1)
    ask(ps, 2)
    for piece in push(1, 1.0)[:4]:
        ps.bring(1, piece)  # 16 bytes
        assert slow(ps, clock, 1) == []
    assert slow(ps, clock, SLOW) == [(2, GRANTED)]


def test_a_sender_that_brings_nothing_loses_its_credit_to_the_next(clock: list[float]) -> None:
    ps = Ps(1, 2, 3)
    for incarnation in (1, 2, 3):
        ask(ps, incarnation)
    slow(ps, clock, SLOW)
    clock[0] += CREDIT_TIMEOUT_S + 1
    ps.actor._expire_credit()
    assert (3, GRANTED) in ps.desk.take()


def test_the_pace_is_more_than_a_gigabit_and_less_than_what_two_and_a_half_bring() -> None:
    assert 1e9 / 8 < SLOW_NBYTES_S < 2.5e9 / 8


def test_a_push_that_had_its_credit_with_a_result_counts_as_one_on_its_way() -> None:
    ps = Ps(1)
    ask(ps, 1)
    (result,) = ps.bring(1, *push(1, 2.0))
    assert result.credit
    first, *rest = push(2, 1.0)
    assert ps.bring(1, first) == [] and waits(ask(ps, 1, 3))
    answers = ps.bring(1, *rest)
    assert GRANTED in answers and ps.values == after(3.0)


def test_such_a_push_that_is_brought_no_further_goes(clock: list[float]) -> None:
    ps = Ps(1)
    ask(ps, 1)
    ps.bring(1, *push(1, 2.0))
    ps.bring(1, *push(2, 1.0)[:-1])
    clock[0] += CREDIT_TIMEOUT_S + 1
    ps.actor._expire_credit()
    assert not ps.shard.ledgers[1].staged and ps.aside == 0
    assert ps.bring(1, *push(2, 4.0))[-1].status == APPLIED and ps.values == after(6.0)


# -- the policy alone: events with their times in, who has credit out -------------------------------------------------

MB = 10**6


def of(incarnation: int, number: int = 1) -> tuple[int, int]:
    return incarnation, number


def wanted(*incarnations: int) -> Credits:
    """Pushes of 100 MB; all of these want credit, and the first has it."""
    credits = Credits(100 * MB)
    for incarnation in incarnations:
        credits.wanted[of(incarnation)] = sender(incarnation)
    assert granted(credits, 0.0) == [incarnations[0]]
    return credits


def granted(credits: Credits, now: float, saves_memory: bool = True) -> list[int]:
    return [each.incarnation for each in credits.take_granted(now, saves_memory)]


def test_credit_is_granted_in_the_order_of_asking_one_at_a_time() -> None:
    credits = wanted(1, 2, 3)
    assert of(1) in credits.held and of(2) in credits.wanted and granted(credits, 0.1) == []
    credits.return_credit(of(1), 0.2)
    assert granted(credits, 0.2) == [2] and of(3) in credits.wanted


def test_two_have_credit_where_memory_is_not_spared() -> None:
    credits = wanted(1, 2, 3)
    assert granted(credits, 0.1, saves_memory=False) == [2] and granted(credits, 9.0, saves_memory=False) == []


def test_who_waits_is_looked_after_with_one_timer_for_each_window() -> None:
    credits = wanted(1, 2)
    assert credits.next_grant_s(0.0) == WINDOW_S and credits.next_grant_s(0.1) is None
    credits.record_piece(of(1), 90 * MB, WINDOW_S)
    assert granted(credits, WINDOW_S) == [] and credits.next_grant_s(WINDOW_S) == WINDOW_S
    for window in range(2, SLOW + 1):
        assert granted(credits, window * WINDOW_S) == []
    assert granted(credits, (SLOW + 1) * WINDOW_S) == [2] and credits.next_grant_s(9.0) is None


def test_after_one_that_was_fast_the_next_is_waited_for_again() -> None:
    credits = wanted(1, 2, 3)
    for window in range(1, SLOW + 1):
        granted(credits, window * WINDOW_S)
    credits.return_credit(of(1), 10.0)
    assert granted(credits, 10.0) == [3], "beside the second"
    credits.return_credit(of(2), 100.0)
    credits.return_credit(of(3), 10.5)
    credits.wanted[of(1, 2)] = sender(1)
    credits.wanted[of(2, 2)] = sender(2)
    assert granted(credits, 101.0) == [1]


def test_a_push_that_begins_without_asking_counts() -> None:
    credits = Credits(100 * MB)
    credits.record_piece(of(1), MB, 0.0)
    credits.wanted[of(2)] = sender(2)
    assert granted(credits, 0.1) == []


def test_who_brings_nothing_loses_its_credit() -> None:
    credits = wanted(1, 2)
    credits.record_piece(of(1), MB, 1.0)
    assert credits.expire_credit(1.0 + CREDIT_TIMEOUT_S) == []
    assert credits.expire_credit(1.1 + CREDIT_TIMEOUT_S) == [of(1)] and of(1) not in credits.held
