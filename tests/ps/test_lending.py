"""Versions lent to readers on this machine: under which request, and when each is given back."""

from __future__ import annotations

import pytest

from dps.messages.sessions import REFUSED, Pushed
from dps.ps.serving.lending import Lending
from dps.ps.store.store import Store
from dps.training.update_modes import Async
from dps.transport.current import runtime
from dps.transport.tuning import ORDINARY
from tests.ps.test_modes import LAYOUT, Ps, sender
from tests.tuned import tune


@pytest.fixture(autouse=True)
def everything_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, shard_nbytes=1)


def lending() -> tuple[Store, Lending]:
    store = Store(LAYOUT, runtime())
    return store, Lending(store)


def test_a_lease_is_held_until_its_number_is_given_back() -> None:
    store, lent = lending()
    assert lent.lend_version(1, 7) is lent.lent(1, 7) and store.leased() == 1
    assert not lent.is_over(1, 7) and lent.lent(2, 7) is None
    lent.give_back(1, 7)
    assert store.leased() == 0 and lent.is_over(1, 7) and lent.lent(1, 7) is None


def test_all_lower_numbers_of_one_session_are_given_back_at_once() -> None:
    store, lent = lending()
    for incarnation, number in [(1, 3), (1, 4), (2, 3)]:
        lent.lend_version(incarnation, number)
    lent.give_back_below(1, 4)
    assert store.leased() == 2 and lent.is_over(1, 3) and not lent.is_over(1, 4) and not lent.is_over(2, 3)
    lent.give_back_below(1, 2)  # an older message
    assert lent.is_over(1, 3)


def test_what_was_given_back_is_not_wanted_any_more() -> None:
    _, lent = lending()
    lent.record_wish(1, 5, True)
    assert lent.is_wanted(1, 5) and not lent.is_wanted(1, 4) and not lent.is_wanted(2, 5)
    lent.give_back_below(1, 6)
    assert not lent.is_wanted(1, 5)


def test_who_asks_without_end_takes_no_memory() -> None:
    _, lent = lending()
    for number in range(3 * ORDINARY.serving.remembered):
        lent.record_wish(1, number, True)
    assert (
        sum(lent.is_wanted(1, number) for number in range(3 * ORDINARY.serving.remembered))
        == ORDINARY.serving.remembered
    )


def test_a_session_that_has_ended_holds_nothing() -> None:
    store, lent = lending()
    lent.record_wish(1, 5, True)
    lent.lend_version(1, 5)
    lent.forget_session(1)
    assert store.leased() == 0 and not lent.is_wanted(1, 5) and lent.lent(1, 5) is None


def test_a_push_that_wants_values_has_them_with_its_result_and_again_when_that_is_lost() -> None:
    ps = Ps(Async())
    ps.shard.reading.lending.record_wish(1, 1, True)
    ((_, answer),) = ps.push(1, 1)
    assert answer.lent[:2] == [1, 1] and len(answer.lent[2]) == 1 and ps.shard.store.leased() == 1
    assert ps.shard.ledgers[1].results[1].lent == []
    ps.push(2, 1)
    ps.mode.answer_repeated(ps.shard.ledgers[1], 1, sender(1))
    assert ps.desk.take() == [(1, answer)] and ps.shard.store.leased() == 1  # the version of then, still held
    ps.shard.reading.lending.give_back_below(1, 2)
    ps.mode.answer_repeated(ps.shard.ledgers[1], 1, sender(1))
    ((_, later),) = ps.desk.take()
    assert later.lent == [] and ps.shard.store.leased() == 0


def test_a_refused_push_brings_no_values() -> None:
    ps = Ps(Async())
    ps.shard.reading.lending.record_wish(1, 1, True)
    ps.shard.reading.answer_push(sender(1), Pushed(1, REFUSED, 0, 0, 0, "NaN"))
    ((_, answer),) = ps.desk.take()
    assert answer.lent == [] and ps.shard.store.leased() == 0
