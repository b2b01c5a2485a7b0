"""A session's residuals: what a push leaves out is in the next, and a push that was not accepted leaves no trace."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps.client.compressing import Compression
from dps.ps.intake.parts import unpack
from dps.training import compression as compress
from dps.training.compression import Int8, RandomK, TopK
from dps.variables.packed import PackedGradient
from dps.variables.plan import VariableSpec, make_plan
from tests.variables.models import SGD

PLAN = make_plan(
    [VariableSpec("w", (4, 2), "<f4", SGD), VariableSpec("b", (3,), "<f8", SGD)], (0, 1),
    lambda variable, name, shape, dtype: 1 if name.endswith("1") else 0,
    lambda name, shape, dtype: 2 if name == "w" else 1,
)  # fmt: skip
W, B = 0, 1


def compression(compressor: Any) -> Compression:
    return Compression(compress.rules(compressor, "compression"), ())


def sent(packed: Any) -> Any:
    """What the ps make of w's gradient."""
    assert isinstance(packed, PackedGradient)
    parts = PLAN.parts_of[W]
    return np.concatenate(
        [unpack(packed.parts[p.index].form, p, np.dtype("f4"), packed.parts[p.index].data) for p in parts]
    )


def push(session: Compression, gradient: Any) -> tuple[Any, object]:
    """What the ps make of it, and the push, for `record_outcome`."""
    key = object()
    gradients = session.pack(PLAN, {W: np.array(gradient, np.float32).reshape(4, 2)}, key)
    return sent(gradients[W]).reshape(-1).tolist(), key


def all_ps(ps: int) -> bool:
    return True


def no_ps(ps: int) -> bool:
    return False


def test_what_a_push_leaves_out_is_in_the_next_by_hand() -> None:
    session = compression(TopK(0.25))  # 2 of 8
    first, change = push(session, [5, 1, -2, 0, 0, 0, 7, 2])
    session.record_outcome(change, PLAN, all_ps)
    assert first == [5, 0, 0, 0, 0, 0, 7, 0]
    second, change = push(session, [0, 2, -2, 0, 0, 0, 0, 0])  # with what was left: 0 3 -4 0 0 0 0 2
    session.record_outcome(change, PLAN, all_ps)
    assert second == [0, 3, -4, 0, 0, 0, 0, 0]
    third, change = push(session, [0] * 8)
    assert third == [0, 0, 0, 0, 0, 0, 0, 2]


def test_a_push_that_was_not_accepted_leaves_no_trace() -> None:
    session = compression(TopK(0.25))
    _, change = push(session, [5, 1, 0, 0, 0, 0, 7, 2])  # leaves 1 and 2
    session.record_outcome(change, PLAN, all_ps)
    dropped, change = push(session, [9, 9, 9, 0, 0, 0, 0, 0])
    assert dropped == [9, 10, 0, 0, 0, 0, 0, 0]
    session.record_outcome(change, PLAN, no_ps)
    assert push(session, [0] * 8)[0] == [0, 1, 0, 0, 0, 0, 0, 2]


def test_each_ps_counts_for_the_parts_that_it_has() -> None:
    """The first two rows are on ps 0, which applied the push; the others on ps 1, which dropped it."""
    session = compression(TopK(0.25))
    _, change = push(session, [5, 1, 0, 0, 0, 0, 7, 2])
    session.record_outcome(change, PLAN, lambda ps: ps == 0)
    assert push(session, [0] * 8)[0] == [0, 1, 0, 0, 0, 0, 0, 0]


