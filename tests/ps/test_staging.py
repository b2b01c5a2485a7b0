"""Pushes on their way in: pieces in any order, doubled or wrong; and the ledger that remembers them."""

from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps.client.cargo import About, run_pieces
from dps.errors import ProtocolError
from dps.protocol import APPLIED, DENSE, EMPTY, LISTED, PACKED, PARTS, ROWS, RUN, SHARED, WINDOW, Push, Pushed
from dps.ps.intake import rowlists
from dps.ps.intake.borrowed import Borrowed
from dps.ps.intake.ledger import Ledger
from dps.ps.intake.parts import unknown_list
from dps.ps.intake.staging import KEEPS, Staged
from dps.ps.store.gradients import Pieces, RowGradient
from dps.transport.current import runtime
from dps.transport.tuning import ORDINARY
from dps.variables.plan import VariableSpec, make_plan
from tests.tuned import tune
from tests.variables.models import SGD

SPECS = [
    VariableSpec("a", (4, 2), "<f4", SGD), VariableSpec("n", (2,), "<i8", None), VariableSpec("b", (3,), "<f8", SGD),
    VariableSpec("s", (), "<f4", SGD),
]  # fmt: skip
LAYOUT = make_plan(SPECS, (0,), lambda *_: 0, None).layouts[0]
A, N, B, S = range(4)
SESSION = Borrowed(runtime())
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


def staged(form: int, nbytes: int) -> Staged:
    return Staged(2, 7, 1, 0, 0, form, nbytes)


def take(pieces: list[Push], check_finite: bool = True) -> Staged:
    push = staged(pieces[0].form, pieces[0].nbytes)
    for piece in pieces:
        push.add(piece, LAYOUT, check_finite, SESSION)
    return push


def pieces(size: int, bad: Any = None) -> list[Push]:
    return run_pieces(LAYOUT, run_of(bad), size, About(1, 1, 0, 0))


@settings(max_examples=50)
@given(st.integers(8, 80), st.data())
def test_a_dense_push_is_whole_when_every_piece_is_there_in_any_order_and_doubled(size: int, data: Any) -> None:
    order = data.draw(st.permutations(pieces(size)))
    push = staged(RUN, LAYOUT.gradient_nbytes)
    for index, piece in enumerate(order):
        assert not push.whole
        doubled = data.draw(st.lists(st.sampled_from(order[:index]), max_size=2)) if index else []
        for again in [*doubled, piece]:
            push.add(again, LAYOUT, True)
    assert push.whole and push.problem == "" and push.run is not None
    for got, wanted, arena in zip(LAYOUT.flats(push.run), LAYOUT.flats(run_of()), LAYOUT.arenas, strict=True):
        if arena.optimizer is not None:
            np.testing.assert_array_equal(got, wanted)


def test_a_whole_push_takes_nothing_more() -> None:
    push = take(pieces(1000))
    push.add(pieces(1000, (A, 0, np.nan))[0], LAYOUT, True)
    assert push.problem == ""


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
    assert push.whole
    assert re.search(words, push.problem)
    assert take(pieces(size, bad), check_finite=False).problem == ""


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
        (piece(RUN, 60, [0], [], [BYTES]), piece(PARTS, 60), "this piece belongs to another push"),
        (piece(EMPTY, 0, arrays=[BYTES]), None, "has form 0; wanted 0"),
        (piece(3, 0), None, "has form 3; wanted 0 .nothing., 1 .run. or 2 .parts."),
        (piece(PARTS, 0, [], [[9, 0, 0, []]]), None, r"\[9, 0, 0, \[\]\] describes no part of this shard"),
        (piece(PARTS, 0, [], [[A, 4, 0, []]]), None, r"\[0, 4, 0, \[\]\] describes no part of this shard"),
        (piece(PARTS, 0, [], [[A, PACKED, 0, []]], [BYTES]), None, r"is packed as \[\]"),
        (piece(PARTS, 0, [], [[A, PACKED, 0, ["top_k"]]]), None, "too few arrays"),
        (piece(PARTS, 0, [], [[A, True, 0, []]], [BYTES]), None, "describes no part of this shard"),
        (piece(PARTS, 0, [], [[A, ROWS, -1, []]], [BYTES] * 2), None, "describes no part of this shard"),
        (piece(PARTS, 0, [], [[A, ROWS, 0, "x"]], [BYTES] * 2), None, "describes no part of this shard"),
        (piece(PARTS, 0, [], [[A, LISTED, 7, []]], [BYTES]), None, "names list 7 of a, which is not here"),
        (piece(PARTS, 0, [], ["x"]), None, "'x' describes no part of this shard"),
        (piece(PARTS, 0, [], [[N, DENSE, 0, []]], [BYTES]), None, "part 1 is not trained"),
        (piece(PARTS, 0, [], [[A, ROWS, 0, []]], [BYTES]), None, "too few arrays for its parts, or a part twice"),
        (piece(PARTS, 0, [], [[S, DENSE, 0, []]] * 2, [np.zeros((), np.float32)] * 2), None, "or a part twice"),
        (piece(PARTS, 0, [], [], [BYTES]), None, "has 1 arrays too many"),
    ],
)
def test_a_piece_that_does_not_belong_is_refused(first: Push, second: Push | None, words: str) -> None:
    push = staged(first.form, first.nbytes)
    if second is not None:
        push.add(first, LAYOUT, True, SESSION)
    with pytest.raises(ProtocolError, match=words):
        push.add(second or first, LAYOUT, True, SESSION)


