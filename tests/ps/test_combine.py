"""The mean and the sum of a step's gradients: who is counted, in which order, down to the bits."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from dps.ps.intake.parts import checked, row_gradient
from dps.ps.modes.combine import combined
from dps.ps.store.gradients import Gradient, GradientSum, RowGradient
from dps.variables.plan import VariableSpec, make_plan
from tests.variables.models import SGD

SPECS = [
    VariableSpec("a", (4, 2), "<f4", SGD), VariableSpec("n", (2,), "<i8", None), VariableSpec("b", (3,), "<f4", SGD),
]  # fmt: skip
PLAN = make_plan(SPECS, (0,), lambda *_: 0, None)
LAYOUT = PLAN.layouts[0]
A, B = 0, 2


def push(a: Any = None, b: Any = None, run: bool = False) -> Gradient:
    """As a run, or in parts; `a` also as (rows, values)."""
    if run:
        memory = np.zeros(LAYOUT.nbytes, np.uint8)
        views = LAYOUT.views(memory)
        views[A][...], views[B][...] = a, b
        return Gradient(LAYOUT.flats(memory), {})
    parts: dict[int, Any] = {}
    if isinstance(a, tuple):
        parts[A] = row_gradient(checked(PLAN.parts[A], np.array(a[0], np.int64)), np.asarray(a[1], np.float32))
    elif a is not None:
        parts[A] = np.asarray(a, np.float32).copy()
    if b is not None:
        parts[B] = np.asarray(b, np.float32).copy()
    return Gradient(None, parts)


def dense(update: Any, part: int) -> Any:
    """What an update has for a part, in its shape; None where it has nothing."""
    shape = PLAN.parts[part].shape
    if update.run is not None:
        arena, start = LAYOUT.place[part]
        found = update.run[arena]
        return (found.array() if isinstance(found, GradientSum) else found)[
            start : start + int(np.prod(shape))
        ].reshape(shape)
    found = update.parts.get(part)
    if isinstance(found, RowGradient):
        whole = np.zeros(shape, np.float32)
        whole[found.rows] = found.values
        return whole
    return None if found is None else found.reshape(shape)


def f4(*values: Any) -> Any:
    return np.array(values, np.float32)


def test_whole_gradients_are_averaged() -> None:
    one = push(a=np.ones((4, 2)), b=f4(1, 2, 3), run=True)
    other = push(a=np.zeros((4, 2)), b=f4(3, 2, 1), run=True)
    update = combined([one, other], LAYOUT)
    assert update.run is not None
    np.testing.assert_array_equal(dense(update, A), np.full((4, 2), 0.5))
    np.testing.assert_array_equal(dense(update, B), [2, 2, 2])


def test_a_variable_is_divided_by_those_that_have_a_gradient_for_it() -> None:
    update = combined([push(b=f4(2, 2, 2)), push(), push(a=np.ones((4, 2)), b=f4(4, 4, 4), run=True)], LAYOUT)
    np.testing.assert_array_equal(dense(update, B), [3, 3, 3])
    np.testing.assert_array_equal(dense(update, A), np.ones((4, 2)))


def test_a_row_is_divided_by_those_that_touched_it() -> None:
    update = combined([push(a=([0, 2, 0], [[1, 1], [2, 2], [3, 3]])), push(a=([2, 3], [[4, 4], [5, 5]]))], LAYOUT)
    np.testing.assert_array_equal(dense(update, A)[:, 0], [4, 0, 3, 5])


def test_rows_and_whole_gradients_of_one_variable_go_together() -> None:
    update = combined([push(a=([1], [[3, 3]])), push(a=np.ones((4, 2)))], LAYOUT)
    np.testing.assert_array_equal(dense(update, A)[:, 0], [1, 2, 1, 1])


def test_a_sum_is_divided_by_nobody() -> None:
    whole = push(a=np.ones((4, 2)), b=f4(1, 2, 3), run=True)
    rows = push(a=([0, 2, 0], [[1, 1], [2, 2], [3, 3]]))
    np.testing.assert_array_equal(dense(combined([whole, whole], LAYOUT, "sum"), B), [2, 4, 6])
    update = combined([whole, push(b=f4(1, 1, 1)), push()], LAYOUT, "sum")
    np.testing.assert_array_equal(dense(update, A), np.ones((4, 2)))
    np.testing.assert_array_equal(dense(update, B), [2, 3, 4])
    update = combined([rows, push(a=([2, 3], [[4, 4], [5, 5]]))], LAYOUT, "sum")
    np.testing.assert_array_equal(dense(update, A)[:, 0], [4, 0, 6, 5])
    np.testing.assert_array_equal(dense(combined([rows, whole], LAYOUT, "sum"), A)[:, 0], [5, 1, 3, 1])


def test_nobody_has_a_gradient_here() -> None:
    assert combined([push(), push()], LAYOUT).is_empty and combined([], LAYOUT).is_empty


def test_the_sum_is_taken_in_the_order_that_is_given() -> None:
    large, small = np.float32(1e8), np.float32(3)
    values = [large, small, -large, small]
    wanted = (((large + small) - large) + small) / np.float32(4)
    assert wanted != ((small + small) + large - large) / np.float32(4)  # the order can be seen
    pushes = [push(a=np.full((4, 2), v), b=f4(v, v, v), run=True) for v in values]
    assert dense(combined(pushes, LAYOUT), B).tolist() == [wanted] * 3


GRADIENT = st.one_of(
    st.none(),
    st.lists(st.integers(-9, 9), min_size=8, max_size=8).map(lambda v: np.array(v, np.float32).reshape(4, 2)),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), min_size=1, max_size=5).map(
        lambda rows: ([r for r, _ in rows], [[v, -v] for _, v in rows])
    ),
)


@settings(max_examples=80)
@given(st.lists(GRADIENT, min_size=1, max_size=4), st.sampled_from(["mean", "sum"]))
def test_the_mean_and_the_sum_are_those_of_a_plain_loop(gradients: list[Any], reduction: str) -> None:
    total, count = np.zeros((4, 2)), np.zeros(4)
    for gradient in gradients:
        if isinstance(gradient, tuple):
            np.add.at(total, gradient[0], gradient[1])
            count[np.unique(gradient[0])] += 1
        elif gradient is not None:
            total, count = total + gradient, count + 1
    wanted = total / np.maximum(count, 1)[:, None] if reduction == "mean" else total
    found = dense(combined([push(a=g) for g in gradients], LAYOUT, reduction), A)
    if found is None:
        assert all(g is None for g in gradients)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
