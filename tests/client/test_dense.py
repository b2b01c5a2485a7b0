"""Gradients of all of a shard: each comes to lie in its place, whatever its shape, its dtype and its strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from dps.client.assembly import Assembly, Whole, gather, is_whole
from dps.transport.dtypes import BFLOAT16, dtype_of
from dps.variables.layout import split
from dps.variables.plan import Plan, VariableSpec, make_plan
from dps.variables.tree import Nesting, Rows
from tests.variables.models import SGD, plans, two_ps, values_of


def one_ps(*specs: tuple[tuple[int, ...], str]) -> Plan:
    made = [VariableSpec(f"v{i}", shape, dtype, SGD) for i, (shape, dtype) in enumerate(specs)]
    return make_plan(made, (0,), lambda *_: 0, None)


def laid_out(plan: Plan, ps: int, values: list[Any], trained_only: bool = True) -> Any:
    """The run of a shard, part by part."""
    run = np.zeros(plan.layouts[ps].nbytes, np.uint8)
    for arena in plan.layouts[ps].arenas:
        flat = run[arena.offset : arena.offset + arena.nbytes].view(arena.dtype)
        for part, start in zip(arena.parts, arena.starts, strict=True):
            if arena.optimizer is not None or not trained_only:
                of_part = split(values[part.variable], part, len(plan.parts_of[part.variable]))
                flat[start : start + part.size] = of_part.reshape(-1)
    return run


def test_a_shard_is_whole_when_all_that_it_trains_has_a_dense_gradient() -> None:
    plan = two_ps()
    t, s, rows = np.zeros((3, 2), np.float32), np.zeros(()), Rows(np.array([0]), np.zeros((1, 2), np.float32))
    cases: list[dict[int, Any]] = [{0: t, 1: s}, {0: t}, {0: rows, 1: s}, {}]
    whole = [[is_whole(plan.layouts[ps], gradients) for ps in (0, 1)] for gradients in cases]
    assert whole == [[True, True], [False, True], [False, False], [False, False]]


@settings(max_examples=60)
@given(plans())
def test_values_of_all_variables_are_gathered_each_in_its_place(plan: Plan) -> None:
    values = list(values_of(plan).values())
    for ps, layout in plan.layouts.items():
        for trained_only in (True, False):
            run = np.zeros(layout.nbytes, np.uint8)
            gather(plan, layout, Whole(values), layout.flats(run), trained_only)
            np.testing.assert_array_equal(run, laid_out(plan, ps, values, trained_only))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2", BFLOAT16])
def test_very_many_small_variables_are_gathered_each_in_its_place(dtype: str, strided: bool) -> None:
    if dtype == BFLOAT16:
        pytest.importorskip("ml_dtypes")
    shapes = [(), (2,), (2, 3), (0, 4), (5,)] * 400
    plan = one_ps(*[(shape, dtype) for shape in shapes])
    values = [np.full(shape, i % 99).astype(dtype_of(dtype)) for i, shape in enumerate(shapes)]
    if strided:
        values[1002] = np.arange(6).reshape(3, 2).T.astype(dtype_of(dtype), order="K")
        assert not values[1002].flags.c_contiguous
    run = np.zeros(plan.layouts[0].nbytes, np.uint8)
    gather(plan, plan.layouts[0], Whole(values), plan.layouts[0].flats(run))
    for i, view in plan.layouts[0].views(run).items():
        assert view.shape == shapes[i] and view.tolist() == values[i].tolist()


def test_what_is_asked_for_by_its_index_is_contiguous() -> None:
    strided, plain = np.arange(6.0).reshape(3, 2).T, np.zeros(3)
    whole = Whole([strided, plain])
    assert whole[0].flags.c_contiguous and whole[0].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert whole[1] is plain and list(whole) == [0, 1] and len(whole) == 2 and 2 not in dict(whole)


def test_arrays_fit_by_type_shape_and_dtype() -> None:
    plan = one_ps(((2,), "<f4"), ((), "<f8"))

    class Other(np.ndarray[Any, np.dtype[Any]]):
        pass

    names = [spec.name for spec in plan.variables]
    assembly = Assembly(plan, Nesting(dict.fromkeys(names)))

    def fit(arrays: list[Any]) -> bool:
        try:
            return isinstance(assembly.gradients(dict(zip(names, arrays, strict=True))), Whole)
        except ValueError:
            return False

    a, b = np.zeros(2, np.float32), np.zeros(())
    assert fit([a, b])
    for wrong in ([a, 0.0], [a, None], [b, a], [np.zeros(3, np.float32), b], [np.zeros((2, 1), np.float32), b],
                  [np.zeros(2), b], [a.view(Other), b], [a.astype(">f4"), b]):  # fmt: skip
        assert not fit(wrong)
