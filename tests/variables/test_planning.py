"""From a user's arrays and settings to the plan of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import PlacementError
from dps.variables.planning import plan_of

SGD, ADAM = dps.optim.SGD(0.1), dps.optim.Adam()


def placed(params: Any, ps: Any = (0, 1), placement: Any = None, partitioner: Any = None) -> dict[str, int]:
    plan, _ = plan_of(params, SGD, ps, placement, partitioner)
    return {part.name: part.ps for part in plan.parts}


def f4(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def test_round_robin_is_the_default_in_creation_order_over_the_tasks_that_exist() -> None:
    params = {"z": f4(2), "a": {"w": f4(2), "b": f4(1)}, "l": [f4(1)]}
    assert placed(params) == {"z": 0, "a/w": 1, "a/b": 0, "l/0": 1}
    assert placed(params, ps=(2, 5, 7)) == {"z": 2, "a/w": 5, "a/b": 7, "l/0": 2}


def test_each_part_takes_a_turn() -> None:
    params = {"w": f4(5, 2), "b": f4(1), "s": f4()}
    assert placed(params, partitioner=dps.partition.Fixed(3)) == {
        "w/part_0": 0, "w/part_1": 1, "w/part_2": 0, "b": 1, "s": 0,
    }  # fmt: skip


def test_a_policy_or_a_setter_of_the_users_decides() -> None:
    params = {"big": f4(100), "b": f4(1), "c": f4(1)}
    assert placed(params, placement=dps.placement.Greedy(2)) == {"big": 0, "b": 1, "c": 1}
    setter = dps.replica_device_setter(cluster={"ps": ["a:1", "b:1"]}, ps_strategy=dps.placement.Greedy(2))
    assert placed(params, placement=setter) == {"big": 0, "b": 1, "c": 1}


def test_a_scope_pins_a_variable_and_the_counter_still_moves() -> None:
    with dps.device("/job:ps/task:1"):
        pinned = dps.Variable(f4(1))
    assert placed({"a": pinned, "b": f4(1), "c": f4(1)}) == {"a": 1, "b": 1, "c": 0}


def test_a_variable_on_another_job_is_refused() -> None:
    with dps.device("/job:worker/task:0"):
        strange = dps.Variable(f4(1))
    words = r"a was placed on /job:worker/task:0; variables live on a ps task, .*; the ps tasks are \[0, 1\]"
    with pytest.raises(PlacementError, match=words):
        placed({"a": strange})


def test_settings_of_a_variable_go_before_those_of_the_session() -> None:
    params = {
        "a": f4(2), "b": dps.Variable(f4(2), optimizer=ADAM), "c": dps.Variable(f4(2), trainable=False),
        "step": np.int64(3), "t": dps.Variable(f4(2, 2), sparse=True),
    }  # fmt: skip
    plan, values = plan_of(params, SGD, (0,), None, None)
    assert [(v.name, v.shape, v.dtype, v.optimizer, v.sparse) for v in plan.variables] == [
        ("a", (2,), "<f4", SGD.to_wire(), False), ("b", (2,), "<f4", ADAM.to_wire(), False),
        ("c", (2,), "<f4", None, False), ("step", (), "<i8", None, False), ("t", (2, 2), "<f4", SGD.to_wire(), True),
    ]  # fmt: skip
    assert values["step"] == 3 and np.shares_memory(values["b"], params["b"].value)


def test_parts_of_a_variable_have_the_values_that_the_unsplit_one_has() -> None:
    from dps.variables.layout import split

    w = np.random.default_rng(0).normal(size=(13, 2))
    plan, values = plan_of({"w": w}, SGD, (0, 1), None, dps.partition.Fixed(5))
    parts = [split(values["w"], part, 5) for part in plan.parts]
    np.testing.assert_array_equal(np.concatenate(parts), w)
    assert not np.array_equal(parts[0], parts[1])


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, "params has no arrays"),
        ({"a": []}, "params has no arrays"),
        ({"a": np.zeros(2, np.longdouble)}, "a is float128; trained variables are float16"),
        ({"a": dps.Variable(np.zeros(2, np.longdouble), trainable=False)}, "which cannot travel"),
    ],
)
def test_arrays_that_cannot_be_variables_are_told(params: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan_of(params, SGD, (0,), None, None)


def test_trained_variables_need_an_optimizer() -> None:
    with pytest.raises(ValueError, match="no optimizer for b; give the session one"):
        plan_of({"a": dps.Variable(f4(1), optimizer=SGD), "b": f4(1)}, None, (0,), None, None)


def test_a_setter_scope_around_the_session_places_its_variables() -> None:
    params = {name: np.zeros(2, np.float32) for name in "abc"}
    with dps.device(dps.replica_device_setter(ps_tasks=2, ps_strategy=lambda name, shape, dtype: 1)):
        plan, _ = plan_of(params, dps.optim.SGD(0.1), [0, 1], None, None)
    assert [part.ps for part in plan.parts] == [1, 1, 1]
    assert [part.ps for part in plan_of(params, dps.optim.SGD(0.1), [0, 1], None, None)[0].parts] == [0, 1, 0]
