"""Decodes compressed gradients into arrays. It checks all fields before it allocates anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dps.errors import ProtocolError
from dps.kernels import compress as kernels
from dps.kernels.compress import BLOCK, place_dtype
from dps.transport.wire import Array
from dps.variables.packed import first_element
from dps.variables.plan import Part

MOST_ELEMENTS = 1 << 48


def unpack(form: list[Any], part: Part, dtype: np.dtype[Any], data: Array) -> Array:
    """A part's gradient in new memory, with the part's shape and dtype (float32 or float64). `form` and `data` are
    described in `dps.variables.packed`. Raises ProtocolError if they do not fit the part.
    """
    restore = _FORMS.get(form[0]) if form and isinstance(form[0], str) else None
    if restore is None:
        known = ", ".join(_FORMS)
        raise ProtocolError(f"the gradient of {part.name} is packed as {form!r:.80}; this ps knows {known}")
    if data.dtype != np.uint8 or data.ndim != 1:
        raise ProtocolError(f"the gradient of {part.name} is packed, but {data.dtype} {data.shape}; wanted bytes (n,)")
    return restore(form, part, dtype, data).reshape(part.shape)


def _halves(form: list[Any], part: Part, dtype: np.dtype[Any], data: Array) -> Array:
    _check(form, 1, part, data.nbytes, 2 * part.size)
    out = np.empty(part.size, dtype)
    restore = kernels.from_float16 if form[0] == "float16" else kernels.from_bfloat16
    restore(out, data.copy().view(np.uint16))  # kernels exist for memory that is aligned and writable
    return out


def _quantised(form: list[Any], part: Part, dtype: np.dtype[Any], data: Array) -> Array:
    first = first_element(part)
    blocks = -(-(first + part.size) // BLOCK) - first // BLOCK if part.size else 0
    scales_nbytes = blocks * dtype.itemsize
    _check(form, 1, part, data.nbytes, scales_nbytes + part.size)
    out = np.empty(part.size, dtype)
    private = data.copy()
    scales, q = private[:scales_nbytes].view(dtype), private[scales_nbytes:].view(np.int8)
    kernels.dequantise(out, q, scales, first)
    return out


def _largest(form: list[Any], part: Part, dtype: np.dtype[Any], data: Array) -> Array:
    place = place_dtype(part.size)
    count = data.nbytes // (place.itemsize + dtype.itemsize)
    _check(form, 1, part, data.nbytes, min(count, part.size) * (place.itemsize + dtype.itemsize))
    positions = data[: count * place.itemsize].copy().view(place)
    values = data[count * place.itemsize :].copy().view(dtype)
    if not kernels.rise_below(positions, part.size):
        raise ProtocolError(f"the gradient of {part.name}: positions have to rise and be below {part.size}")
    out = np.empty(part.size, dtype)
    kernels.put(out, positions, values)
    return out


def _some(form: list[Any], part: Part, dtype: np.dtype[Any], data: Array) -> Array:
    first = first_element(part)
    if len(form) != 4 or not all(type(number) is int for number in form[1:]):
        raise ProtocolError(f"the gradient of {part.name} is packed as {form!r:.80}; wanted random_k, key, n, k")
    _, key, n, k = form
    if not (0 <= key < 1 << 63 and 1 <= k <= n < MOST_ELEMENTS and first + part.size <= n):
        raise ProtocolError(f"the gradient of {part.name}: {k} of {n} elements, key {key}, cannot be")
    most = min(k, part.size + 1) * dtype.itemsize
    if data.nbytes > most:
        raise ProtocolError(f"the gradient of {part.name} has {data.nbytes} bytes packed; wanted at most {most}")
    positions = kernels.random_positions(key, n, k, first, first + part.size)
    _check(form, 4, part, data.nbytes, len(positions) * dtype.itemsize)
    out = np.empty(part.size, dtype)
    kernels.put(out, positions, data.copy().view(dtype))
    return out


def _check(form: list[Any], length: int, part: Part, got: int, wanted: int) -> None:
    if len(form) != length:
        raise ProtocolError(f"the gradient of {part.name} is packed as {form!r:.80}; wanted {length} values")
    if got != wanted:
        raise ProtocolError(f"the gradient of {part.name} has {got} bytes packed as {form[0]}; wanted {wanted}")


_FORMS: dict[str, Callable[[list[Any], Part, np.dtype[Any], Array], Array]] = {
    "float16": _halves, "bfloat16": _halves, "int8": _quantised, "top_k": _largest, "random_k": _some,
}  # fmt: skip
