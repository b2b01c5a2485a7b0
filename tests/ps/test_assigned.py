"""Values that a push sets: read from its message, set once and after the gradients, and no step."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dps.errors import ProtocolError
from dps.messages.sessions import APPLIED, DENSE, PARTS, REFUSED, VALUE, Push, Pushed
from dps.ps.intake.intake import PushOf, Staged
from dps.ps.intake.receiving import receive
from dps.ps.modes.combine import assigned, combined
from dps.ps.shard import DIGEST, digest_of
from dps.ps.store.gradients import Gradient
from dps.training.update_modes import Async, Bounded
from tests.ps.test_modes import PLAN, Ps, result, sender
from tests.ps.test_receiving import LAYOUT, A, N, S, ledger, piece, took


def parts(*found: tuple[int, int, Any], check: bool = True) -> Staged:
    """A push of parts: index, how, array."""
    message = piece(PARTS, 0, (), [[index, how, []] for index, how, _ in found], [array for *_, array in found])
    staged = took(ledger(), message, check)
    assert isinstance(staged, Staged)
    return staged


def f4(*values: Any) -> Any:
    return np.array(values, np.float32)


def test_values_come_beside_a_gradient_of_the_same_part_and_for_parts_that_are_not_trained() -> None:
    scalar = np.array(2.0, np.float32)
    staged = parts((S, VALUE, scalar), (S, DENSE, scalar + 1), (N, VALUE, np.array([4, 5])))
    update = staged.sound()
    assert not staged.assigns and float(update.parts[S]) == 3.0  # type: ignore[arg-type]
    assert {index: value.tolist() for index, value in update.values.items()} == {S: 2.0, N: [4, 5]}


def test_a_push_of_values_alone_is_known_as_one() -> None:
    assert parts((N, VALUE, np.array([4, 5]))).assigns


@pytest.mark.parametrize(
    ("index", "value", "words"),
    [
        (A, np.zeros((4, 2)), "the value of a is float64; the variable is float32"),
        (A, f4(1, 2), "the value of a has shape (2,); the variable has (4, 2)"),
        (S, np.array(np.nan, np.float32), "the value of s has NaN or infinite values"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_name(index: int, value: Any, words: str) -> None:
    staged = parts((index, VALUE, value))
    assert staged.problem == words and staged.gradient is None and staged.assigns


def test_nan_passes_by_a_switch() -> None:
    assert parts((S, VALUE, np.array(np.nan, np.float32)), check=False).problem == ""


def test_a_value_comes_once() -> None:
    with pytest.raises(ProtocolError, match="twice"):
        parts((S, VALUE, f4(1).reshape(())), (S, VALUE, f4(1).reshape(())))


def test_the_value_of_the_lowest_task_wins_and_of_one_task_its_last() -> None:
    def push(task: int, incarnation: int, number: int, **values: float) -> Staged:
        found = {"sabn".index(name): f4(value) for name, value in values.items()}
        return Staged(PushOf(task, incarnation, number, 0), Gradient(None, {}, values=found))

    pushes = [
        push(0, 3, 5, b=1.0),
        push(1, 1, 1, s=2.0, a=3.0),
        push(1, 2, 1, s=4.0, b=5.0),
        push(2, 1, 1, a=6.0, n=7.0),
    ]
    assert {index: float(value[0]) for index, value in assigned(pushes).items()} == {2: 1.0, 0: 4.0, 1: 3.0, 3: 7.0}


def test_values_do_not_take_part_in_a_mean() -> None:
    one = Gradient(None, {S: f4(2)}, values={S: f4(9)})
    alone = Gradient(None, {}, values={N: np.array([1, 2])})
    update = combined([alone, one, Gradient(None, {S: f4(4)})], LAYOUT)
    assert float(update.parts[S][0]) == 3.0 and not update.values  # type: ignore[index]


def test_borrowed_values_are_copied_once_the_session_may_go_on() -> None:
    lent = f4(1)
    own = Gradient(None, {}, borrowed=True, values={S: lent}).own()
    lent[:] = 5
    assert own.values[S].tolist() == [1.0]


# -- on a ps ----------------------------------------------------------------------------------------------------


def assign(ps: Ps, incarnation: int, number: int, value: float) -> list[Any]:
    message = Push(1, number, 0, -1, PARTS, 16, [], [[0, VALUE, []]], arrays=(np.full(2, value),))
    staged = receive(message, ps.shard.ledgers[incarnation], PLAN.layouts[0], True, ps.mode.open_intake, {})
    assert isinstance(staged, Staged)
    ps.mode.accept_push(staged, sender(incarnation))
    return ps.desk.take()


def test_values_are_set_on_arrival_as_a_version_and_the_step_stays() -> None:
    ps = Ps(Async())
    ps.push(2, 1)
    assert assign(ps, 1, 1, 7.0) == [(1, result(1, step=1, counter=2))] and ps.value == 7.0
    assert ps.push(2, 2) == [(2, result(2, step=2, counter=3))] and ps.value == 6.0
    assert ps.shard.counts["applied"] == 2


def test_values_that_come_again_are_answered_from_the_record() -> None:
    ps = Ps(Async())
    assign(ps, 1, 1, 7.0)
    ps.push(2, 1)
    ps.mode.answer_repeated(ps.shard.ledgers[1], 1, sender(1))
    assert ps.desk.take() == [(1, result(1, step=0, counter=1))] and ps.value == 6.0


def test_values_wait_for_the_pushes_before_them() -> None:
    ps = Ps(Async())
    assert assign(ps, 1, 2, 7.0) == [] and ps.value == 0.0
    assert len(ps.push(1, 1)) == 2 and ps.value == 7.0


def test_values_that_were_set_are_in_the_digest_of_the_shard() -> None:
    one, other = Ps(Async()), Ps(Async())
    for ps in (one, other):
        ps.push(1, 1)
    assert one.shard.results() == other.shard.results()
    assign(one, 1, 2, 7.0)
    assert one.shard.results()[1] != other.shard.results()[1]
    assign(other, 1, 2, 7.0)
    assert one.shard.results() == other.shard.results()


@pytest.mark.parametrize("incarnation", [1, 2, 1002, 10**9])
def test_different_pushes_have_different_digests(incarnation: int) -> None:
    """Plain hashes of numbers in a row are almost in a row: most of these sums were equal."""
    for count, most in ((2, 100), (3, 40), (4, 20)):
        sets = list(combinations(range(1, most), count))
        assert len({sum(digest_of(incarnation, n) for n in numbers) & DIGEST for numbers in sets}) == len(sets)


def test_a_version_that_only_sets_values_makes_nobody_stale() -> None:
    ps = Ps(Async(max_staleness=0))
    ps.push(1, 1, counter=0)
    assign(ps, 2, 1, 7.0)
    assert ps.push(1, 2, counter=1) == [(1, result(2, step=2, counter=3))]
    assert ps.push(2, 2, counter=1)[0][1].status == "dropped"


def test_values_that_are_refused_are_an_answer() -> None:
    ps = Ps(Async())
    (answer,) = assign(ps, 1, 1, np.inf)
    assert answer == (1, Pushed(1, REFUSED, 0, 0, 0, "the value of w has NaN or infinite values")) and ps.value == 0.0


def test_a_bounded_clock_stays() -> None:
    ps = Ps(Bounded(0))
    for number in (1, 2):
        assert assign(ps, 1, number, 7.0)[0][1].status == APPLIED
    assert ps.mode.clocks.now() == {1: 0, 2: 0}  # type: ignore[attr-defined]
    ps.push(1, 3)
    assert ps.mode.clocks.now() == {1: 1, 2: 0}  # type: ignore[attr-defined]
