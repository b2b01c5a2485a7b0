"""Encodes messages as bytes: a header, then the raw bytes of each array as a frame.

The header is a msgpack list: protocol version, kind of message, request number, sender, its incarnation, the target
actor, the message's fields, and dtype and shape of each array. The field `arrays`, if a message class has it, is sent
as frames. A message that a few integers describe has a plain header (see `Message`). Its head is the same for all
messages of this kind that a sender sends to an actor: a first byte that no list has, version, kind, how many bytes the
names have, the incarnation, then actor and sender, with a 0 between them. The request number and the integers follow, 8
bytes each. All input is checked before it is used: kinds, field types, dtypes, shapes, byte counts.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import numpy as np

from dps.errors import ConfigError, ProtocolError
from dps.transport.dtypes import BFLOAT16, dtype_of, wire_name
from dps.transport.endpoint import Buffer
from dps.transport.message import BEGIN_NBYTES, FORMS, PLAIN, PLAIN_FORMS, VERSION, Form, Message

MAX_FRAMES = 4096
MAX_HEADER_NBYTES = 64 << 20
MAX_DIMS = 32
DTYPES = frozenset(
    np.dtype(name).str for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
) | {BFLOAT16}

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    Array = np.ndarray


class Envelope(NamedTuple):
    """A message with its addressing. `actor` is "" for an answer; `request` is 0 if no answer is wanted."""

    message: Message
    actor: str = ""
    request: int = 0
    sender: str = ""
    incarnation: int = 0


_envelope = functools.partial(tuple.__new__, Envelope)
"""Makes an envelope of a tuple of all fields, in less time than its constructor."""


def encode(envelope: Envelope) -> tuple[bytes, tuple[Array, ...]]:
    """Header bytes and the arrays that follow as frames; arrays are not copied."""
    message, actor, request, sender, incarnation = envelope
    form = message.form_of
    if form.plain is not None:
        numbers = form.numbers(message)
        header = encode_plain(form, numbers, actor, request, sender, incarnation) if numbers is not None else b""
        if header:
            return header, ()
    arrays: tuple[Array, ...] = message.arrays if form.has_arrays else ()  # type: ignore[attr-defined]
    shapes = [(a.dtype.str, *a.shape) for a in arrays] if arrays else ()
    for shape in shapes:
        if shape[0] not in DTYPES:  # bfloat16: it has another name, and its arrays lack the buffer protocol
            shapes = [(wire_name(a.dtype), *a.shape) for a in arrays]
            arrays = tuple(a.view(np.uint16) if wire_name(a.dtype) == BFLOAT16 else a for a in arrays)
            break
    return _pack((VERSION, form.number, request, sender, incarnation, actor, form.values(message), shapes)), arrays


def encode_plain(
    form: Form, numbers: Sequence[int], actor: str, request: int, sender: str, incarnation: int
) -> bytes:  # fmt: skip
    """The plain header of the message `form.made(*numbers)`, which need not be made; b"" if there is none."""
    try:
        return plain_head(form.begin, actor, sender, incarnation) + form.pack(request, *numbers)
    except NO_PLAIN_HEADER:
        return b""


NO_PLAIN_HEADER = struct.error, TypeError, ValueError
"""The errors of `plain_head` and `Form.pack` for what no plain header holds: a number of more than 8 bytes, or a name
that is too long."""


_pack = msgpack.Packer().pack

PLAIN_BYTE, _VERSION = bytes([PLAIN]), bytes([VERSION])
_HEAD = struct.Struct(f"<{BEGIN_NBYTES}sBq")
HEAD_NBYTES = _HEAD.size
"""Bytes of a head without its names, whose length is the byte `header[NAMES_AT]`."""
NAMES_AT = BEGIN_NBYTES


class Head(NamedTuple):
    """The head of plain headers, and how the rest of them is read."""

    nbytes: int
    """Bytes of the whole header."""
    unpack: Callable[[bytes, int], tuple[int, ...]]
    """Unpacks the request number and the integers, which follow the head."""
    form: Form
    actor: str
    sender: str
    incarnation: int


@functools.lru_cache(256)
def plain_head(begin: bytes, actor: str, sender: str, incarnation: int) -> bytes:
    """The head of plain headers. Raises ValueError for names that it cannot hold, and struct.error for an incarnation
    of more than 8 bytes."""
    names = f"{actor}\0{sender}".encode()
    if "\0" in actor or len(names) > 255:
        raise ValueError("names that a plain header cannot hold")
    return _HEAD.pack(begin, len(names), incarnation) + names


@functools.lru_cache(1024)
def read_head(head: bytes) -> Head:
    """What a head says. Raises KeyError for a kind that is not plain, and ValueError or struct.error for a malformed
    one."""
    form, (_, _, incarnation) = PLAIN_FORMS[head[:BEGIN_NBYTES]], _HEAD.unpack_from(head)
    actor, between, sender = head[HEAD_NBYTES:].decode().partition("\0")
    if not between:
        raise ValueError("actor and sender must be text with a 0 between them")
    assert form.plain is not None, "PLAIN_FORMS has plain ones alone"
    return Head(len(head) + form.plain.size, form.plain.unpack_from, form, actor, sender, incarnation)


def decode_plain(header: bytes, frames: Sequence[Buffer]) -> Envelope:
    """The envelope in a plain header. Raises ProtocolError for malformed input."""
    try:
        head = header[: HEAD_NBYTES + header[NAMES_AT]]
        nbytes, unpack, form, actor, sender, incarnation = read_head(head)
        if len(header) != nbytes:
            raise ValueError(f"got {len(header)} bytes, wanted {nbytes}")
        request, *numbers = unpack(header, len(head))
    except (IndexError, KeyError, struct.error, ValueError) as error:
        raise ProtocolError(_wrong_plain(header, error)) from None
    if frames:
        raise ProtocolError(f"{form.cls.__name__} carries no arrays, got {len(frames)}")
    return _envelope((form.made(*numbers), actor, request, sender, incarnation))


def integers_of_answer(header: bytes) -> tuple[int, ...]:
    """The request number and the integers in a plain header, if it is that of an answer; () for all other headers, also
    malformed ones."""
    try:
        if header.startswith(PLAIN_BYTE):
            return _unpack_answer(header[: HEAD_NBYTES + header[NAMES_AT]])(header)
    except (IndexError, struct.error):
        pass
    return ()


@functools.lru_cache(1024)
def _unpack_answer(head: bytes) -> Callable[[bytes], tuple[int, ...]]:
    """Unpacks what follows this head in a plain header of an answer, and checks its length; () for other headers."""
    try:
        found = read_head(head)
    except (KeyError, ValueError, struct.error):
        return _no_integers
    count = (found.nbytes - len(head)) // 8
    return _no_integers if found.actor else struct.Struct(f"<{len(head)}x{count}q").unpack


def _no_integers(header: bytes) -> tuple[int, ...]:
    return ()


def _wrong_plain(header: bytes, error: Exception) -> str:
    """A text that says what is wrong with a plain header, which cannot be read because of this error."""
    if header[1:2] != _VERSION:
        return _wrong(list(header[1:2]))
    if header[:BEGIN_NBYTES] not in PLAIN_FORMS:
        return f"unknown message kind {list(header[2:3])}, or one that is not plain"
    return f"a plain {FORMS[header[2]].cls.__name__} is cut off or wrong: {error}"


_unpack = functools.partial(msgpack.unpackb, strict_map_key=False, use_list=True)

_PARTS = (int, int, int, str, int, str, list, list)
"""Types of a header's elements: version, kind, request, sender, incarnation, actor, fields, shapes."""

