"""First values of rows of keyed tables: random numbers whose bits depend on a key, not on a position.

The generator is that of `dps.kernels.philox`. The words of block `j` of a row are those of the counter (lower half of
the key, upper half, j, 1); the last word is 0 for other variables. An element of float32 takes one word, an element of
float64 two, in their order. Numbers are made of words in groups, as there, with the same functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.kernels.jit import compiled
from dps.kernels.philox import (
    EIGHT,
    ELEVEN,
    GROUP,
    HALF,
    LOW,
    M0,
    M1,
    NORMAL,
    PAIRS,
    TRUNCATED,
    UNIFORM,
    UNIT24,
    UNIT53,
    W0,
    W1,
    D,
    F,
    U,
    normal_group32,
    normal_group64,
    truncated_group32,
)


@compiled
def fill_block(words: Any, at: Any, key: Any, block: Any, key0: Any, key1: Any) -> None:
    """The four words of a block of the row of `key`, int64, to `words`, uint32, from position `at` on. `key0`, `key1`:
    uint64 below 2**32."""
    a, b, c, d = U(key) & LOW, U(key) >> HALF, U(block), U(1)
    k0, k1 = key0, key1
    for _ in range(10):
        left, right = M0 * a, M1 * c
        a, b, c, d = (right >> HALF) ^ b ^ k0, right & LOW, (left >> HALF) ^ d ^ k1, left & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    words[at] = a
    words[at + 1] = b
    words[at + 2] = c
    words[at + 3] = d


@compiled
def fill_rows32(
    out: Any, rows: Any, keys: Any, key0: Any, key1: Any, kind: Any, base: Any, factor: Any, top: Any
) -> None:
    """Fill row `rows[i]` of `out`, float32 (n, dim), with the first values of `keys[i]`, int64 (m,): `base` + z
    `factor`, at most `top`, with z of `kind` as in `dps.kernels.philox`."""
    # More than 9 parameters: rows and keys, and the numbers of the distribution.
    dim = out.shape[1]
    words, z = np.zeros(GROUP, np.uint32), np.empty(GROUP, np.float32)
    qs, outsides, four = np.empty(GROUP, np.float32), np.empty(GROUP, np.float32), np.empty(4, np.uint32)
    total = keys.size * dim
    for start in range(0, total, GROUP):
        n = min(GROUP, total - start)
        i, j = start // dim, start % dim
        row, column = i, j
        if column & 3:
            fill_block(four, 0, keys[row], column >> 2, key0, key1)
        for at in range(n):
            if column & 3 == 0:
                fill_block(four, 0, keys[row], column >> 2, key0, key1)
            words[at] = four[column & 3]
            column += 1
            if column == dim:
                row, column = row + 1, 0
        if kind == NORMAL:
            normal_group32(z, words, qs, outsides)
        elif kind == TRUNCATED:
            truncated_group32(z, words, qs, outsides)
        else:
            for at in range(n):
                z[at] = F(np.int32(words[at] >> EIGHT)) * UNIT24
        for at in range(n):
            value = base + z[at] * factor
            out[rows[i], j] = top if value > top else value
            j += 1
            if j == dim:
                i, j = i + 1, 0


@compiled
def fill_rows64(
    out: Any, rows: Any, keys: Any, key0: Any, key1: Any, kind: Any, base: Any, factor: Any, top: Any
) -> None:
    """As `fill_rows32`, for float64."""
    # More than 9 parameters: as of fill_rows32.
    dim = out.shape[1]
    words, z, four = np.zeros(GROUP, np.uint32), np.empty(PAIRS, np.float64), np.empty(4, np.uint32)
    total = keys.size * dim
    for start in range(0, total, PAIRS):
        n = min(PAIRS, total - start)
        i, j = start // dim, start % dim
        row, column = i, j
        if column & 1:
            fill_block(four, 0, keys[row], column >> 1, key0, key1)
        for at in range(n):
            if column & 1 == 0:
                fill_block(four, 0, keys[row], column >> 1, key0, key1)
            words[at] = four[2 * (column & 1)]
            words[PAIRS + at] = four[2 * (column & 1) + 1]
            column += 1
            if column == dim:
                row, column = row + 1, 0
        if kind == UNIFORM:
            for at in range(n):
                z[at] = D(np.int64(((U(words[at]) << HALF) | U(words[PAIRS + at])) >> ELEVEN)) * UNIT53
        else:
            normal_group64(z, words, kind == TRUNCATED)
        for at in range(n):
            value = base + z[at] * factor
            out[rows[i], j] = top if value > top else value
            j += 1
            if j == dim:
                i, j = i + 1, 0
