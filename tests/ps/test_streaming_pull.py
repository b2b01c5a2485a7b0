"""A pull that waits for a push is sent the values, all but the last piece, while the push is still arriving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps import optim
from dps.client.cargo import About, run_pieces
from dps.messages.sessions import APPLIED, NO_BASE, REFUSED, Pull, Pushed, Values
from dps.ps.modes.asynchronous import BoundedMode
from dps.ps.serving import sending
from dps.training.update_modes import Bounded
from dps.variables.plan import VariableSpec, make_plan
from tests.ps.test_ahead import LAYOUT, Ps, after, push
from tests.ps.test_modes import sender
from tests.tuned import tune

ALL = LAYOUT.data_nbytes
PULL = 70


@pytest.fixture(autouse=True)
def pieces_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, store__ahead_pieces=0)
    monkeypatch.setattr(sending, "piece_size", lambda nbytes, smallest, soon: 16)


class Waited(Ps):
    """Session 1 waits for the values after its first push, under request PULL."""

    def __init__(self, *incarnations: int, **given: Any) -> None:
        super().__init__(*(incarnations or (1,)), **given)
        self.later: list[Any] = []
        """What happens when messages have left, if they do not at once."""

    def asks(self, number: int = 1, **given: Any) -> list[Any]:
        self.shard.reading.answer_pull(sender(1, PULL), Pull(1, 0, number, 0, NO_BASE, [], **given))
        return [message for _, message in self.desk.take()]

    def leave_later(self) -> None:
        answer = self.desk.answer

        def kept(to: Any, message: Any = None, done: Any = None) -> None:
            if done is not None:
                self.later.append(done)
            answer(to, message)

        self.desk.answer = kept  # type: ignore[method-assign]

    @property
    def leased(self) -> int:
        return sum(buffer.leases for memory in self.shard.store.arenas for buffer in memory.buffers)


def nbytes(answers: list[Any]) -> int:
    return sum(array.nbytes for m in answers if isinstance(m, Values) for array in m.arrays)


def run_of(answers: list[Any]) -> list[float]:
    """The values of a complete answer."""
    run = bytearray(LAYOUT.nbytes)
    for message in answers:
        if isinstance(message, Values):
            for offset, array in zip(message.offsets, message.arrays, strict=True):
                run[offset : offset + array.nbytes] = array.tobytes()

    views = LAYOUT.views(np.frombuffer(run, np.uint8))
    return [float(x) for index in (0, 2) for x in views[index].reshape(-1)]


def test_values_leave_while_the_push_comes_and_the_last_of_them_when_it_is_applied() -> None:
    ps = Waited()
    assert ps.asks() == []
    *first, last = push(1, 2.0)
    before = ps.bring(1, *first)
    assert before and all(isinstance(message, Values) for message in before) and 0 < nbytes(before) < ALL
    assert ps.shard.store.counter == 0 and ps.values == after(), "nobody else sees any of it"
    rest = ps.bring(1, last)
    assert Pushed(1, APPLIED, 1, 0, 1, "") in rest and nbytes(before + rest) == ALL
    values = [message for message in before + rest if isinstance(message, Values)]
    assert {(v.counter, v.step, v.nbytes, v.answer) for v in values} == {(1, 1, ALL, 1)}
    assert run_of(before + rest) == after(2.0) == ps.values
    assert ps.leased == ps.aside == 0 and ps.shard.counts["pulls"] == 1


def test_of_a_push_that_is_refused_the_values_are_those_of_before_under_a_higher_number() -> None:
    ps = Waited()
    ps.asks()
    *first, last = push(1, 2.0, bad=12)
    assert nbytes(ps.bring(1, *first))
    rest = ps.bring(1, last)
    assert [m.status for m in rest if isinstance(m, Pushed)] == [REFUSED]
    assert {(m.counter, m.answer) for m in rest if isinstance(m, Values)} == {(0, 2)}
    assert nbytes(rest) == ALL and run_of(rest) == after() and ps.leased == ps.aside == 0


def test_when_another_push_comes_in_between_the_values_have_both() -> None:
    ps = Waited(1, 2)
    ps.asks()
    *first, last = push(1, 2.0)
    assert nbytes(ps.bring(1, *first))
    ps.bring(2, *push(1, 4.0))
    rest = ps.bring(1, last)
    assert {(m.counter, m.answer) for m in rest if isinstance(m, Values)} == {(2, 2)}
    assert nbytes(rest) == ALL and run_of(rest) == after(6.0) and ps.leased == ps.aside == 0


def test_who_waits_for_another_push_or_for_none_is_answered_as_ever() -> None:
    ps = Waited()
    ps.asks(number=2)
    *first, last = push(1, 2.0)
    assert ps.bring(1, *first) == [] and nbytes(ps.bring(1, last)) == 0
    assert nbytes(ps.bring(1, *push(2, 2.0))) == ALL


def test_while_somebody_reads_the_current_version_no_other_is_begun_to_be_sent() -> None:
    ps = Waited()
    reader = ps.shard.store.hold()
    ps.asks()
    *first, last = push(1, 2.0)
    assert reader is not None and ps.bring(1, *first) == []
    assert run_of(ps.bring(1, last)) == after(2.0)
    reader.release()


@pytest.mark.parametrize("optimizer", [optim.Adagrad(0.5), optim.SGD(0.5)])
def test_slow_readers_never_leave_a_push_without_memory(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan([VariableSpec("a", (16, 2), "<f4", optimizer.to_wire())], (0,), lambda *_: 0, None)
    monkeypatch.setattr("tests.ps.test_ahead.PLAN", plan)
    tune(monkeypatch, store__large_pieces=0, store__group_nbytes=16)
    ps = Waited(*range(1, 8))
    ps.leave_later()
    run = np.ones(32, np.float32).view(np.uint8)
    for incarnation in range(1, 8):
        ps.shard.reading.answer_pull(sender(incarnation, PULL), Pull(1, 0, 1, 0, NO_BASE, []))
        answers = ps.bring(incarnation, *run_pieces(plan.layouts[0], run, 16, About(1, 1, 0, -1)))
        assert [m.status for m in answers if isinstance(m, Pushed)] == [APPLIED]
    assert ps.shard.store.counter == 7


def test_in_bounded_mode_nobody_reads_before_the_push_counts() -> None:
    ps = Waited(1, 2)
    ps.shard.mode = mode = BoundedMode(ps.shard, Bounded(1))
    ps.members(1, 2)
    ps.shard.reading.answer_pull(sender(1, PULL), Pull(1, 0, 1, 1, NO_BASE, []))
    *first, last = push(1, 2.0)
    assert ps.bring(1, *first) == [] and mode.clocks.now() == {1: 0, 2: 0}
    assert run_of(ps.bring(1, last)) == after(2.0) and mode.clocks.now() == {1: 1, 2: 0}


@pytest.mark.parametrize("slow", [False, True])
def test_where_values_have_left_slowly_they_leave_with_the_first_piece(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, store__ahead_pieces=0, intake__telling=0, serving__early_told_s=1e9)
    ps = Waited()
    if slow:
        ps.shard.ledgers[1].rate = float(ALL)
    ps.asks()
    first, *_ = push(1, 2.0)
    assert (nbytes(ps.bring(1, first)) > 0) == slow


def test_over_a_fast_connection_values_leave_when_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, serving__fast_nbytes_s=0.0)
    ps = Waited()
    ps.asks()
    *first, last = push(1, 2.0)
    assert ps.bring(1, *first) == [] and run_of(ps.bring(1, last)) == after(2.0)


def test_a_pull_that_comes_again_meanwhile_is_not_answered_twice() -> None:
    ps = Waited()
    ps.asks()
    *first, last = push(1, 2.0)
    before = ps.bring(1, *first)
    assert ps.asks() == []
    assert nbytes(before + ps.bring(1, last)) == ALL


@pytest.mark.parametrize("bad", [-1, 12])
def test_the_memory_is_held_until_all_of_it_has_left(bad: int) -> None:
    ps = Waited()
    ps.leave_later()
    ps.asks()
    ps.bring(1, *push(1, 2.0, bad=bad))
    assert ps.leased > 0
    assert ps.asks() == [], "the answer is on its way"
    for left in ps.later:
        left()
    assert ps.leased == 0
    assert nbytes(ps.asks()) == ALL, "and was lost"


def test_a_session_that_ends_meanwhile_leaves_nothing_behind() -> None:
    ps = Waited(1, 2)
    ps.asks()
    *first, _ = push(1, 2.0)
    assert nbytes(ps.bring(1, *first))
    ps.members(2)
    assert ps.leased == ps.aside == 0 and ps.values == after() and not ps.shard.reading.is_waiting(sender(1, PULL))
    assert ps.bring(2, *push(1, 4.0))[0].status == APPLIED


def test_pieces_that_are_wanted_again_begin_the_answer_anew() -> None:
    ps = Waited()
    ps.asks()
    *first, last = push(1, 2.0)
    ps.bring(1, *first)
    ps.members(1, 2)
    ps.bring(2, *push(1, 4.0))
    ps.bring(1, last)  # what came was let go: it is asked for
    rest = ps.bring(1, *push(1, 2.0))
    assert nbytes(rest) == ALL and run_of(rest) == after(6.0)