_PEEKED = 4096
"""How many bytes of a refused header are looked into: enough for two names, and no work for the receiver."""

BUNDLE = 0xC1
"""First byte of a bundle; no msgpack header begins with it."""
_COUNT = struct.Struct("<BH")


def bundle(headers: Sequence[tuple[bytes, int]]) -> bytes:
    """Join several headers into one, each with the number of its frames."""
    sizes = [size for header, frames in headers for size in (len(header), frames)]
    entries = struct.pack("<BH" + len(headers) * "IH", BUNDLE, len(headers), *sizes)
    return b"".join((entries, *[header for header, _ in headers]))


def unbundle(header: bytes, frames: Sequence[Buffer]) -> list[tuple[bytes, Sequence[Buffer]]]:
    """Split a header that may be a bundle into headers with their frames. Raises ProtocolError if it is malformed."""
    if not header or header[0] != BUNDLE:
        return [(header, frames)]
    try:
        _, count = _COUNT.unpack_from(header)
        sizes = struct.unpack_from("<" + count * "IH", header, _COUNT.size)
    except struct.error:
        raise ProtocolError("a bundle of messages is cut off") from None
    at, taken = _COUNT.size + 6 * count, 0
    found = []
    for nbytes, own in zip(sizes[::2], sizes[1::2], strict=True):
        found.append((header[at : at + nbytes], frames[taken : taken + own] if own else ()))
        at, taken = at + nbytes, taken + own
    if len(header) != at or len(frames) != taken:
        raise ProtocolError(f"a bundle of {count} messages does not have the bytes and frames that it names")
    return found


