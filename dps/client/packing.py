"""Compresses a variable's gradient as a whole, then splits the result into parts. Loads numba.

So the bits do not depend on the number of parts and on their ps. Arrays are flat. `dps.variables.packed` describes the
bytes of each form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.kernels import compress as kernels
from dps.kernels.compress import BLOCK
from dps.transport.wire import Array
from dps.variables.packed import Packed, PackedGradient, first_element
from dps.variables.plan import Part


def cast(form: str, flat: Array, parts: tuple[Part, ...]) -> PackedGradient:
    """As float16 or bfloat16. NaN and infinite values stay so."""
    bits = np.empty(len(flat), np.uint16)
    (kernels.to_float16 if form == "float16" else kernels.to_bfloat16)(bits, flat)
    return PackedGradient({p.index: Packed([form], bits[_stretch(p)].view(np.uint8)) for p in parts})


def quantised(flat: Array, parts: tuple[Part, ...], rest: bool) -> PackedGradient | None:
    """As int8 with a scale for each block. `rest`: subtract the result from `flat`. None unless all values are
    finite."""
    blocks = -(-len(flat) // BLOCK)
    data = np.empty(blocks * flat.itemsize + len(flat), np.uint8)
    scales, q = data[: blocks * flat.itemsize].view(flat.dtype), data[blocks * flat.itemsize :].view(np.int8)
    if not kernels.quantise(q, scales, flat, _words(flat), rest):
        return None
    if len(parts) == 1:
        return PackedGradient({parts[0].index: Packed(["int8"], data)})
    found: dict[int, Packed] = {}
    for part in parts:
        stretch = _stretch(part)
        own = scales[stretch.start // BLOCK : -(-stretch.stop // BLOCK) if part.size else 0]
        found[part.index] = Packed(["int8"], np.concatenate([own.view(np.uint8), q[stretch].view(np.uint8)]))
    return PackedGradient(found)


def largest(flat: Array, parts: tuple[Part, ...], k: int) -> PackedGradient | None:
    """The k largest magnitudes; they become 0 in `flat`. None unless all values are finite."""
    words, bins = _words(flat), np.zeros(kernels.BINS, np.int64)
    kernels.count_magnitudes(bins, words)
    if bins[kernels.NOT_FINITE[flat.itemsize] :].any():
        return None
    least, above = _threshold(bins, words, k)
    positions, values = np.empty(k, np.int64), np.empty(k, flat.dtype)
    kernels.take_largest(positions, values, flat, words, least, k - above)
    found: dict[int, Packed] = {}
    for part in parts:
        first, inside = first_element(part), _inside(part, positions)
        places = (positions[inside] - first).astype(kernels.place_dtype(part.size))
        found[part.index] = Packed(["top_k"], np.concatenate([places.view(np.uint8), values[inside].view(np.uint8)]))
    return PackedGradient(found)


def some(flat: Array, parts: tuple[Part, ...], k: int, key: int) -> PackedGradient | None:
    """k random elements; they become 0 in `flat`. None unless all values are finite."""
    if not np.isfinite(flat).all():
        return None
    positions, values = kernels.random_positions(key, len(flat), k, 0, len(flat)), np.empty(k, flat.dtype)
    kernels.take(values, flat, positions)
    form = ["random_k", key, len(flat), k]
    return PackedGradient({p.index: Packed(form, values[_inside(p, positions)].view(np.uint8)) for p in parts})


def _threshold(bins: Array, words: Array, k: int) -> tuple[np.unsignedinteger[Any], int]:
    """The k-th largest magnitude, as bits, and how many numbers are larger."""
    at_least = np.cumsum(bins[::-1])  # how many numbers are in the largest bin, in the largest two, ...
    place = int(np.searchsorted(at_least, k))
    kind = kernels.BINS - 1 - place
    above = int(at_least[place] - bins[kind])
    found = kernels.of_magnitude(words, kind, int(bins[kind]))
    if found.min() == found.max():  # zeros, most often; partition is slow where many are equal
        return found[0], above
    rank = len(found) - (k - above)
    found = np.partition(found, rank)
    return found[rank], above + int(np.count_nonzero(found[rank:] > found[rank]))


def _stretch(part: Part) -> slice:
    first = first_element(part)
    return slice(first, first + part.size)


def _inside(part: Part, positions: Array) -> slice:
    """The slice of the rising positions that are in a part."""
    stretch = _stretch(part)
    start, stop = np.searchsorted(positions, (stretch.start, stretch.stop))
    return slice(int(start), int(stop))


def _words(flat: Array) -> Array:
    """The bits of the numbers."""
    words: Array = flat.view(np.uint32 if flat.itemsize == 4 else np.uint64)
    return words
