"""Encodes nested values: their form as bytes, and their arrays as frames of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from dps.errors import ProtocolError
from dps.transport.dtypes import wire_name
from dps.transport.wire import DTYPES
from dps.variables.tree import is_tensor, not_numbers, to_array

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

PLAIN, ARRAY, TUPLE = 0, 1, 2
"""Codes of msgpack's extensions: the number of an array, and the form of a list that is a tuple. Higher codes belong to
those who `pack` with `special`. PLAIN is none: the content itself travels in place of the leaf."""

Special = Callable[[Any], "tuple[int, Any] | None"]
"""Returns the code and the plain content by which a leaf travels; None for one that is not special."""


def pack(value: Any, special: Special | None = None) -> tuple[bytes, tuple[Array, ...]]:
    """The form and the arrays of a value, which are not copied. TypeError names what cannot travel."""
    arrays: list[Array] = []
    has_scalars = False  # of numpy or the like: these may be keys, which the other side could not read

    def plain(leaf: Any) -> Any:
        nonlocal has_scalars
        if isinstance(leaf, tuple):
            return msgpack.ExtType(TUPLE, packed(list(leaf)))
        if isinstance(leaf, dict):  # of a class of its own, such as a Counter
            return dict(leaf)
        if special is not None and (found := special(leaf)) is not None:
            return found[1] if found[0] == PLAIN else msgpack.ExtType(found[0], packed(found[1]))
        if not (isinstance(leaf, np.ndarray | np.generic) or is_tensor(leaf)):
            what = "whole number of more than 64 bits" if type(leaf) is int else type(leaf).__name__
            raise TypeError(
                f"a {what} cannot travel between tasks; wanted numbers, text, bytes, lists, tuples, dicts and arrays"
            )
        has_scalars = has_scalars or not isinstance(leaf, np.ndarray)
        name = f"array {len(arrays)}"
        array = to_array(leaf, name)
        if wire_name(array.dtype) not in DTYPES:  # such as the long double of C, which is another one on each machine
            raise not_numbers(leaf, array.dtype, name)
        arrays.append(array)
        return msgpack.ExtType(ARRAY, msgpack.packb(len(arrays) - 1))

    def packed(value: Any) -> bytes:
        found: bytes = msgpack.packb(value, default=plain, strict_types=True)
        return found

    try:
        form = packed(value)
        if has_scalars:
            _check_keys(value)
        return form, tuple(arrays)
    except UnicodeEncodeError as error:
        raise TypeError(
            f"text with {error.object[error.start]!r}, half a surrogate pair, cannot travel between tasks; wanted text "
            "that UTF-8 can represent, such as text.encode(errors='backslashreplace').decode()"
        ) from None


def _check_keys(value: Any) -> None:
    """Raise TypeError if a dict in a value has a key that cannot travel, such as a number of numpy."""
    if isinstance(value, dict):
        for key in value:
            if not _travels_as_key(key):
                raise TypeError(
                    f"a {type(key).__name__} cannot travel between tasks as the key {key!r:.40}; wanted text, bytes, "
                    "numbers or tuples of them, such as int(key)"
                )
        for item in value.values():
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def _travels_as_key(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(map(_travels_as_key, key))
    return not isinstance(key, np.generic) and not is_tensor(key)


def unpack(form: bytes, arrays: Sequence[Array], special: Callable[[int, Any], Any] | None = None) -> Any:
    """The value again, with copies of the arrays. `special` returns the leaf of a code and its content. Raises
    ProtocolError for a form that does not fit the arrays."""

    def back(kind: int, data: bytes) -> Any:
        if kind == TUPLE:
            return tuple(unpacked(data))
        if special is not None and kind > TUPLE:
            return special(kind, unpacked(data))
        place = msgpack.unpackb(data) if kind == ARRAY else None
        if not isinstance(place, int) or not 0 <= place < len(arrays):
            raise ProtocolError(f"a value names an array that is not among its {len(arrays)} arrays")
        return arrays[place].copy()

    def unpacked(data: bytes) -> Any:
        return msgpack.unpackb(data, ext_hook=back, strict_map_key=False)

    try:
        return unpacked(form)
    except ProtocolError:
        raise
    except Exception as error:
        if special is not None:
            raise
        raise ProtocolError(f"the form of a value cannot be read: {type(error).__name__}") from None
