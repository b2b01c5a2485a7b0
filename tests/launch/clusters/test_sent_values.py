"""Arguments and results between processes: plain values and arrays come back as they went."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dps.launch.clusters.worker import pack, receive, send, unpack

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=20,
)


def same(left: object, right: object) -> bool:
    """Equal, and tuples are tuples, True is not 1."""
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))  # type: ignore[arg-type]
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return type(left) is type(right) and left == right


@given(plain)
def test_plain_values_come_back(value: object) -> None:
    assert same(unpack(pack(value)), value)


@given(
    arrays.arrays(st.sampled_from(["f4", "f8", "i8", "u1", "?", ">i2"]), arrays.array_shapes(min_dims=0, min_side=0))
)
def test_arrays_come_back_with_dtype_and_shape_and_may_be_written(array: np.ndarray) -> None:
    found = unpack(pack({"a": [array.T]}))["a"][0]
    assert found.dtype == array.dtype and found.shape == array.T.shape and found.flags.writeable
    assert found.tobytes() == array.T.tobytes()


def test_bfloat16_comes_back_as_bfloat16() -> None:
    back = unpack(pack(np.array([1.5, -2.0], ml_dtypes.bfloat16)))
    assert (back.dtype, back.astype(np.float32).tolist()) == (ml_dtypes.bfloat16, [1.5, -2.0])


def test_numpy_numbers_become_plain_ones() -> None:
    assert unpack(pack([np.float64(0.5), np.int64(3), np.bool_(True)])) == [0.5, 3, True]


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["x"], object), lambda: 0])
def test_what_cannot_travel_is_named_by_its_type(value: object) -> None:
    with pytest.raises(TypeError, match=f"a {type(value).__name__} cannot travel between processes"):
        pack([value])


def test_values_follow_one_another_through_a_pipe_until_it_is_closed() -> None:
    out, into = os.pipe()
    send(into, {"progress": 1})
    send(into, [2])
    os.close(into)
    assert (receive(out), receive(out)) == ({"progress": 1}, [2])
    with pytest.raises(EOFError):
        receive(out)
    os.close(out)
