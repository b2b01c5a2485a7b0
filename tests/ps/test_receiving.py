"""Messages of a push: pieces in any order, doubled or wrong; parts and rows; and the ledger that remembers pushes."""

from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps.client.cargo import About, run_pieces, shared_message
from dps.errors import Aborted, ProtocolError
from dps.messages.sessions import APPLIED, DENSE, EMPTY, PACKED, PARTS, ROWS, RUN, SHARED, WINDOW, Push, Pushed
from dps.ps.intake import parts as reading
from dps.ps.intake.borrowed import Borrowed
from dps.ps.intake.intake import Gathering, Intake, IntakeState, Keeping, PushOf, Staged
from dps.ps.intake.ledger import Ledger
from dps.ps.intake.receiving import receive
from dps.ps.store.gradients import Gradient, GradientPieces, RowGradient
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.variables.plan import VariableSpec, make_plan
from tests.variables.models import SGD

SPECS = [
    VariableSpec("a", (4, 2), "<f4", SGD), VariableSpec("n", (2,), "<i8", None), VariableSpec("b", (3,), "<f8", SGD),
    VariableSpec("s", (), "<f4", SGD),
]  # fmt: skip
LAYOUT = make_plan(SPECS, (0,), lambda *_: 0, None).layouts[0]
A, N, B, S = range(4)
SESSION = Borrowed(runtime(), lambda: True)
PARTS_OF = {part.index: part for arena in LAYOUT.arenas for part in arena.parts}


def run_of(bad: Any = None) -> Any:
    run = np.zeros(LAYOUT.nbytes, np.uint8)
    views = LAYOUT.views(run)
    for index in (A, B, S):
        views[index][...] = np.arange(views[index].size).reshape(views[index].shape) + index + 1
    if bad is not None:
        index, element, value = bad
        views[index].reshape(-1)[element] = value
    return run


def ledger() -> Ledger:
    return Ledger(2, 7, "worker:2", SESSION)


def took(session: Ledger, piece: Push, check: bool = True) -> Intake | Staged:
    return receive(piece, session, LAYOUT, check, lambda push: Gathering(push, LAYOUT, check), {})


def take(pieces: list[Push], check: bool = True) -> Staged:
    """The push of these pieces, which are all of it."""
    session = ledger()
    *first, last = pieces
    for piece in first:
        assert isinstance(took(session, piece, check), Intake)
    staged = took(session, last, check)
    assert isinstance(staged, Staged) and session.staged == {1: staged} and not session.arriving
    return staged


def pieces(size: int, bad: Any = None) -> list[Push]:
    return run_pieces(LAYOUT, run_of(bad), size, About(1, 1, 0, 0))


@settings(max_examples=50)
@given(st.integers(8, 80), st.data())
def test_a_dense_push_is_complete_when_every_piece_is_there_in_any_order_and_doubled(size: int, data: Any) -> None:
    session, order = ledger(), data.draw(st.permutations(pieces(size)))
    for index, piece in enumerate(order):
        assert not session.is_complete(1)
        doubled = data.draw(st.lists(st.sampled_from(order[:index]), max_size=2)) if index else []
        for again in [*doubled, piece]:
            took(session, again)
    push = session.staged[1]
    assert push.problem == "" and not push.sound().borrowed
    for got, wanted, arena in zip(push.sound().flats(), LAYOUT.flats(run_of()), LAYOUT.arenas, strict=True):
        if arena.optimizer is not None:
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((A, 5, np.nan), r"the gradient of a has NaN or infinite values .first at element 5."),
        ((B, 2, np.inf), r"the gradient of b has NaN or infinite values .first at element 2."),
        ((S, 0, -np.inf), r"the gradient of s has NaN or infinite values .first at element 0."),
    ],
)
@pytest.mark.parametrize("size", [8, 1000])
def test_a_number_that_is_none_is_named_by_its_variable_and_passes_by_a_switch(bad: Any, words: str, size: int) -> None:
    push = take(pieces(size, bad))
    assert push.gradient is None and re.search(words, push.problem)
    assert take(pieces(size, bad), check=False).problem == ""


def piece(form: int, nbytes: int, offsets: Any = (), parts: Any = (), arrays: Any = ()) -> Push:
    return Push(1, 1, 0, 0, form, nbytes, list(offsets), list(parts), arrays=tuple(arrays))