def test_pushes_on_their_way_may_be_undone_in_any_order() -> None:
    session = compression(TopK(0.125))
    gradients = [[1, 2, 4, 0, 0, 0, 0, 0], [0, 0, 0, 8, 16, 0, 0, 0], [0, 0, 0, 0, 0, 32, 64, 0]]
    changes = [push(session, gradient)[1] for gradient in gradients]
    session.record_outcome(changes[1], PLAN, no_ps)  # left 8 in, sent 16
    session.record_outcome(changes[2], PLAN, all_ps)  # left 32 in, sent 64
    session.record_outcome(changes[0], PLAN, no_ps)  # left 1 and 2 in, sent 4
    assert push(session, [0] * 8)[0] == [0, 0, 0, 0, 0, 32, 0, 0]
    assert push(session, [0] * 8)[0] == [0] * 8


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.booleans()), min_size=1, max_size=6), st.data())
@pytest.mark.parametrize("compressor", [TopK(0.3), RandomK(0.3, seed=4)])
def test_what_was_applied_and_what_is_left_make_up_all_gradients_that_were_accepted(
    compressor: Any, pushes: list[tuple[int, bool]], data: Any
) -> None:
    """Whole numbers, so that no sum is rounded."""
    session, wanted, applied = compression(compressor), np.zeros(8), np.zeros(8)
    way: list[tuple[object, bool]] = []
    for seed, accepted in pushes:
        gradient = np.random.default_rng(seed).integers(-99, 99, 8)
        found, change = push(session, gradient)
        way.append((change, accepted))
        wanted += gradient if accepted else 0
        applied += found if accepted else 0
        if data.draw(st.booleans()):
            for settled, yes in way:
                session.record_outcome(settled, PLAN, all_ps if yes else no_ps)
            way.clear()
    for settled, yes in data.draw(st.permutations(way)):
        session.record_outcome(settled, PLAN, all_ps if yes else no_ps)
    session._compressor = lambda name: TopK(1.0)  # all that is left
    rest, _ = push(session, [0] * 8)
    np.testing.assert_array_equal(applied + rest, wanted)


def test_eight_bits_with_feedback_are_right_in_the_long_run() -> None:
    """100 is sent exactly, 0.3 is less than half a step (100 / 127) and comes every third push or so."""
    session, total = compression(Int8()), np.zeros(8)
    for _ in range(300):
        found, change = push(session, [100, 0.3, 0, 0, 0, 0, 0, 0])
        session.record_outcome(change, PLAN, all_ps)
        total += found
    np.testing.assert_allclose(total[:2], [30000, 90], atol=100 / 127)


def test_without_feedback_nothing_is_kept_and_what_is_too_small_never_arrives() -> None:
    session = compression(Int8(feedback=False))
    for _ in range(5):
        assert push(session, [127, 0.4, 0, 0, 0, 0, 0, 0])[0] == [127, 0, 0, 0, 0, 0, 0, 0]
    assert session._residuals == {}


@pytest.mark.parametrize("applied", [all_ps, no_ps])
def test_after_joining_anew_nothing_is_left_and_late_results_change_nothing(applied: Any) -> None:
    session = compression(TopK(0.25))
    session.record_outcome(push(session, [5, 1, 3, 0, 0, 0, 7, 2])[1], PLAN, all_ps)
    _, change = push(session, [0] * 8)
    session.forget()
    session.record_outcome(change, PLAN, applied)
    assert push(session, [0] * 8)[0] == [0] * 8


def test_random_places_change_with_the_push_the_seed_and_the_variable() -> None:
    def places(session: Compression, gradient: Any) -> Any:
        return np.flatnonzero(push(session, gradient)[0]).tolist()

    ones = [1] * 8
    one, same, other = (compression(RandomK(0.5, seed)) for seed in (1, 1, 2))
    drawn = [places(one, ones) for _ in range(4)]
    assert [places(same, ones) for _ in range(4)] == drawn
    assert [places(other, ones) for _ in range(4)] != drawn and drawn[0] != drawn[1]


def test_a_gradient_that_is_no_number_goes_as_it_is_and_leaves_the_residual_alone() -> None:
    session = compression(TopK(0.25))
    _, change = push(session, [5, 1, 0, 0, 0, 0, 7, 2])
    session.record_outcome(change, PLAN, all_ps)
    bad = np.full((4, 2), np.nan, np.float32)
    assert session.pack(PLAN, {W: bad}, object())[W] is bad
    assert push(session, [0] * 8)[0] == [0, 1, 0, 0, 0, 0, 0, 2]


def test_bytes_are_counted_beside_those_of_plain_pushes() -> None:
    session = compression({"w": TopK(0.25)})
    session.pack(PLAN, {W: np.ones((4, 2), np.float32), B: np.ones(3)}, object())
    assert (session.traffic.pushed, session.traffic.pushed_plain) == (2 * 8 + 3 * 8, 8 * 4 + 3 * 8)
