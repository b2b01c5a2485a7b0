"""Adagrad with one accumulator for each row, on CPU: a table of (rows, dim) has `rows` numbers beside it.

As the kernels of `dps.kernels.cpu`, but for the accumulator of shape (rows,); dense arrays, too, are of shape
(rows, dim). `dps.kernels.cuda_rowwise` has the same for CUDA, with the same bits.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels.jit import compiled
from dps.kernels.rows import AHEAD, prefetch, prefetch_number

Array: TypeAlias = npt.NDArray[Any]
Rows: TypeAlias = npt.NDArray[np.int64]
Scalar: TypeAlias = "np.floating[Any]"


@compiled
def sum_of_row(g: Array, i: int, zero: Scalar) -> Scalar:
    """The sum of g[i]**2 in one order: eight running sums, element j in number j % 8, then those by pairs."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zero
    dim = g.shape[1]
    whole = dim // 8 * 8
    for j in range(0, whole, 8):
        s0 += g[i, j] * g[i, j]
        s1 += g[i, j + 1] * g[i, j + 1]
        s2 += g[i, j + 2] * g[i, j + 2]
        s3 += g[i, j + 3] * g[i, j + 3]
        s4 += g[i, j + 4] * g[i, j + 4]
        s5 += g[i, j + 5] * g[i, j + 5]
        s6 += g[i, j + 6] * g[i, j + 6]
        s7 += g[i, j + 7] * g[i, j + 7]
    for j in range(whole, dim):
        s0 += g[i, j] * g[i, j]
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))


@compiled
def adagrad_rowwise(
    out: Array, w: Array, row_accumulator: Array, g: Array, lr: Scalar, epsilon: Scalar, dim: Scalar
) -> None:
    """row_accumulator += mean of g**2 over the row; out = w - lr * g / (sqrt(row_accumulator) + epsilon).

    `dim` is the length of a row as a number of the arrays' dtype. Source: Naumov et al. 2019 (DLRM).
    """
    for i in range(w.shape[0]):
        a = row_accumulator[i] + sum_of_row(g, i, lr - lr) / dim
        row_accumulator[i] = a
        root = math.sqrt(a) + epsilon
        for j in range(w.shape[1]):
            out[i, j] = w[i, j] - lr * g[i, j] / root


@compiled
def adagrad_rowwise_rows(
    w: Array, row_accumulator: Array, rows: Rows, g: Array, lr: Scalar, epsilon: Scalar, dim: Scalar
) -> None:
    """`adagrad_rowwise` on the named rows."""
    for i in range(rows.size):
        prefetch(w, rows, i)
        if i + AHEAD < rows.size:
            prefetch_number(row_accumulator, rows[i + AHEAD])
        r = rows[i]
        a = row_accumulator[r] + sum_of_row(g, i, lr - lr) / dim
        row_accumulator[r] = a
        root = math.sqrt(a) + epsilon
        for j in range(w.shape[1]):
            w[r, j] = w[r, j] - lr * g[i, j] / root