BYTES = np.zeros(8, np.uint8)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (piece(RUN, 8, [0], [], [BYTES]), None, "a dense push to this shard has 60 bytes, got 8"),
        (piece(RUN, 60, [0, 8], [], [BYTES]), None, "2 offsets for 1 arrays"),
        (piece(RUN, 60, [64], [], [BYTES]), None, "are no piece of a run"),  # n is not trained
        (piece(RUN, 60, [0], [], [BYTES]), piece(RUN, 60, [4], [], [BYTES]), "came before, cut otherwise"),
        (piece(RUN, 60, [8], [], [BYTES]), piece(RUN, 60, [4], [], [BYTES]), "came before, cut otherwise"),
        (piece(RUN, 60, [8], [], [BYTES]), piece(RUN, 60, [8], [], [BYTES[:4]]), "came before, cut otherwise"),
        (piece(EMPTY, 0, arrays=[BYTES]), None, "has form 0; wanted 0"),
        (piece(9, 0), None, "has form 9; wanted 0 .nothing., 1 .run., 2 .parts. or 3 .memory."),
        (piece(SHARED, 60), None, "is no place in shared memory"),
        (piece(PARTS, 0, [], [[9, 0, []]]), None, r"\[9, 0, \[\]\] describes no part of this shard"),
        (piece(PARTS, 0, [], [[A, 4, []]]), None, r"\[0, 4, \[\]\] describes no part of this shard"),
        (piece(PARTS, 0, [], [[A, PACKED, []]], [BYTES]), None, r"is packed as \[\]"),
        (piece(PARTS, 0, [], [[A, PACKED, ["top_k"]]]), None, "too few arrays"),
        (piece(PARTS, 0, [], [[A, True, []]], [BYTES]), None, "describes no part of this shard"),
        (piece(PARTS, 0, [], [[A, ROWS, "x"]], [BYTES] * 2), None, "describes no part of this shard"),
        (piece(PARTS, 0, [], ["x"]), None, "'x' describes no part of this shard"),
        (piece(PARTS, 0, [], [[N, DENSE, []]], [BYTES]), None, "part 1 is not trained"),
        (piece(PARTS, 0, [], [[A, ROWS, []]], [BYTES]), None, "too few arrays for its parts, or a part twice"),
        (piece(PARTS, 0, [], [[S, DENSE, []]] * 2, [np.zeros((), np.float32)] * 2), None, "or a part twice"),
        (piece(PARTS, 0, [], [], [BYTES]), None, "has 1 arrays too many"),
    ],
)
def test_a_piece_that_does_not_belong_is_refused(first: Push, second: Push | None, words: str) -> None:
    session = ledger()
    if second is not None:
        took(session, first)
    with pytest.raises(ProtocolError, match=words):
        took(session, second or first)
    assert not session.staged


def message_of(gradients: list[tuple[int, Any]]) -> Push:
    """A push of parts: of each an array, or (row numbers, values)."""
    described, arrays = [], []
    for index, gradient in gradients:
        described.append([index, ROWS if isinstance(gradient, tuple) else DENSE, []])
        arrays += list(gradient) if isinstance(gradient, tuple) else [gradient]
    return piece(PARTS, sum(a.nbytes for a in arrays), [], described, arrays)


def parts(*described: tuple[int, Any]) -> Staged:
    return take([message_of(list(described))])


def test_parts_come_as_arrays_or_rows_and_duplicates_are_summed() -> None:
    rows, values = np.array([3, 1, 3]), np.array([[1, 2], [3, 4], [10, 20]], np.float32)
    push = parts((B, np.ones(3)), (A, (rows, values)), (S, np.float32(2).reshape(())))
    assert push.problem == "" and list(push.sound().parts) == [B, A, S]
    gradient = push.sound().parts[A]
    assert isinstance(gradient, RowGradient)
    assert gradient.rows.tolist() == [1, 3] and gradient.values.tolist() == [[3, 4], [11, 22]]


def test_what_is_staged_is_a_copy() -> None:
    gradient = np.ones(3)
    push = parts((B, gradient))
    gradient[:] = 9
    kept = push.sound().parts[B]
    assert isinstance(kept, np.ndarray) and kept.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("part", "gradient", "words"),
    [
        (A, np.zeros((2, 4), np.float32), r"the gradient of a has shape \(2, 4\); the variable has \(4, 2\)"),
        (B, np.zeros(3, np.float32), "the gradient of b is float32; the variable is float64"),
        (B, np.array([0, np.nan, 0]), "the gradient of b has NaN or infinite values"),
        (A, (np.array([0]), np.full((1, 2), np.inf, np.float32)), "the gradient of a has NaN or infinite values"),
        (
            A,
            (np.array([4]), np.zeros((1, 2), np.float32)),
            "row 4 of a is out of range; wanted 0 to 3",
        ),
        (A, (np.array([-1]), np.zeros((1, 2), np.float32)), "row -1 of a is out of range; wanted 0 to 3"),
        (A, (np.array([0]), np.zeros((2, 2), np.float32)), r"has shape \(2, 2\); its row numbers want \(1, 2\)"),
        (A, (np.array([0], np.int16), np.zeros((1, 2), np.float32)), "got indices int16"),
        (S, (np.array([0]), np.zeros(1, np.float32)), "s is a scalar, which has no rows"),
    ],
)
def test_a_bad_gradient_is_whole_with_a_problem_that_names_the_variable(part: int, gradient: Any, words: str) -> None:
    push = parts((part, gradient), (B if part != B else S, np.zeros(3) if part != B else np.zeros((), np.float32)))
    assert push.gradient is None and re.search(words, push.problem)