def decode(header: bytes, frames: Sequence[Buffer]) -> Envelope:
    """The envelope in a header and its frames; arrays are views of the frames, made read-only.

    Raises ProtocolError for malformed input, and allocates nothing for it.
    """
    if header[:1] == PLAIN_BYTE:
        return decode_plain(header, frames)
    if len(header) > MAX_HEADER_NBYTES or len(frames) > MAX_FRAMES:
        raise ProtocolError(f"header of {len(header)} bytes and {len(frames)} frames is over the limits")
    try:
        parts = _unpack(header)
    except Exception as error:
        raise ProtocolError(f"not a message: {type(error).__name__}") from None
    if parts.__class__ is not list or tuple(map(type, parts)) != _PARTS or parts[0] != VERSION:
        raise ProtocolError(_wrong(parts))
    _, number, request, sender, incarnation, actor, fields, shapes = parts
    form = FORMS.get(number)
    if form is None:
        raise ProtocolError(f"unknown message kind {number}")
    message = _message(form, fields, shapes, frames)
    return Envelope(message, actor, request, sender, incarnation)


def _wrong(parts: Any) -> str:
    """A text that says what is wrong with the parts of a header."""
    if type(parts) is not list or not parts or type(parts[0]) is not int or parts[0] != VERSION:
        got = parts[0] if isinstance(parts, list) and parts and isinstance(parts[0], int) else "something else"
        return f"got protocol version {got}, this task speaks {VERSION}; install the same dps version on all tasks"
    if len(parts) != len(_PARTS):
        return f"a header has {len(_PARTS)} parts, got {len(parts)}"
    if not all(type(parts[at]) is int for at in (1, 2, 4)):
        return "kind, request and incarnation must be integers"
    return "sender and actor must be text, fields and shapes must be lists"


def peek(header: bytes) -> tuple[int, str] | None:
    """Request number and actor of a header that `decode` refused, so that its sender can be answered; or None."""
    if len(header) > MAX_HEADER_NBYTES:
        return None
    if header[:1] == PLAIN_BYTE:
        try:
            envelope = decode_plain(header, ())
        except ProtocolError:
            return None
        return envelope.request, envelope.actor
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(header[:_PEEKED])
    try:
        if unpacker.read_array_header() < len(_PARTS) - 2:
            return None
        _, _, request, _, _, actor = (unpacker.unpack() for _ in range(6))
    except Exception:
        return None
    return (request, actor) if type(request) is int and type(actor) is str else None


def _message(form: Form, fields: list[Any], shapes: list[Any], frames: Sequence[Buffer]) -> Message:
    if len(fields) != len(form.names):
        raise ProtocolError(f"{form.cls.__name__} has {len(form.names)} fields, got {len(fields)}")
    if tuple(map(type, fields)) != form.usual:
        for name, types, value in zip(form.names, form.types, fields, strict=True):
            if types is not None and value.__class__ not in types:
                raise ProtocolError(f"{form.cls.__name__}.{name} cannot be a {type(value).__name__}")
    if not form.has_arrays:
        if shapes or frames:
            raise ProtocolError(f"{form.cls.__name__} carries no arrays, got {len(frames)}")
        return form.cls(*fields)
    if len(shapes) != len(frames):
        raise ProtocolError(f"{form.cls.__name__} has {len(shapes)} shapes for {len(frames)} frames")
    arrays = tuple(_array(shape, frame) for shape, frame in zip(shapes, frames, strict=True))
    return form.cls(*fields, arrays)  # type: ignore[call-arg]


def _array(described: Any, frame: Buffer) -> Array:
    if type(described) is not list or not 1 <= len(described) <= MAX_DIMS + 1:
        raise ProtocolError(f"an array is described by {described!r:.40}; wanted [dtype, size, ...]")
    if type(described[0]) is not str or described[0] not in DTYPES:
        raise ProtocolError(f"dtype {described[0]!r:.40} is not known; wanted one of {', '.join(sorted(DTYPES))}")
    try:
        dtype, shape = dtype_of(described[0]), described[1:]
    except ConfigError as error:
        raise ProtocolError(str(error)) from None
    if not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise ProtocolError(f"shape {shape} is not a list of sizes")
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes != frame.nbytes:
        raise ProtocolError(
            f"an array of shape {tuple(shape)} and dtype {dtype} has {nbytes} bytes, got {frame.nbytes}"
        )
    try:
        array: Array = np.frombuffer(frame, dtype).reshape(shape)
        array.flags.writeable = False
        return array
    except ValueError as error:  # no elements, but a shape that numpy refuses: (0, 1 << 47, 1 << 47)
        raise ProtocolError(f"an array of shape {tuple(shape)} and dtype {dtype}: {error}") from None
