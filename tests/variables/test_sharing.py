"""Which leaves share memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.variables.planning import plan_of
from dps.variables.sharing import is_same, overlaps_itself, shared, tied
from dps.variables.tree import leaves

WHOLE = np.zeros((4, 6), np.float32)


def refused(one: Any, other: Any) -> str:
    with pytest.raises(ConfigError) as found:
        plan_of({"x": np.zeros(2), "one": one, "deep": [other]}, dps.optim.SGD(0.1), [0], None, None)
    return str(found.value)


def test_one_array_of_numpy_is_not_two_variables() -> None:
    text = refused(WHOLE, WHOLE)
    assert text == "params: one and deep/0 are one array; give each its own memory (.copy()), or leave one out"
    assert "are one array" in refused(WHOLE, WHOLE[:])
    assert "are one array" in refused(dps.Variable(WHOLE), WHOLE)


@pytest.mark.parametrize(
    "view", [WHOLE[1], WHOLE.T, WHOLE[:, 2], WHOLE.reshape(-1), WHOLE[::-1], WHOLE.view(np.int32), WHOLE[-1:, ::-2]]
)
def test_views_that_overlap_are_refused(view: Any) -> None:
    assert "params: one and deep/0 overlap in memory" in refused(WHOLE, view)
    assert "params: one and deep/0 overlap in memory" in refused(view, WHOLE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (WHOLE[:, :3], WHOLE[:, 3:]),
        (WHOLE[0], WHOLE[1]),
        (WHOLE[:, ::2], WHOLE[:, 1::2]),
        (WHOLE[:, 4::-2], WHOLE[:, 5::-2]),
        (WHOLE[:0], WHOLE[:0]),
        (WHOLE[:, :0], WHOLE),
        (np.broadcast_to(np.float32(1), 3), np.broadcast_to(np.float32(1), 3)),
        (1.0, 1.0),
        (np.float32(1), np.float32(1)),
    ],
)
def test_views_side_by_side_and_what_nobody_can_write_share_nothing(one: Any, other: Any) -> None:
    plan, _ = plan_of({"one": one, "other": other}, dps.optim.SGD(0.1), [0], None, None)
    assert not plan.tied and len(plan.variables) == 2


def strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    return np.lib.stride_tricks.as_strided(np.zeros(100), shape, tuple(8 * n for n in strides))


@pytest.mark.parametrize(
    ("array", "overlaps"),
    [
        (strided((3,), (0,)), True), (strided((4, 2), (1, 1)), True), (strided((3, 3), (3, 2)), False),
        (strided((3, 3), (2, 2)), True), (strided((3, 2), (2, 3)), False), (strided((4, 4), (2, 3)), True),
        (np.lib.stride_tricks.as_strided(np.zeros(2), (2,), (4,)), True),
        (WHOLE.T, False), (WHOLE[:, ::2], False), (WHOLE[::-1, ::-2], False), (WHOLE[:, 2], False),
        (strided((1, 2), (0, 1)), False), (strided((0, 2), (0, 0)), False), (np.zeros(()), False),
    ],
)  # fmt: skip
def test_an_array_overlaps_itself_if_two_elements_share_a_byte(array: Any, overlaps: bool) -> None:
    assert overlaps_itself(array) == overlaps


def test_arrays_of_jax_share_nothing() -> None:
    jnp = pytest.importorskip("jax.numpy")
    zeros = jnp.zeros(3)
    assert tied(leaves({"a": zeros, "b": zeros})) == {}


def test_each_of_several_is_paired_with_the_first() -> None:
    named = [("a", WHOLE), ("b", WHOLE), ("c", np.zeros(3)), ("d", WHOLE), ("e", WHOLE[1])]
    assert list(shared(named)) == [("a", "b", True), ("a", "d", True), ("a", "e", False)]
    assert is_same(WHOLE, WHOLE[:]) and not is_same(WHOLE, WHOLE.copy()) and not is_same(WHOLE, WHOLE[:3])
    assert not is_same(1.0, 2.0)


def test_very_many_leaves_are_compared_in_the_order_of_their_memory() -> None:
    memory = np.zeros(20_000, np.float32)
    named = [(str(place), memory[place : place + 1]) for place in range(len(memory))]
    assert list(shared(named)) == []
    assert list(shared([*named, ("more", memory[100:102])])) == [("100", "more", False), ("101", "more", False)]
