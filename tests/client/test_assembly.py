"""A user's nested arrays and the parts of a plan, there and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from dps.client.assembly import Assembly, Whole
from dps.variables.plan import Plan, VariableSpec, make_plan
from dps.variables.tree import Nesting, nested
from tests.variables.models import SGD, plans, values_of


def parts_of(plan: Plan) -> list[Any]:
    """Of `values_of`, those of all shards in the order of their runs."""
    values, found = list(values_of(plan).values()), []
    for layout in plan.layouts.values():
        for part in (part for arena in layout.arenas for part in arena.parts):
            value = values[part.variable]
            found.append(value[part.row0 : part.row0 + part.shape[0]] if part.shape else value)
    return found


@settings(max_examples=60)
@given(plans())
def test_values_are_put_together_from_the_parts_of_all_shards(plan: Plan) -> None:
    wanted = values_of(plan)
    found = Assembly(plan, Nesting(nested(list(wanted)))).values(parts_of(plan))
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


def test_values_come_in_the_nesting_of_whoever_asks() -> None:
    names = ["a/x", "b", "a/y"]
    plan = make_plan([VariableSpec(name, (2,), "<f4", SGD) for name in names], (0,), lambda *_: 0, None)
    parts = [np.full(2, i, np.float32) for i in range(3)]
    found = Assembly(plan, Nesting(nested(names))).values(parts)
    assert list(found) == ["a", "b"] and list(found["a"]) == ["x", "y"]
    assert found["a"]["x"] is parts[0] and found["b"] is parts[1] and found["a"]["y"] is parts[2]


def test_what_is_put_together_of_read_only_parts_is_read_only() -> None:
    plan = make_plan([VariableSpec("t", (4,), "<f4", SGD)], (0,), lambda *_: 0, lambda *_: 2)
    parts = [np.zeros(2, np.float32), np.ones(2, np.float32)]
    assembly = Assembly(plan, Nesting({"t": 0}))
    assert assembly.values(parts)["t"].flags.writeable
    for part in parts:
        part.flags.writeable = False
    found = assembly.values(parts)["t"]
    assert found.tolist() == [0, 0, 1, 1] and not found.flags.writeable


def test_gradients_of_many_variables_are_refused_in_the_words_for_one() -> None:
    names = [f"v{i}" for i in range(20)]
    plan = make_plan([VariableSpec(name, (2,), "<f4", SGD) for name in names], (0,), lambda *_: 0, None)
    good = {name: np.ones(2, np.float32) for name in names}
    assembly = Assembly(plan, Nesting(good))
    assert isinstance(assembly.gradients(good), Whole)
    assert list(assembly.gradients(good)) == list(range(20))
    assert set(assembly.gradients({name: good[name] for name in reversed(names)})) == set(range(20))
    assert list(assembly.gradients({**good, "v3": None})) == [i for i in range(20) if i != 3]
    strided = assembly.gradients({**good, "v3": np.ones(4, np.float32)[::2]})
    assert strided[3].flags.c_contiguous and strided[3].tolist() == [1, 1]  # type: ignore[union-attr]
    for wrong, words in (
        (np.ones(3, np.float32), r"the gradient of v3 has shape \(3,\); the variable has \(2,\)"),
        (np.ones(2, np.float64), "the gradient of v3 is float64; the variable is float32"),
        (np.array(["a", "b"]), "v3 is ndarray of dtype <U1"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            assembly.gradients({**good, "v3": wrong})
    with pytest.raises(ValueError, match="a gradient came for 'v20', which is no variable"):
        assembly.gradients({**good, "v20": good["v3"]})
