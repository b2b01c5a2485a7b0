"""Messages as bytes: round trips, and nothing but ProtocolError for everything that does not fit."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings

import dps.actors.messages
import dps.protocol  # noqa: F401  (registers the messages)
from dps.errors import ProtocolError
from dps.protocol import CHIEF, AskStats, Pull, Push
from dps.transport.wire import _FORMS, VERSION, Envelope, decode, encode, peek

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
BY_TYPE: dict[Any, Any] = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=8),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    bytes: st.binary(max_size=8),
    list: st.lists(PLAIN, max_size=3),
    dict: st.dictionaries(st.text(max_size=3), PLAIN, max_size=3),
    Any: PLAIN,
}
DTYPES = ["?", "i1", "i4", "i8", "u1", "u8", "f2", "f4", "f8"]


@st.composite
def arrays(draw: Any) -> Any:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(draw(st.sampled_from(DTYPES)))


@st.composite
def messages(draw: Any) -> Any:
    form = draw(st.sampled_from(sorted(_FORMS)))
    cls = _FORMS[form].cls
    hints = get_type_hints(cls)
    fields = {}
    for field in dataclasses.fields(cls):
        if field.name == "arrays":
            fields["arrays"] = tuple(draw(st.lists(arrays(), max_size=3)))
        else:
            fields[field.name] = draw(BY_TYPE[getattr(hints[field.name], "__origin__", hints[field.name])])
    return cls(**fields)


def frames_of(found: tuple[Any, ...]) -> list[memoryview]:
    return [memoryview(a.tobytes()) for a in found]


@given(message=messages(), request=st.integers(0, 2**40), actor=st.text(max_size=5), incarnation=st.integers(0, 2**62))
def test_every_message_comes_back_as_it_was(message: Any, request: int, actor: str, incarnation: int) -> None:
    header, found = encode(Envelope(message, actor, request, "worker:0", incarnation))
    back = decode(header, frames_of(found))
    assert (back.actor, back.request, back.sender, back.incarnation) == (actor, request, "worker:0", incarnation)
    for field in dataclasses.fields(message):
        one, two = getattr(message, field.name), getattr(back.message, field.name)
        if field.name == "arrays":
            for a, b in zip(one, two, strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        else:
            assert one == two


@settings(max_examples=300)
@given(header=st.binary(max_size=80), frames=st.lists(st.binary(max_size=16), max_size=3))
def test_random_bytes_are_refused(header: bytes, frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode(header, [memoryview(f) for f in frames])
    peek(header)


@settings(max_examples=300)
@given(data=st.data())
def test_a_message_with_one_byte_changed_is_refused_or_another_message(data: Any) -> None:
    message = Push(3, 7, 2, 5, 2, 24, [0], [[1, False]], (np.ones((2, 3), np.float32),))
    header, found = encode(Envelope(message, "ps", 9, "worker:1", 4))
    changed = bytearray(header)
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(changed), frames_of(found))
    except ProtocolError:
        pass


@settings(max_examples=200)
@given(shape=st.lists(st.integers(-5, 2**60), max_size=4), dtype=st.sampled_from([*DTYPES, "O", "U4", "V8", ""]))
def test_hostile_shapes_are_refused_before_anything_is_allocated(shape: list[int], dtype: str) -> None:
    header = msgpack.packb((VERSION, 14, 1, "x", 0, "ps", [1, 2], [[dtype, *shape]]))
    try:
        decode(header, [memoryview(b"\x00" * 8)])
    except ProtocolError:
        return
    assert np.prod(shape) * np.dtype(dtype).itemsize == 8


def test_another_version_is_told_with_both_numbers() -> None:
    header = msgpack.packb((VERSION + 1, 1))
    with pytest.raises(ProtocolError, match=f"version {VERSION + 1}, this task speaks {VERSION}"):
        decode(header, [])


def test_what_does_not_fit_its_message_is_refused() -> None:
    header, _ = encode(Envelope(AskStats(), CHIEF, 1))
    with pytest.raises(ProtocolError, match="AskStats carries no arrays, got 1"):
        decode(header, [memoryview(b"x")])
    parts = msgpack.unpackb(encode(Envelope(Pull(1, 0, 0, 0, -1, []), "ps", 1))[0])
    parts[6] = [1, 0, True, 0, -1, []]
    with pytest.raises(ProtocolError, match=r"Pull\.after cannot be a bool"):
        decode(msgpack.packb(parts), [])
    parts[6] = [1, 0]
    with pytest.raises(ProtocolError, match="Pull has 6 fields, got 2"):
        decode(msgpack.packb(parts), [])
