"""Gradients into the runs and parts of each ps, and pulled parts into the user's arrays."""

from __future__ import annotations

import warnings
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps.variables.layout import check_gradients, check_is_nested, parts_of_shard, split
from dps.variables.plan import Plan, VariableSpec, make_plan
from dps.variables.rowlists import RowLists, RowsOfPart
from dps.variables.tree import Rows
from tests.variables.models import ADAM, SGD, plans, two_ps, values_of


def rows_of(gradient: Any) -> tuple[Any, Any]:
    """A part's row numbers, and the values as they are sent."""
    assert isinstance(gradient, RowsOfPart)
    values = np.empty((gradient.last - gradient.first, *gradient.values.shape[1:]), gradient.values.dtype)
    gradient.fill(values)
    return gradient.numbers, values


@settings(max_examples=60)
@given(plans(), st.data())
def test_the_parts_of_all_shards_are_the_gradient_and_nothing_else(plan: Plan, data: st.DataObject) -> None:
    gradients: dict[int, Any] = {}
    wanted: dict[str, Any] = {}
    for index, spec in enumerate(plan.variables):
        kind = data.draw(st.sampled_from(["none", "dense", "rows"]))
        if kind == "dense":
            gradients[index] = values_of(plan)[spec.name]
            wanted[spec.name] = gradients[index]
        elif kind == "rows" and spec.shape and spec.shape[0]:
            rows = np.array(data.draw(st.lists(st.integers(0, spec.shape[0] - 1), max_size=5)), np.int64)
            values = np.ones((len(rows), *spec.shape[1:]), spec.dtype)
            gradients[index] = Rows(rows, values)
            wanted[spec.name] = np.zeros(spec.shape, spec.dtype)
            np.add.at(wanted[spec.name], rows, values)
    got = {name: np.zeros_like(value) for name, value in wanted.items()}
    for layout in plan.layouts.values():
        for index, gradient in parts_of_shard(plan, layout, gradients, RowLists()):
            part = plan.parts[index]
            assert index in layout.place
            name, parts = plan.variables[part.variable].name, len(plan.parts_of[part.variable])
            into = split(got[name], part, parts)
            if isinstance(gradient, RowsOfPart):
                np.add.at(into, *rows_of(gradient))
            else:
                assert gradient.shape == part.shape and gradient.flags.c_contiguous
                into += gradient
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)


def test_a_scalar_goes_to_its_ps_as_a_scalar() -> None:
    plan = two_ps()
    gradients: Any = {1: np.float64(3.0)}
    found = parts_of_shard(plan, plan.layouts[0], gradients, RowLists())
    assert [(i, g.shape) for i, g in found if isinstance(g, np.ndarray)] == [(2, ())]


def test_rows_go_to_the_parts_that_have_them_under_their_number_there() -> None:
    plan = two_ps()
    gradients = {0: Rows(np.array([2, 0, 2]), np.arange(6, dtype=np.float32).reshape(3, 2))}
    ((first, gradient),) = parts_of_shard(plan, plan.layouts[0], gradients, RowLists())
    rows, values = rows_of(gradient)
    assert (first, rows.tolist(), values.tolist()) == (0, [0], [[2, 3]])
    ((second, gradient),) = parts_of_shard(plan, plan.layouts[1], gradients, RowLists())
    rows, values = rows_of(gradient)
    assert (second, rows.tolist(), values.tolist()) == (1, [0, 0], [[0, 1], [4, 5]])


@pytest.mark.parametrize(("optimizer", "parts"), [(SGD, [0]), (ADAM, [0, 1])])
def test_parts_without_a_row_are_told_only_where_the_formula_counts_updates(optimizer: Any, parts: list[int]) -> None:
    plan = make_plan([VariableSpec("t", (4, 1), "<f4", optimizer)], (0,), lambda *_: 0, lambda *_: 2)
    gradients = {0: Rows(np.array([1]), np.ones((1, 1), np.float32))}
    found = dict(parts_of_shard(plan, plan.layouts[0], gradients, RowLists()))
    assert list(found) == parts and rows_of(found[0])[0].tolist() == [1]
    assert all(len(rows_of(found[index])[0]) == 0 for index in parts[1:])
    nothing = {0: Rows(np.empty(0, np.int64), np.empty((0, 1), np.float32))}
    assert parts_of_shard(plan, plan.layouts[0], nothing, RowLists()) == []


