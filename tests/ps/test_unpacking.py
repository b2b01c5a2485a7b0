"""What a ps makes of packed gradients that somebody made up: refused, or an array of the part's shape; nothing else."""

from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps.errors import ProtocolError
from dps.messages.sessions import DENSE, PACKED, PARTS, Push
from dps.ps.intake.borrowed import Borrowed
from dps.ps.intake.intake import Staged
from dps.ps.intake.ledger import Ledger
from dps.ps.intake.parts import unpack
from dps.ps.intake.receiving import receive
from dps.transport.current import runtime
from dps.variables.packed import Packed
from dps.variables.plan import Part, VariableSpec, make_plan
from tests.variables.models import SGD

PART = Part(1, 0, "w/part_1", (3, 2), 4, 0)  # elements 8 to 13 of its variable
F4 = np.dtype("<f4")


def raw(*arrays: Any) -> Any:
    return np.concatenate([np.asarray(a).view(np.uint8).reshape(-1) for a in arrays])


def places(*numbers: int) -> Any:
    return np.array(numbers, "<u4")


def values(n: int) -> Any:
    return np.arange(1, n + 1, dtype="<f4")


def test_each_form_by_hand() -> None:
    halves = raw(np.arange(6, dtype="<f2"))
    assert unpack(["float16"], PART, F4, halves).tolist() == [[0, 1], [2, 3], [4, 5]]
    eight = raw(np.array([0.5], "<f4"), np.array([-2, 0, 2, 4, 6, 127], "i1"))
    assert unpack(["int8"], PART, F4, eight).tolist() == [[-1, 0], [1, 2], [3, 63.5]]
    assert unpack(["top_k"], PART, F4, raw(places(1, 5), values(2))).tolist() == [[0, 1], [0, 0], [0, 2]]
    assert unpack(["top_k"], PART, F4, raw(places(), values(0))).tolist() == [[0, 0]] * 3
    assert unpack(["random_k", 3, 14, 14], PART, F4, raw(values(6))).tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("form", "data", "words"),
    [
        (["zip"], raw(values(6)), "is packed as ['zip']; this ps knows float16, bfloat16, int8, top_k, random_k"),
        ([3], raw(values(6)), "is packed as [3]; this ps knows"),
        (["float16"], values(3), "is packed, but float32 (3,); wanted bytes (n,)"),
        (["float16"], raw(values(3)).reshape(3, 4), "is packed, but uint8 (3, 4); wanted bytes (n,)"),
        (["float16"], raw(values(2)), "has 8 bytes packed as float16; wanted 12"),
        (["bfloat16"], raw(values(6)), "has 24 bytes packed as bfloat16; wanted 12"),
        (["float16", 1], raw(values(3)), "is packed as ['float16', 1]; wanted 1 values"),
        (["int8"], raw(np.zeros(6, "i1")), "has 6 bytes packed as int8; wanted 10"),
        (["int8"], raw(np.zeros(11, "i1")), "has 11 bytes packed as int8; wanted 10"),
        (["top_k"], raw(places(1, 6), values(2)), "positions have to rise and be below 6"),
        (["top_k"], raw(places(1, 2**32 - 1), values(2)), "positions have to rise and be below 6"),
        (["top_k"], raw(places(2, 2), values(2)), "positions have to rise"),
        (["top_k"], raw(places(2, 1), values(2)), "positions have to rise"),
        (["top_k"], raw(places(0, 1, 2, 3, 4, 5, 5), values(7)), "has 56 bytes packed as top_k; wanted 48"),
        (["top_k"], raw(np.zeros(7, "i1")), "has 7 bytes packed as top_k; wanted 0"),
        (["random_k"], raw(values(6)), "is packed as ['random_k']; wanted random_k, key, n, k"),
        (["random_k", 1, 14, "x"], raw(values(6)), "wanted random_k, key, n, k"),
        (["random_k", 1, 14, True], raw(values(6)), "wanted random_k, key, n, k"),
        (["random_k", -1, 14, 2], raw(values(6)), "2 of 14 elements, key -1, cannot be"),
        (["random_k", 1 << 63, 14, 2], raw(values(6)), "cannot be"),
        (["random_k", 1, 14, 0], raw(values(6)), "0 of 14 elements, key 1, cannot be"),
        (["random_k", 1, 14, 15], raw(values(6)), "15 of 14 elements, key 1, cannot be"),
        (["random_k", 1, 13, 2], raw(values(6)), "2 of 13 elements, key 1, cannot be"),
        (["random_k", 1, 1 << 60, 1 << 59], raw(values(6)), "cannot be"),
        (["random_k", 1, 14, 14], raw(values(5)), "has 20 bytes packed as random_k; wanted 24"),
        (["random_k", 1, 1 << 40, 1 << 39], raw(values(9)), "has 36 bytes packed; wanted at most 28"),
    ],
)
def test_what_does_not_fit_the_part_is_refused(form: list[Any], data: Any, words: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(words)):
        unpack(form, PART, F4, data)