def test_an_empty_push_is_complete_at_once() -> None:
    assert take([piece(EMPTY, 0)]).sound().is_empty


def test_a_number_that_is_out_of_reach_is_refused() -> None:
    session = ledger()
    with pytest.raises(Aborted, match=f"push {WINDOW + 1} is too far ahead: 0 are done, {WINDOW} more may be open"):
        took(session, Push(1, WINDOW + 1, 0, 0, EMPTY, 0, [], []))


def test_a_run_in_memory_is_looked_at_by_its_pass_or_on_request() -> None:
    memory = runtime().share(LAYOUT.nbytes)
    memory.array[:] = run_of((A, 1, np.nan))
    (whole,) = shared_message(LAYOUT, memory.name, About(1, 1, 0, 0))
    push = take([whole])
    assert push.sound().borrowed and not push.sound().checked and push.problem == ""
    push.check_finite(Store(LAYOUT, runtime()))
    assert push.sound().checked and "has NaN or infinite values" in push.problem
    assert take([whole], check=False).sound().checked


def test_the_order_of_summation_is_task_incarnation_number() -> None:
    pushes = [PushOf(1, 3, 2, 9), PushOf(0, 9, 1, 9), PushOf(1, 3, 1, 9)]
    assert [push[:3] for push in sorted(pushes)] == [(0, 9, 1), (1, 3, 1), (1, 3, 2)]


# -- the ledger ---------------------------------------------------------------------------------------------------


def result(number: int) -> Pushed:
    return Pushed(number, APPLIED, 0, 0, 0, "")


@given(st.permutations(range(1, 6)))
def test_done_is_the_highest_number_with_all_before_it(order: list[int]) -> None:
    session = ledger()
    for count, number in enumerate(order, 1):
        session.stage_push(Staged(PushOf(0, 1, number, 0)), 0)
        session.record_result(result(number))
        recorded = set(order[:count])
        assert session.done == next(n for n in range(6) if n + 1 not in recorded)
        assert [session.has_result(n) for n in range(1, 6)] == [n in recorded for n in range(1, 6)]
    assert session.staged == {}


def test_the_last_results_are_kept_and_what_is_older_counts_as_decided() -> None:
    session = Ledger(0, 1, "worker:0", SESSION, window=3)
    for number in range(1, 11):
        session.check_reach(number)
        session.check_reach(number + 2)
        with pytest.raises(Aborted, match="too far ahead"):
            session.check_reach(number + 3)
        session.record_result(result(number))
    assert sorted(session.results) == [8, 9, 10] and session.has_result(1)
    with pytest.raises(Aborted):
        session.check_reach(10)


def test_kept_pieces_go_while_they_are_taken() -> None:
    push = Keeping(PushOf(2, 7, 1, 0), LAYOUT, True)
    for one in pieces(16):
        assert push.state is IntakeState.ARRIVING
        push.take_pieces(one)
    assert push.state is IntakeState.COMPLETE and push.ranges.nbytes == LAYOUT.gradient_nbytes
    for run in push.staged().sound().run or ():
        assert isinstance(run, GradientPieces)
        left = [len(run.arrays) for _ in run.taken(1)]
        assert left == list(range(len(left)))[::-1]


def test_what_is_borrowed_is_copied_once_the_session_may_go_on() -> None:
    values = np.ones(3)
    of_parts = Gradient(None, {B: values, A: RowGradient(np.array([1]), values.reshape(1, 3))}, borrowed=True)
    of_run, own = Gradient([values], {}, borrowed=True, checked=False), Gradient([values], {})
    kept = [of_parts.own(), of_run.own()]
    values[:] = 9
    dense, rows = kept[0].parts[B], kept[0].parts[A]
    assert isinstance(dense, np.ndarray) and isinstance(rows, RowGradient)
    assert dense.tolist() == kept[1].flats()[0].tolist() == rows.values[0].tolist() == [1, 1, 1]
    assert not any(each.borrowed for each in kept) and [each.checked for each in kept] == [True, False]
    assert own.own() is own


def test_row_numbers_are_checked_in_a_copy() -> None:
    rows = np.arange(4)
    kept = reading.checked(PARTS_OF[A], rows)
    rows[0] = 1000  # as a peer could do in shared memory
    assert kept.tolist() == [0, 1, 2, 3]
