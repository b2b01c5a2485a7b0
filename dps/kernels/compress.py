"""Kernels that pack gradients and values into fewer bytes, and unpack them.

All arrays are flat and C-contiguous; `a` and `out` are float32 or float64. Kernels work element by element, except for
a block's largest, a count and a sum. These do not depend on the order, so the bits do not depend on the machine. Packed
bytes are little-endian.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels.jit import compiled

Array: TypeAlias = npt.NDArray[Any]

BLOCK = 1024
"""Elements that share a scale. At 1,024 the scales are 0.4 % of the bytes, and a large number affects few others."""
BINS = 2048
"""Bins of magnitudes in `count_magnitudes`: the first eleven bits after the sign."""
NOT_FINITE = {4: 2040, 8: 2047}
"""The first bin of infinite or NaN numbers, by item size."""


# -- casts ----------------------------------------------------------------------------------------------------


@compiled
def to_float16(bits: Array, a: Array) -> None:
    """The IEEE half of each number as uint16, rounded to nearest, ties to even. Finite numbers that are too large
    become 65504. Float64 is rounded to float32 first.

    Below 2**-14, where halves are evenly spaced, adding 0.5 makes the float32 adder round to just that spacing.
    """
    one = np.empty(1, np.float32)
    word = one.view(np.uint32)
    for i in range(a.size):
        one[0] = a[i]
        sign = (word[0] >> np.uint32(16)) & np.uint32(0x8000)
        size = word[0] & np.uint32(0x7FFFFFFF)
        odd = (size >> np.uint32(13)) & np.uint32(1)
        normal = (size + np.uint32(0xFFF) + odd - np.uint32(112 << 23)) >> np.uint32(13)
        word[0] = size
        one[0] += np.float32(0.5)
        small = word[0] - np.uint32(0x3F000000)
        half = small if size < np.uint32(0x38800000) else normal
        half = np.uint32(0x7BFF) if size >= np.uint32(0x477FF000) else half
        half = np.uint32(0x7C00) if abs(a[i]) == np.inf else half
        half = np.uint32(0x7E00) if size > np.uint32(0x7F800000) else half
        bits[i] = sign | half


@compiled
def from_float16(out: Array, bits: Array) -> None:
    """The exact values of IEEE halves."""
    one = np.empty(1, np.float32)
    word = one.view(np.uint32)
    for i in range(bits.size):
        half = np.uint32(bits[i])
        sign = (half & np.uint32(0x8000)) << np.uint32(16)
        size = (half & np.uint32(0x7FFF)) << np.uint32(13)
        word[0] = size + np.uint32(112 << 23)
        if size >= np.uint32(0x0F800000):  # infinite or NaN
            word[0] = size | np.uint32(0x7F800000)
        elif size < np.uint32(0x00800000):  # a multiple of 2**-24
            one[0] = np.float32(size >> np.uint32(13)) * np.float32(2.0**-24)
        word[0] |= sign
        out[i] = one[0]


@compiled
def to_bfloat16(bits: Array, a: Array) -> None:
    """The upper half of each float32 as uint16, rounded to nearest, ties to even. Finite numbers that are too large
    become the largest, 3.39e38. Float64 is rounded to float32 first."""
    one = np.empty(1, np.float32)
    word = one.view(np.uint32)
    for i in range(a.size):
        one[0] = a[i]
        whole = word[0]
        size = whole & np.uint32(0x7FFFFFFF)
        half = (whole + np.uint32(0x7FFF) + ((whole >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        largest = ((whole >> np.uint32(16)) & np.uint32(0x8000)) | np.uint32(0x7F7F)
        too_large = (size >= np.uint32(0x7F7F8000)) & (size <= np.uint32(0x7F800000)) & (abs(a[i]) != np.inf)
        half = largest if too_large else half
        half = (whole >> np.uint32(16)) | np.uint32(0x40) if size > np.uint32(0x7F800000) else half
        bits[i] = half


@compiled
def from_bfloat16(out: Array, bits: Array) -> None:
    """The exact values of upper halves."""
    one = np.empty(1, np.float32)
    word = one.view(np.uint32)
    for i in range(bits.size):
        word[0] = np.uint32(bits[i]) << np.uint32(16)
        out[i] = one[0]


# -- eight bits -----------------------------------------------------------------------------------------------


@compiled
def quantise(q: Array, scales: Array, a: Array, words: Array, rest: bool) -> bool:
    """q = a / scale to nearest, from -127 to 127, with a scale for each BLOCK: its largest magnitude / 127.

    With `rest`, `a` becomes the rounding error a - q * scale. `words` are the bits of `a` as integers, in which the
    largest is found faster. Returns False if a number is infinite or NaN; q, scales and a are then invalid. The scales
    have the dtype of `a`.
    """
    magic = a.dtype.type(6755399441055744.0 if a.itemsize == 8 else 12582912.0)  # adding it rounds to whole numbers
    top = a.dtype.type(127)
    for b in range(scales.size):
        stretch = slice(b * BLOCK, min((b + 1) * BLOCK, a.size))
        largest = _largest(words[stretch], a)
        scale = largest / top
        if scale * top - scale * top != 0:
            return False
        scales[b] = scale
        divisor = scale if scale > 0 else a.dtype.type(1)  # all are 0, or too small to be distinguished from 0
        block, whole = a[stretch], q[stretch]
        for i in range(block.size):
            x = block[i] / divisor
            x = top if x > top else x  # a very small scale has a large rounding error
            x = -top if x < -top else x
            x = (x + magic) - magic
            whole[i] = np.int8(np.int32(x))
            if rest:
                block[i] -= x * scale
    return True


@compiled
def _largest(words: Array, like: Array) -> Any:
    """The largest magnitude of the numbers with these bits, as a number of the dtype of `like`; NaN is the largest."""
    mask = ~(words.dtype.type(1) << words.dtype.type(8 * words.itemsize - 1))
    found = np.zeros(1, words.dtype)
    largest = found[0]
    for i in range(words.size):
        size = words[i] & mask
        largest = size if size > largest else largest
    found[0] = largest
    return found.view(like.dtype)[0]


@compiled
def dequantise(out: Array, q: Array, scales: Array, first: int) -> None:
    """out = q * scale, where the first element is element `first` of its variable, in the block of scales[0]."""
    start = 0
    for b in range(scales.size):
        stop = min((first // BLOCK + b + 1) * BLOCK - first, q.size)
        block, whole, scale = out[start:stop], q[start:stop], scales[b]
        for i in range(block.size):
            block[i] = out.dtype.type(whole[i]) * scale
        start = stop


# -- a few elements -------------------------------------------------------------------------------------------


@compiled
def count_magnitudes(bins: Array, words: Array) -> None:
    """Count the numbers with these bits (uint32 or uint64) in each bin of magnitudes."""
    shift = 20 if words.itemsize == 4 else 52
    for i in range(words.size):
        bins[(words[i] >> shift) & 0x7FF] += 1


@compiled
def of_magnitude(words: Array, kind: int, count: int) -> Array:
    """The magnitudes, as bits, of the `count` numbers in bin `kind`."""
    shift = 20 if words.itemsize == 4 else 52
    mask = ~(words.dtype.type(1) << words.dtype.type(8 * words.itemsize - 1))
    found = np.empty(count, words.dtype)
    n = 0
    for i in range(words.size):
        if (words[i] >> shift) & 0x7FF == kind:
            found[n] = words[i] & mask
            n += 1
    return found


@compiled
def take_largest(positions: Array, values: Array, a: Array, words: Array, least: Any, equal: int) -> None:
    """Move the numbers above the magnitude `least`, and the first `equal` ones equal to it, out of `a`; zeros remain.

    `words` are the bits of `a`. The positions are in rising order.
    """
    mask = ~(words.dtype.type(1) << words.dtype.type(8 * words.itemsize - 1))
    n = 0
    for i in range(words.size):
        size = words[i] & mask
        if size >= least:
            if size == least:
                if equal == 0:
                    continue
                equal -= 1
            positions[n] = i
            values[n] = a[i]
            a[i] = 0
            n += 1


@compiled
def take(values: Array, a: Array, positions: Array) -> None:
    """Move the numbers at these positions out of `a`; zeros remain."""
    for i in range(positions.size):
        values[i] = a[positions[i]]
        a[positions[i]] = 0


@compiled
def put(out: Array, positions: Array, values: Array) -> None:
    """out = zeros, with these values at these positions. The positions were checked before."""
    out[:] = 0
    for i in range(positions.size):
        out[positions[i]] = values[i]


@compiled
def rise_below(positions: Array, size: int) -> bool:
    """Whether each position is above the one before it, and the last below `size`."""
    for i in range(1, positions.size):
        if positions[i] <= positions[i - 1]:
            return False
    return positions.size == 0 or positions[positions.size - 1] < size


@compiled
def _mixed(x: Any) -> Any:
    """Mix the bits of a 64-bit number, so that neighbours get unrelated results: the finaliser of SplitMix64.

    Steele, Lea and Flood: Fast Splittable Pseudorandom Number Generators, 2014.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def random_positions(key: int, n: int, k: int, start: int, stop: int) -> Array:
    """Those of k random positions among n elements that are from `start` to `stop`, minus `start`; in rising order.

    The n elements are divided into k even ranges, of which the first n mod k have one element more, and one element of
    each is drawn. So each has about the same chance, none is drawn twice, and any range can be drawn separately.
    1 <= k <= n, 0 <= start <= stop <= n; `key` from 0 to below 2**63.
    """
    width, longer = n // k, n % k
    edge = longer * (width + 1)
    at = start // (width + 1) if start < edge else longer + (start - edge) // width
    found = np.empty(min(k - at, stop - start) if stop > start else 0, np.int64)
    count = 0
    while at < k and stop > start:
        first = at * width + min(at, longer)
        if first >= stop:
            break
        size = width + 1 if at < longer else width
        step = np.uint64(at + 1) * np.uint64(0x9E3779B97F4A7C15)
        place = first + np.int64(_mixed(np.uint64(key) + step) % np.uint64(size)) - start
        if 0 <= place < stop - start:
            found[count] = place
            count += 1
        at += 1
    return found[:count]


def place_dtype(size: int) -> np.dtype[Any]:
    """The wire dtype of positions within a part of `size` elements."""
    return np.dtype("<u4" if size <= 1 << 32 else "<u8")
