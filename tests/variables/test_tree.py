"""Nested arrays as named leaves and back."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given

import dps
from dps.errors import ConfigError
from dps.variables.tree import Nesting, Rows, Variable, leaves, nested, to_array
from tests.variables.models import arrays, trees


class Layer(NamedTuple):
    w: Any
    b: Any


def test_names_are_paths_in_creation_order() -> None:
    tree = {"hidden": {"w": 1, "b": 2}, "layers": [3, (4, 5)], "a": 6}
    assert list(leaves(tree)) == [
        ("hidden/w", 1), ("hidden/b", 2), ("layers/0", 3), ("layers/1/0", 4), ("layers/1/1", 5), ("a", 6),
    ]  # fmt: skip


def test_a_single_array_is_called_value() -> None:
    assert list(leaves(7)) == [("value", 7)]


@pytest.mark.parametrize("key", ["a/b", "", "a@b"])
def test_a_key_that_cannot_be_a_name_is_refused_with_where_it_is(key: str) -> None:
    with pytest.raises(ValueError, match=r"under 'deep' cannot be a name"):
        list(leaves({"deep": {key: 1}}))


def test_a_key_that_is_no_string_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"got the key 3 \(int\) under 'deep'"):
        list(leaves({"deep": {3: 1}}))


def test_settings_of_a_variable_and_rows_are_leaves() -> None:
    variable, rows = Variable(np.zeros(2)), Rows([0], [1.0])
    assert list(leaves({"v": variable, "r": rows})) == [("v", variable), ("r", rows)]


@given(trees(arrays()))
def test_a_nesting_takes_a_tree_apart_and_puts_it_together_again(tree: Any) -> None:
    nesting, found = Nesting(tree), list(leaves(tree))
    assert nesting.paths == [path for path, _ in found]
    same(nesting.build([leaf for _, leaf in found]), tree)
    taken = nesting.leaves(tree)
    assert taken is not None and len(taken) == len(found)
    assert all(one is leaf for one, (_, leaf) in zip(taken, found, strict=True))


def test_a_tree_that_is_nested_otherwise_is_not_taken_apart() -> None:
    nesting = Nesting({"a": {"b": 1, "c": 2}, "d": [3, (4, Layer(5, 6))]})
    assert nesting.leaves({"a": {"b": 1, "c": 2}, "d": [3, (4, Layer(5, 6))]}) == [1, 2, 3, 4, 5, 6]
    for other in (
        {"a": {"c": 2, "b": 1}, "d": [3, (4, Layer(5, 6))]},
        {"d": [3, (4, Layer(5, 6))], "a": {"b": 1, "c": 2}},
        {"a": {"b": 1}, "d": [3, (4, Layer(5, 6))]},
        {"a": {"b": 1, "c": 2, "x": 3}, "d": [3, (4, Layer(5, 6))]},
        {"a": MappingProxyType({"b": 1, "c": 2}), "d": [3, (4, Layer(5, 6))]},
        {"a": {"b": 1, "c": 2}, "d": [3, [4, Layer(5, 6)]]},
        {"a": {"b": 1, "c": 2}, "d": [3, (4, (5, 6))]},
        {"a": {"b": 1, "c": 2}, "d": [3, (4, Layer(5, 6)), 7]},
        {"a": {"b": 1, "c": 2}},
        [1, 2],
        7,
    ):
        assert nesting.leaves(other) is None


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    else:
        assert a is b


def test_a_named_tuple_comes_back_as_one() -> None:
    nesting = Nesting([Layer(1, 2)])
    assert nesting.build(nesting.paths) == [Layer("0/0", "0/1")]


def test_a_nesting_keeps_no_array_alive() -> None:
    from weakref import ref

    array = np.zeros(3)
    alive = ref(array)
    nesting = Nesting({"a": array})
    del array
    assert alive() is None and nesting.build(["a"]) == {"a": "a"}


def test_a_reader_gets_nested_dicts_of_the_paths() -> None:
    assert nested(["hidden/w", "layers/0", "layers/1/0", "b"]) == {
        "hidden": {"w": None}, "layers": {"0": None, "1": {"0": None}}, "b": None,
    }  # fmt: skip


def test_arrays_are_taken_as_they_are_where_they_can_travel() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert np.shares_memory(to_array(array, "a"), array)
    assert to_array(Variable(array), "a") is not None
    strided, foreign = array[:, ::2], array.astype(">f8")
    for given_array in (strided, foreign):
        taken = to_array(given_array, "a")
        assert taken.flags.c_contiguous and taken.dtype.isnative
        np.testing.assert_array_equal(taken, given_array)
    assert to_array(3.5, "a").shape == () and to_array([1, 2], "a").tolist() == [1, 2]


@pytest.mark.slow  # loads torch
def test_a_tensor_is_taken_by_its_values() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(4.0, requires_grad=True)
    assert to_array(tensor, "a").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("value", ["text", None, np.array(["a"]), np.array([1j]), object()])
def test_what_is_no_array_of_numbers_is_a_type_error_that_names_it(value: Any) -> None:
    with pytest.raises(TypeError, match=r"hidden/w is .*; wanted an array of numbers"):
        to_array(value, "hidden/w")


@pytest.mark.parametrize("value", [np.ma.masked_array([1.0, 1e6], [0, 1]), np.ma.arange(3), np.ma.masked])
def test_a_masked_array_is_refused(value: Any) -> None:
    """Its mask was lost, and what it hid was taken as numbers."""
    for given_value in (value, Variable(value)):
        with pytest.raises(TypeError, match=r"^hidden/w is a masked array, whose mask does not travel; .*call .filled"):
            to_array(given_value, "hidden/w")


def test_a_variable_notes_the_scope_that_it_is_made_in() -> None:
    with dps.device("/job:ps/task:1"):
        pinned = Variable(1.0)
    assert str(pinned.device) == "/job:ps/task:1"


@pytest.mark.parametrize("shape", [(5, 3), (5,), (), (np.int64(5), 3), (np.int32(5), np.int32(3))])
def test_a_tuple_of_whole_numbers_may_be_a_shape_and_is_refused_as_a_value(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as found:
        dps.Variable(shape)
    shape = tuple(int(n) for n in shape)
    assert f"dps.Variable(np.zeros({shape}))" in str(found.value)
    assert f"dps.Variable(np.array({list(shape)}))" in str(found.value)
    assert dps.Variable((0.5, 1.5)).value == (0.5, 1.5)
    assert dps.Variable([5, 3]).value == [5, 3]
    assert [name for name, _ in leaves({"w": (dps.Variable([1.0]), dps.Variable([2.0]))})] == ["w/0", "w/1"]


@pytest.mark.parametrize("field", ["trainable", "sparse"])
@pytest.mark.parametrize("value", ["no", 1, None])
def test_a_flag_of_a_variable_is_true_or_false(field: str, value: object) -> None:
    """The text "no" meant yes."""
    with pytest.raises(ConfigError, match=f"dps.Variable: {field} is {value!r}, wanted True or False"):
        Variable(np.zeros(2), **{field: value})
    assert not getattr(Variable(np.zeros(2), **{field: np.False_}), field)


@pytest.mark.parametrize("device", [3, 1.5, ("/job:ps/task:1",)])
def test_the_device_of_a_variable_is_one(device: object) -> None:
    """Opening a session ended in an AttributeError about __match_args__."""
    with pytest.raises(ConfigError, match="dps.Variable: device is .*, wanted one such as '/job:ps/task:1'"):
        Variable(np.zeros(2), device=device)