def test_gradients_are_checked_by_name_and_none_is_none() -> None:
    t = np.zeros((3, 2), np.float32)
    found = check_gradients(two_ps(), [("t", t), ("s", None)])
    assert list(found) == [0] and np.shares_memory(found[0], t)


@pytest.mark.parametrize(
    ("name", "gradient", "words"),
    [
        ("x", 1.0, "a gradient came for 'x', which is no variable; there are t, s, n"),
        ("n", np.zeros(2, np.int64), "a gradient came for 'n', which is not trained"),
        ("t", np.zeros((2, 3), np.float32), r"the gradient of t has shape \(2, 3\); the variable has \(3, 2\)"),
        ("t", np.zeros((3, 2)), r"the gradient of t is float64; the variable is float32: cast with .astype"),
        ("s", Rows([0], [1.0]), "s is a scalar, which has no rows; push its gradient as a number"),
        ("t", Rows([[0]], np.zeros((1, 2), np.float32)), r"got values float32 \(1, 2\); wanted float32 \(1, 1, 2\)"),
        ("t", Rows(0, np.zeros(2, np.float32)), r"integers of shape \(n,\) or \(n, m, ...\); got int64 \(\)"),
        ("t", Rows([0, 1], np.zeros((1, 2), np.float32)), r"got values float32 \(1, 2\); wanted float32 \(2, 2\)"),
        ("t", Rows([0], np.zeros((1, 2))), r"got values float64 \(1, 2\); wanted float32 \(1, 2\)"),
        ("t", Rows([0, -1], np.zeros((2, 2), np.float32)), "^row -1 of t is out of range; wanted 0 to 2$"),
        ("t", Rows([5, 2, 9], np.zeros((3, 2), np.float32)), "^row 5 of t is out of range, and 1 more; wanted 0 to 2$"),
    ],
)  # fmt: skip
def test_a_gradient_that_does_not_fit_is_told_with_what_was_wanted(name: str, gradient: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_gradients(two_ps(), [(name, gradient)])


@pytest.mark.parametrize(
    ("tree", "got"),
    [
        (np.zeros((4, 3)), r"one array of shape \(4, 3\)"),
        ([np.zeros(2), np.zeros(3)], "a list of 2"),
        (3.0, "one float"),
    ],
)
def test_gradients_without_names_are_told_which_names_are_wanted(tree: Any, got: str) -> None:
    with pytest.raises(ValueError, match=r"^push wants gradients for \{'t', 's', 'n'\}; got " + got + "$"):
        check_is_nested(two_ps(), tree)


@pytest.mark.slow  # loads torch
def test_a_tensor_that_does_not_fit_is_told_in_the_words_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="gradients that are tensors need torch")
    with pytest.raises(ValueError, match=r"t is float64; the variable is float32: cast with .to\(torch.float32\)"):
        check_gradients(two_ps(), [("t", torch.zeros(3, 2, dtype=torch.float64))])
    with pytest.raises(
        TypeError, match=r"t is a sparse tensor of torch \(2 sparse dimensions\); wanted .* pass dps.Rows\("
    ):
        check_gradients(two_ps(), [("t", torch.zeros(3, 2).to_sparse())])
    with warnings.catch_warnings(action="ignore"):  # torch's own: its support is in beta state
        csr = torch.zeros(3, 2).to_sparse_csr()
    with pytest.raises(TypeError, match=r"t is a sparse tensor of torch \(torch.sparse_csr\); wanted"):
        check_gradients(two_ps(), [("t", csr)])


def test_no_rows_at_all_are_no_gradient_whatever_their_dtype() -> None:
    found = check_gradients(two_ps(), [("t", Rows([], np.zeros((0, 2), np.float32)))])
    assert found == {}