def message_of(gradients: list[tuple[int, Any]]) -> Push:
    """A push of parts: of each an array, or (row numbers, values)."""
    described, arrays = [], []
    for index, gradient in gradients:
        described.append([index, ROWS if isinstance(gradient, tuple) else DENSE, 0, []])
        arrays += list(gradient) if isinstance(gradient, tuple) else [gradient]
    return piece(PARTS, sum(a.nbytes for a in arrays), [], described, arrays)


def parts(*described: tuple[int, Any]) -> Staged:
    return take([message_of(list(described))])


def test_parts_come_as_arrays_or_rows_and_duplicates_are_summed() -> None:
    rows, values = np.array([3, 1, 3]), np.array([[1, 2], [3, 4], [10, 20]], np.float32)
    push = parts((B, np.ones(3)), (A, (rows, values)), (S, np.float32(2).reshape(())))
    assert push.whole and push.problem == "" and list(push.parts) == [B, A, S]
    gradient = push.parts[A]
    assert isinstance(gradient, RowGradient)
    assert gradient.rows.tolist() == [1, 3] and gradient.values.tolist() == [[3, 4], [11, 22]]


def test_what_is_staged_is_a_copy() -> None:
    gradient = np.ones(3)
    push = parts((B, gradient))
    gradient[:] = 9
    kept = push.parts[B]
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
        (A, (np.array([0], np.int32), np.zeros((1, 2), np.float32)), "got indices int32"),
        (S, (np.array([0]), np.zeros(1, np.float32)), "s is a scalar; it has no rows"),
    ],
)
def test_a_bad_gradient_is_whole_with_a_problem_that_names_the_variable(part: int, gradient: Any, words: str) -> None:
    push = parts((part, gradient), (B if part != B else S, np.zeros(3) if part != B else np.zeros((), np.float32)))
    assert push.whole
    assert re.search(words, push.problem)


def test_an_empty_push_is_whole_at_once() -> None:
    push = take([piece(EMPTY, 0)])
    assert push.whole and push.update(LAYOUT).empty


def test_ranges_of_memory_are_checked_as_they_come() -> None:
    run = run_of()
    first, *others = [(arena.offset, arena.nbytes) for arena in LAYOUT.arenas if arena.optimizer is not None]
    run[first[0] : first[0] + first[1]].view(LAYOUT.arenas[0].dtype)[1] = np.nan
    push = staged(SHARED, LAYOUT.gradient_nbytes)
    push.lend(piece(SHARED, LAYOUT.gradient_nbytes, first), run, LAYOUT, check_finite=True)
    assert not push.whole and "has NaN or infinite values" in push.problem
    for one in others:
        push.lend(piece(SHARED, LAYOUT.gradient_nbytes, one), run, LAYOUT, check_finite=True)
    assert push.whole and not push.unchecked
    assert "has NaN or infinite values" in push.problem


