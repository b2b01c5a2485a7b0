"""Messages as bytes: a msgpack header, then the raw bytes of the arrays, one frame each.

The header is a list: protocol version, kind of message, request number, sender, its incarnation, the actor it
is for, the message's fields, and dtype and shape of each array. A message class is a frozen dataclass of
plain fields, registered with its kind; the field `arrays`, where there is one, travels as frames. Everything
that comes from outside is checked before it is used: kinds, field types, dtypes, shapes, byte counts.
"""

from __future__ import annotations

import functools
import math
import operator
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgpack
import numpy as np

from dps.errors import ConfigError, ProtocolError
from dps.record import record
from dps.transport.dtypes import BFLOAT16, dtype_of, wire_name
from dps.transport.endpoint import Buffer

VERSION = 1
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


@record
class Message:
    """Root of all messages; a subclass is registered with `@kind(number)`."""


class Envelope(NamedTuple):
    """A message with its addressing. `actor` is "" for an answer; `request` is 0 where no answer is wanted."""

    message: Message
    actor: str = ""
    request: int = 0
    sender: str = ""
    incarnation: int = 0


class _Form(NamedTuple):
    cls: type[Message]
    names: tuple[str, ...]
    types: tuple[frozenset[type] | None, ...]
    """The classes that a field's value may have; None: any."""
    has_arrays: bool
    values: Callable[[Any], Any]
    """The fields of a message, without `arrays`."""
    usual: tuple[type | None, ...]
    """The classes that the fields have most of the time, for one comparison."""


_FORMS: dict[int, _Form] = {}
_KINDS: dict[type, int] = {}
_PLAIN: dict[str, frozenset[type] | None] = {
    **{plain.__name__: frozenset([plain]) for plain in (int, str, bool, bytes, list, dict)},
    "float": frozenset([float, int]),
    "Any": None,
}
"""What a field may be, by its annotation without what stands in brackets."""
_M = TypeVar("_M", bound=Message)


def kind(number: int) -> Callable[[type[_M]], type[_M]]:
    """Register a message class under a number; fields are int, str, bool, bytes, float, list, dict, Any."""

    def register(cls: type[_M]) -> type[_M]:
        if number in _FORMS:
            raise TypeError(f"message kind {number} is taken by {_FORMS[number].cls.__name__}")
        hints = cls.__annotations__  # of text: nothing is compiled for them
        names = tuple(name for name in hints if name != "arrays")
        types = tuple(_PLAIN[hints[name].partition("[")[0]] for name in names)
        usual = tuple(None if t is None else next(iter(t)) if len(t) == 1 else float for t in types)
        _FORMS[number] = _Form(cls, names, types, "arrays" in hints, _getter(names), usual)
        _KINDS[cls] = number
        return cls

    return register


def _getter(names: tuple[str, ...]) -> Callable[[Any], Any]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return (lambda message: (getattr(message, names[0]),)) if names else lambda _: ()


def encode(envelope: Envelope) -> tuple[bytes, tuple[Array, ...]]:
    """Header bytes and the arrays that follow as frames; arrays are not copied."""
    message, actor, request, sender, incarnation = envelope
    number = _KINDS[message.__class__]
    form = _FORMS[number]
    arrays: tuple[Array, ...] = message.arrays if form.has_arrays else ()  # type: ignore[attr-defined]
    shapes = [(a.dtype.str, *a.shape) for a in arrays] if arrays else ()
    for shape in shapes:
        if shape[0] not in DTYPES:  # bfloat16: has another name, and its arrays are no buffers
            shapes = [(wire_name(a.dtype), *a.shape) for a in arrays]
            arrays = tuple(a.view(np.uint16) if wire_name(a.dtype) == BFLOAT16 else a for a in arrays)
            break
    return _pack((VERSION, number, request, sender, incarnation, actor, form.values(message), shapes)), arrays


_pack = msgpack.Packer().pack


_unpack = functools.partial(msgpack.unpackb, strict_map_key=False, use_list=True)

BUNDLE = 0xC1
"""First byte of a bundle; no msgpack header begins with it."""
_COUNT, _ENTRY = struct.Struct("<BH"), struct.Struct("<IH")


