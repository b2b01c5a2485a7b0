"""Messages there and back again, and everything that is not one."""

from __future__ import annotations

import math
import struct
import sys
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import dps.actors.ref
import dps.messages.sessions  # noqa: F401  registers the kinds
from dps.actors.answers import Done, Waiting
from dps.errors import ProtocolError
from dps.messages.runs import Stats
from dps.messages.sessions import (
    APPLIED,
    SHARED,
    STEP_PS,
    Credit,
    Lookup,
    Pull,
    Push,
    Pushed,
    SharedValues,
    Token,
    Values,
)
from dps.transport import wire
from dps.transport.message import FORMS, Message, changed
from dps.transport.wire import Envelope, decode, encode, integers_of_answer, peek

INTS = st.integers(-(2**63), 2**64 - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
OF_TYPE: dict[frozenset[type] | None, st.SearchStrategy[Any]] = {
    frozenset([int]): INTS,
    frozenset([str]): st.text(max_size=20),
    frozenset([bool]): st.booleans(),
    frozenset([bytes]): st.binary(max_size=20),
    frozenset([float, int]): st.floats(allow_nan=False),
    frozenset([list]): st.lists(PLAIN, max_size=4),
    frozenset([dict]): st.dictionaries(st.text(max_size=5), PLAIN, max_size=4),
    None: PLAIN,
}


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = np.dtype(draw(st.sampled_from(sorted(wire.DTYPES))))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    return np.frombuffer(raw, dtype).reshape(shape)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    form = FORMS[draw(st.sampled_from(sorted(FORMS)))]
    fields = [draw(OF_TYPE[types]) for types in form.types]
    if form.has_arrays:
        fields.append(tuple(draw(st.lists(arrays(), max_size=3))))
    return form.cls(*fields)


envelopes = st.builds(Envelope, messages(), st.text(max_size=5), INTS, st.text(max_size=5), INTS)


def frames_of(arrays: tuple[np.ndarray[Any, Any], ...]) -> list[memoryview]:
    return [memoryview(a.tobytes()) for a in arrays]


SMALL = st.integers(-3, 3) | st.sampled_from([1 << 62, 1 << 63])
PLACES = st.lists(SMALL | st.booleans() | st.floats(allow_nan=False), min_size=3, max_size=5) | PLAIN
LENT = st.just([]) | st.tuples(SMALL, SMALL, st.lists(PLACES, max_size=2)).map(list) | st.lists(PLAIN, max_size=4)
FORM = st.sampled_from([SHARED, SHARED, 0, 1, 2])
ARRAYS = st.just(()) | st.just((np.zeros(2, np.float32),))
USUAL = (
    st.builds(
        Push, SMALL, SMALL, SMALL, SMALL, FORM, SMALL, st.just([]) | st.lists(SMALL, max_size=2),
        st.tuples(PLACES, st.just(0) | PLAIN).map(list) | st.lists(PLACES, max_size=3), SMALL, st.booleans(), SMALL,
        st.just([]) | st.lists(st.floats(allow_nan=False) | SMALL, max_size=4), st.just(STEP_PS) | SMALL, ARRAYS,
    )
    | st.builds(
        Pushed, SMALL, st.sampled_from(["applied", "dropped"]), SMALL, SMALL, SMALL, st.sampled_from(["", "why"]), LENT,
        st.booleans(),
    )
    | st.builds(SharedValues, SMALL, SMALL, SMALL, st.lists(PLACES, max_size=2))
    | st.builds(
        Pull, SMALL, SMALL, SMALL, SMALL, SMALL, st.just([]) | st.lists(SMALL, max_size=2), SMALL, st.booleans(), SMALL,
        st.just([]) | st.lists(PLAIN, max_size=2), SMALL, st.booleans(),
    )
)  # fmt: skip
"""Messages that have a compact form, and some that nearly have one."""


@given(USUAL)
@example(Pushed(0, APPLIED, 0, 0, 0, "", [None]))
@settings(max_examples=150)
def test_a_compact_message_is_the_same_message(message: Message) -> None:
    header, arrays = encode(Envelope(message, "ps", 7, "worker:0", 3))
    back = decode(header, frames_of(arrays)).message
    assert type(back) is type(message)
    for name in message.form_of.names:
        assert getattr(back, name) == getattr(message, name), name


def test_the_usual_messages_of_a_small_step_are_compact() -> None:
    place = [1 << 20, 3, 1 << 40, 4096]
    usual: list[Message] = [
        Push(1, 2, 3, -1, SHARED, 4096, [], [place, 0], 0, True, 7), Pull(1, 0, 0, 0, -1, [], 0, True, 7),
        Pushed(2, APPLIED, 3, 0, 3, "", [3, 3, [place]]), Pushed(2, APPLIED, 3, 1, 3, ""),
        SharedValues(1, 3, 3, [place]),
    ]  # fmt: skip
    assert all(encode(Envelope(message, "", 1, "ps:0"))[0][0] == wire.PLAIN for message in usual)


@given(envelopes)
def test_what_is_decoded_is_what_was_encoded(envelope: Envelope) -> None:
    header, arrays = encode(envelope)
    back = decode(header, frames_of(arrays))
    assert (back.actor, back.request, back.sender, back.incarnation) == (
        envelope.actor, envelope.request, envelope.sender, envelope.incarnation,
    )  # fmt: skip
    sent, got = envelope.message, back.message
    assert type(sent) is type(got)
    form = sent.form_of
    for name in form.names:
        assert getattr(got, name) == getattr(sent, name)
    if form.has_arrays:
        for a, b in zip(sent.arrays, got.arrays, strict=True):  # type: ignore[attr-defined]
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
            assert not b.flags.writeable


def decodes_or_refuses(header: bytes, frames: list[memoryview]) -> None:
    try:
        assert isinstance(decode(header, frames), Envelope)
    except ProtocolError:
        pass
    known = peek(header)
    assert known is None or (type(known[0]) is int and type(known[1]) is str)


@given(st.binary(max_size=200), st.lists(st.binary(max_size=16), max_size=3))
def test_random_bytes_are_refused_with_ProtocolError_and_nothing_else(header: bytes, frames: list[bytes]) -> None:
    decodes_or_refuses(header, [memoryview(f) for f in frames])


@settings(max_examples=100)
@given(envelopes, st.data())
def test_a_mutated_header_is_decoded_or_refused_with_ProtocolError(envelope: Envelope, data: st.DataObject) -> None:
    header, arrays = encode(envelope)
    mutated = bytearray(header)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        mutated[at] = data.draw(st.integers(0, 255))
    decodes_or_refuses(bytes(mutated[: data.draw(st.integers(0, len(mutated)))]), frames_of(arrays))
    decodes_or_refuses(bytes(mutated), frames_of(arrays))


@settings(max_examples=100)
@given(envelopes, st.data())
def test_a_header_with_a_part_of_another_kind_is_decoded_or_refused(envelope: Envelope, data: st.DataObject) -> None:
    header, arrays = encode(envelope)
    assume(header[0] != 0xC0)  # plain ones have parts of one kind
    parts = msgpack.unpackb(header, strict_map_key=False)
    where = parts
    while isinstance(where, list) and where:
        at = data.draw(st.integers(0, len(where) - 1))
        if not isinstance(where[at], list) or not where[at] or data.draw(st.booleans()):
            where[at] = data.draw(PLAIN)
            break
        where = where[at]
    decodes_or_refuses(msgpack.packb(parts), frames_of(arrays))


def header(*, version: Any = 1, number: Any = 14, fields: Any = (1, 2, 0), shapes: Any = (), **more: Any) -> bytes:
    """A header of a RowsAnswer message, unless said otherwise."""
    parts = [version, number, more.get("request", 7), more.get("sender", "w"), 3, more.get("actor", "ps"), fields]
    return bytes(msgpack.packb([*parts, shapes]))


def test_another_protocol_version_is_told_apart_from_garbage() -> None:
    with pytest.raises(ProtocolError, match="got protocol version 2, this task speaks 1; install the same dps version"):
        decode(header(version=2), [])
    with pytest.raises(ProtocolError, match="got protocol version something else, this task speaks 1"):
        decode(msgpack.packb("hello"), [])
    with pytest.raises(ProtocolError, match="got protocol version True"):
        decode(header(version=True), [])
    with pytest.raises(ProtocolError, match="not a message"):
        decode(b"\xc1", [])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (header(number=99), "unknown message kind 99"),
        (header(number="x"), "must be integers"),
        (header(request=True), "must be integers"),
        (header(sender=b"w"), "must be text"),
        (header(fields=(1,)), "RowsAnswer has 3 fields, got 1"),
        (header(fields=(1, "2", 0)), "RowsAnswer.counter cannot be a str"),
        (header(fields=(1, True, 0)), "RowsAnswer.counter cannot be a bool"),
        (header(shapes=[["<f4", 1]]), "1 shapes for 0 frames"),
        (msgpack.packb([1, 2, 3]), "a header has 8 parts, got 3"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_in_words(bad: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decode(bad, [])


@pytest.mark.parametrize(
    "shape",
    [
        ["<f4", 2], ["<f4", 4], ["<f4"], ["<f4", 3, 2], ["<f4", -3], ["<f4", 3.0], ["<f4", True, 3], ["<f4", 1 << 48],
        ["|O", 3], [">f4", 3], ["f4", 3], [["<f4"], 3], [{}, 3], [], "<f4", 3, ["<f4", *[1] * 33],
    ],
)  # fmt: skip
def test_an_array_that_is_not_what_its_frame_holds_is_refused(shape: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(header(shapes=[shape]), [memoryview(bytes(12))])
    assert decode(header(shapes=[["<f4", 3]]), [memoryview(bytes(12))]).request == 7


@settings(max_examples=100)
@given(st.lists(st.integers(-5, 2**60), max_size=4), st.sampled_from([*sorted(wire.DTYPES), "O", "U4", "V8", ""]))
def test_hostile_shapes_are_refused_before_anything_is_allocated(shape: list[int], dtype: str) -> None:
    try:
        decode(header(shapes=[[dtype, *shape]]), [memoryview(bytes(8))])
    except ProtocolError:
        return
    assert math.prod(shape) * np.dtype(dtype).itemsize == 8


def test_the_count_of_bytes_is_named_when_it_is_wrong() -> None:
    with pytest.raises(ProtocolError, match=r"shape \(2, 2\) and dtype float32 has 16 bytes, got 12"):
        decode(header(shapes=[["<f4", 2, 2]]), [memoryview(bytes(12))])


def test_an_empty_array_of_a_shape_beyond_numpy_is_refused() -> None:
    with pytest.raises(ProtocolError, match="too big"):
        decode(header(shapes=[["<f4", 0, 1 << 47, 1 << 47]]), [memoryview(b"")])


def test_too_many_frames_and_too_long_headers_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProtocolError, match="4097 frames"):
        decode(header(), [memoryview(b"")] * 4097)
    monkeypatch.setattr(wire, "MAX_HEADER_NBYTES", 10)
    with pytest.raises(ProtocolError, match="over the limits"):
        decode(header(), [])
    assert peek(header()) is None


def test_a_message_without_arrays_takes_none() -> None:
    waiting = encode(Envelope(Waiting("for worker:1")))[0]
    parts = msgpack.unpackb(waiting)
    for message in (waiting, encode(Envelope(Done()))[0]):
        with pytest.raises(ProtocolError, match="carries no arrays, got 1"):
            decode(message, [memoryview(b"")])
    parts[7] = [["<f4", 0]]
    with pytest.raises(ProtocolError, match="Waiting carries no arrays"):
        decode(msgpack.packb(parts), [])


PLAIN_CREDIT = encode(Envelope(Credit(3, 1 << 62), "ps", 7, "worker:0", 5))[0]


def test_whole_numbers_travel_as_they_are() -> None:
    head = struct.pack("<4Bq", 0xC0, 1, 25, 11, 5) + b"ps\0worker:0"
    assert head + struct.pack("<3q", 7, 3, 1 << 62) == PLAIN_CREDIT
    assert decode(PLAIN_CREDIT, []) == Envelope(Credit(3, 1 << 62), "ps", 7, "worker:0", 5)
    assert peek(PLAIN_CREDIT) == (7, "ps")


@pytest.mark.parametrize(
    "envelope", [Envelope(Credit(3, 1 << 63)), Envelope(Credit(3, 1), "p\0s"), Envelope(Done(), "x" * 300)]
)
def test_what_does_not_fit_into_a_plain_message_travels_as_a_list(envelope: Envelope) -> None:
    header, _ = encode(envelope)
    assert header[0] != 0xC0 and decode(header, []) == envelope


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (PLAIN_CREDIT[:1], "got protocol version something else"),
        (b"\xc0\x02" + PLAIN_CREDIT[2:], "got protocol version 2, this task speaks 1; install the same dps version"),
        (b"\xc0\x01\x0b" + PLAIN_CREDIT[3:], r"unknown message kind \[11\], or one that is not plain"),
        (b"\xc0\x01\xff" + PLAIN_CREDIT[3:], r"unknown message kind \[255\]"),
        (PLAIN_CREDIT[:30], "a plain Credit is cut off or wrong"),
        (PLAIN_CREDIT[:3], "a plain Credit is cut off or wrong"),
        (PLAIN_CREDIT.replace(b"ps\0", b"ps:"), "with a 0 between them"),
        (PLAIN_CREDIT.replace(b"\0worker", b"\0\xfforker"), "a plain Credit is cut off or wrong"),
        (PLAIN_CREDIT + b"x" * 300, "got 347 bytes, wanted 47"),
    ],
)
def test_a_malformed_plain_message_is_refused(header: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode(header, [])
    assert peek(header) is None


PLAIN_TOKEN, _ = encode(Envelope(Token(-4), "", 7, "ps:0", 5))


def test_an_answer_with_a_plain_header_can_be_read_as_integers() -> None:
    assert integers_of_answer(PLAIN_TOKEN) == (7, -4)
    other, _ = encode(Envelope(Token(9), "", 8, "ps:12"))
    assert integers_of_answer(other) == (8, 9)


@pytest.mark.parametrize(
    "header",
    [
        PLAIN_CREDIT, encode(Envelope(Token(1), "ps", 7, "worker:0"))[0],  # of another kind, and to an actor
        encode(Envelope(Token(1 << 63), "", 7, "ps:0"))[0], encode(Envelope(Done(), "", 7, "x" * 300))[0],
        b"", PLAIN_TOKEN[:3], PLAIN_TOKEN[:8], PLAIN_TOKEN[:-1], PLAIN_TOKEN[:-8], PLAIN_TOKEN + b"x",
        PLAIN_TOKEN + PLAIN_TOKEN[-8:], PLAIN_TOKEN.replace(b"\0ps", b"\0\xffs"), PLAIN_TOKEN.replace(b"\0ps", b"ps:"),
    ],
)  # fmt: skip
def test_other_headers_and_malformed_ones_are_not_read_as_the_integers_of_an_answer(header: bytes) -> None:
    assert integers_of_answer(header) == ()


def test_a_whole_number_may_stand_for_a_float_and_any_key_for_a_maps() -> None:
    values = {"a": {1: 2}, "b": [None, True]}
    assert decode(encode(Envelope(Stats(values)))[0], []).message == Stats(values)


def test_peek_finds_who_asked_in_a_header_of_another_version() -> None:
    assert peek(header(version=2, request=5, actor="chief")) == (5, "chief")
    assert peek(header(version=2, fields=({1: 2}, 0))) == (7, "ps")
    assert peek(b"\xc1") is None
    assert peek(msgpack.packb([1, 2, 3])) is None
    assert peek(msgpack.packb({2: 5, 5: "ps"})) is None


def test_a_kind_is_given_once() -> None:
    with pytest.raises(TypeError, match="message kind 1 is taken by Done"):

        class Again(Message, kind=1, roles=frozenset()):
            """Takes the number of Done."""


def test_messages_of_the_same_fields_are_equal_and_one_may_be_made_of_another() -> None:
    pull = Pull(1, 0, 0, 0, -1, [], shared=True)
    assert pull == Pull(1, 0, 0, 0, -1, [], 0, True) and pull != Pull(2, 0, 0, 0, -1, [], shared=True)
    assert changed(pull, shared=False, epoch=3) == Pull(3, 0, 0, 0, -1, []) and pull.shared
    assert Done() == Done() and Done() != pull
    assert (
        repr(Values(1, 2, 3, 4, [0], 5))
        == "Values(epoch=1, counter=2, step=3, nbytes=4, offsets=[0], answer=5, base=-2, checksum=-1, arrays=())"
    )


def test_a_message_wants_its_fields() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'parts'"):
        Pull(1, 0, 0, 0, -1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'more'"):
        Done(more=1)  # type: ignore[call-arg]


def test_bfloat16_travels_under_its_name_and_needs_ml_dtypes_where_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    packed, frames = encode(Envelope(Values(1, 2, 3, 4, [0], 1, arrays=(halves,))))
    assert bytes(frames[0].data).hex() == "c03f00c0"
    (back,) = decode(packed, [memoryview(frames[0].tobytes())]).message.arrays  # type: ignore[attr-defined]
    assert (back.dtype, back.tobytes()) == (halves.dtype, halves.tobytes())
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ProtocolError, match="bfloat16 variables need ml_dtypes on every task"):
        decode(packed, [memoryview(frames[0].tobytes())])


def test_arrays_are_not_copied_for_framing() -> None:
    array = np.arange(6.0).reshape(2, 3)
    _, sent = encode(Envelope(Values(1, 2, 3, 48, [0], 1, arrays=(array,))))
    assert sent[0] is array
    frame = memoryview(array.tobytes())
    found = decode(encode(Envelope(Lookup(1, 0, 0, arrays=(array,))))[0], [frame]).message
    assert isinstance(found, Lookup)
    assert np.shares_memory(found.arrays[0], np.frombuffer(frame, np.uint8))


def test_a_pull_and_a_push_of_a_known_layout_have_headers_of_some_tens_of_bytes() -> None:
    run = np.zeros(1 << 20, np.uint8)
    assert len(encode(Envelope(Pull(1, 5, 4, 4, 100, []), "ps", 1000, "worker:3", 17))[0]) < 60
    assert (
        len(encode(Envelope(Push(1, 9, 5, 100, 1, 1 << 24, [0], [], arrays=(run,)), "ps", 1000, "worker:3", 17))[0])
        < 80
    )