def test_the_order_of_summation_is_task_incarnation_number() -> None:
    ids = [(1, 3, 2), (0, 9, 1), (1, 3, 1)]
    found = [Staged(task, incarnation, number, 0, 0, EMPTY, 0) for task, incarnation, number in ids]
    assert [push.id for push in sorted(found, key=lambda push: push.id)] == [(0, 9, 1), (1, 3, 1), (1, 3, 2)]


# -- the ledger ---------------------------------------------------------------------------------------------------


def result(number: int) -> Pushed:
    return Pushed(number, APPLIED, 0, 0, 0, "")


@given(st.permutations(range(1, 6)))
def test_done_is_the_highest_number_with_all_before_it(order: list[int]) -> None:
    ledger = Ledger(0, "worker:0", WINDOW)
    for count, number in enumerate(order, 1):
        ledger.staged[number] = Staged(0, 1, number, 0, 0, EMPTY, 0)
        ledger.record(result(number))
        recorded = set(order[:count])
        assert ledger.done == next(n for n in range(6) if n + 1 not in recorded)
        assert [ledger.decided(n) for n in range(1, 6)] == [n in recorded for n in range(1, 6)]
    assert ledger.staged == {}


def test_the_last_results_are_kept_and_what_is_older_counts_as_decided() -> None:
    ledger = Ledger(0, "worker:0", window=3)
    for number in range(1, 11):
        assert ledger.in_reach(number) and ledger.in_reach(number + 2) and not ledger.in_reach(number + 3)
        ledger.record(result(number))
    assert sorted(ledger.results) == [8, 9, 10] and ledger.decided(1) and not ledger.in_reach(10)


# -- lists of rows ------------------------------------------------------------------------------------------------


def test_a_list_that_comes_pushes_none_out_that_the_same_message_names(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, rows__kept_by_ps=1)
    session = Borrowed(runtime())
    rows, values = np.array([2, 0]), {A: np.ones((2, 2), np.float32), B: np.ones(2)}
    session.rows.take(PARTS_OF[B], 5, rows)
    message = piece(PARTS, 0, [], [[A, ROWS, 6, []], [B, LISTED, 5, []]], [rows, values[A], values[B]])
    assert unknown_list(message, session) == 0
    push = staged(PARTS, 0)
    push.add(message, LAYOUT, True, session)
    gradients = [push.parts[index] for index in (A, B)]
    assert push.problem == "" and [g.rows.tolist() for g in gradients if isinstance(g, RowGradient)] == [[0, 2]] * 2
    assert unknown_list(message, session) == 5 and len(session.rows) == 1


def test_kept_pieces_are_handed_over_once_and_go_while_they_are_taken() -> None:
    push = staged(RUN, LAYOUT.gradient_nbytes)
    push.keeps = KEEPS
    for one in pieces(16):
        push.add(one, LAYOUT, True)
    assert push.whole and push.here == LAYOUT.gradient_nbytes
    runs = push.update(LAYOUT).run
    assert runs is not None and push.pieces == []
    for run in runs:
        assert isinstance(run, Pieces)
        left = [len(run.arrays) for _ in run.taken(1)]
        assert left == list(range(len(left)))[::-1]
    with pytest.raises(ProtocolError, match="have been applied"):
        push.update(LAYOUT)


def test_lists_are_kept_up_to_a_number_and_a_size_and_by_their_part() -> None:
    lists, rows = rowlists.RowLists(), np.arange(4)
    for number in range(1, 100):
        assert lists.take(PARTS_OF[A], number, rows).rises
    assert len(lists) == ORDINARY.rows.kept_by_ps
    assert lists.get(A, 99) is not None and lists.get(A, 1) is None and lists.get(B, 99) is None
    assert lists.take(PARTS_OF[A], 0, rows).rows.tolist() == [0, 1, 2, 3] and lists.get(A, 0) is None
    large = np.zeros(ORDINARY.rows.kept_nbytes // 16, np.int64)
    for number in range(200, 205):
        assert not lists.take(PARTS_OF[A], number, large).rises
    assert lists.get(A, 204) is not None and lists.get(A, 202) is None and len(lists) == 2


def test_what_is_kept_is_a_copy() -> None:
    lists, rows = rowlists.RowLists(), np.arange(4)
    kept = lists.take(PARTS_OF[A], 1, rows)
    rows[0] = 1000  # as a peer could do in shared memory
    assert kept.rows.tolist() == [0, 1, 2, 3]