def bundle(headers: Sequence[tuple[bytes, int]]) -> bytes:
    """Several headers as one, each with the number of frames that are its own."""
    entries = [_ENTRY.pack(len(header), frames) for header, frames in headers]
    return b"".join((_COUNT.pack(BUNDLE, len(headers)), *entries, *[header for header, _ in headers]))


def unbundle(header: bytes, frames: Sequence[Buffer]) -> list[tuple[bytes, Sequence[Buffer]]]:
    """The headers in one that may be a bundle, each with its frames. Raises ProtocolError for a malformed bundle."""
    if not header or header[0] != BUNDLE:
        return [(header, frames)]
    try:
        _, count = _COUNT.unpack_from(header)
        entries = [_ENTRY.unpack_from(header, _COUNT.size + i * _ENTRY.size) for i in range(count)]
    except struct.error:
        raise ProtocolError("a bundle of messages is cut off") from None
    at, taken = _COUNT.size + count * _ENTRY.size, 0
    if len(header) != at + sum(e[0] for e in entries) or len(frames) != sum(e[1] for e in entries):
        raise ProtocolError(f"a bundle of {count} messages does not have the bytes and frames that it names")
    found = []
    for nbytes, own in entries:
        found.append((header[at : at + nbytes], frames[taken : taken + own]))
        at, taken = at + nbytes, taken + own
    return found


def decode(header: bytes, frames: Sequence[Buffer]) -> Envelope:
    """The envelope in a header and its frames; arrays are read-only views of the frames.

    Raises ProtocolError for everything that does not fit; nothing is allocated for it.
    """
    if len(header) > MAX_HEADER_NBYTES or len(frames) > MAX_FRAMES:
        raise ProtocolError(f"header of {len(header)} bytes and {len(frames)} frames is over the limits")
    try:
        parts = _unpack(header)
    except Exception as error:
        raise ProtocolError(f"not a message: {type(error).__name__}") from None
    if parts.__class__ is not list or not parts or parts[0] != VERSION or parts[0].__class__ is not int:
        got = parts[0] if isinstance(parts, list) and parts and isinstance(parts[0], int) else "something else"
        raise ProtocolError(
            f"got protocol version {got}, this task speaks {VERSION}; install the same dps version on all tasks"
        )
    if len(parts) != 8:
        raise ProtocolError(f"a header has 8 parts, got {len(parts)}")
    _, number, request, sender, incarnation, actor, fields, shapes = parts
    if type(number) is not int or type(request) is not int or type(incarnation) is not int:
        raise ProtocolError("kind, request and incarnation must be integers")
    if type(sender) is not str or type(actor) is not str or type(fields) is not list or type(shapes) is not list:
        raise ProtocolError("sender and actor must be text, fields and shapes must be lists")
    form = _FORMS.get(number)
    if form is None:
        raise ProtocolError(f"unknown message kind {number}")
    message = _message(form, fields, shapes, frames)
    return Envelope(message, actor, request, sender, incarnation)


def peek(header: bytes) -> tuple[int, str] | None:
    """Request number and actor of a header that `decode` refused, so that its sender can be told; or None."""
    if len(header) > MAX_HEADER_NBYTES:
        return None
    try:
        parts = _unpack(header)
    except Exception:
        return None
    if type(parts) is not list or len(parts) < 6:
        return None
    request, actor = parts[2], parts[5]
    return (request, actor) if type(request) is int and type(actor) is str else None


def _message(form: _Form, fields: list[Any], shapes: list[Any], frames: Sequence[Buffer]) -> Message:
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
        raise ProtocolError(f"{len(shapes)} shapes for {len(frames)} frames")
    arrays = tuple(_array(shape, frame) for shape, frame in zip(shapes, frames, strict=True))
    return form.cls(*fields, arrays)  # type: ignore[call-arg]


def _array(described: Any, frame: Buffer) -> Array:
    if type(described) is not list or not 1 <= len(described) <= MAX_DIMS + 1:
        raise ProtocolError("an array is described by a known dtype and its shape")
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
        return np.frombuffer(frame, dtype).reshape(shape)
    except ValueError as error:  # no elements, and yet too many for numpy: (0, 1 << 47, 1 << 47)
        raise ProtocolError(f"an array of shape {tuple(shape)} and dtype {dtype}: {error}") from None