FORMS = st.one_of(
    st.sampled_from(["float16", "bfloat16", "int8", "top_k"]).map(lambda name: [name]),
    st.tuples(st.integers(-2, 1 << 64), st.integers(0, 1 << 50), st.integers(-1, 1 << 50)).map(
        lambda numbers: ["random_k", *numbers]
    ),
)


@settings(max_examples=150)
@given(FORMS, st.binary(max_size=64), st.sampled_from(["<f4", "<f8"]))
def test_any_bytes_give_an_array_of_the_parts_shape_or_are_refused(form: list[Any], data: bytes, dtype: str) -> None:
    try:
        found = unpack(form, PART, np.dtype(dtype), np.frombuffer(data, np.uint8))
    except ProtocolError:
        return
    assert found.shape == PART.shape and found.dtype == dtype and found.flags.owndata | found.base.flags.owndata


# -- among the other parts of a push ------------------------------------------------------------------------------

LAYOUT = make_plan(
    [VariableSpec("w", (3, 2), "<f4", SGD), VariableSpec("b", (2,), "<f8", SGD), VariableSpec("n", (1,), "<i8", None)],
    (0,), lambda *_: 0, None,
).layouts[0]  # fmt: skip


def message(*described_and_array: Any) -> Push:
    """A push of parts: a description and its array, in turn."""
    arrays = described_and_array[1::2]
    nbytes = sum(array.nbytes for array in arrays)
    return Push(1, 1, 0, 0, PARTS, nbytes, [], list(described_and_array[::2]), arrays=arrays)


def staged(piece: Push) -> Staged:
    found = receive(piece, Ledger(0, 1, "worker:0", Borrowed(runtime(), lambda: True)), LAYOUT, True, None, {})  # type: ignore[arg-type]
    assert isinstance(found, Staged)
    return found


def test_packed_and_whole_parts_come_in_one_push() -> None:
    packed = Packed(["top_k"], raw(places(1), values(1)))
    push = staged(message([0, PACKED, packed.form], packed.data, [1, DENSE, []], np.ones(2)))
    assert push.problem == ""
    assert [part.tolist() for part in push.sound().parts.values()] == [[[0, 1], [0, 0], [0, 0]], [1, 1]]  # type: ignore[union-attr]


def test_a_packed_number_that_is_none_is_named_by_its_variable() -> None:
    packed = Packed(["float16"], raw(np.array([0, 1, np.inf, 3, 4, 5], "<f2")))
    push = staged(message([0, PACKED, packed.form], packed.data))
    assert push.problem == "the gradient of w has NaN or infinite values"


@pytest.mark.parametrize(
    "described", [[2, "float16"], [9, "float16"], [0, "float16", "x"], [0, None, 1], ["0", "int8"]]
)
def test_a_description_that_does_not_fit_is_refused(described: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        staged(message(described, np.zeros(12, np.uint8)))
