"""Adagrad with one accumulator per row, on CPU: a table of (rows, dim) has `rows` accumulators.

These are like the kernels of `dps.kernels.cpu`, but with an accumulator of shape (rows,), and also dense arrays have
shape (rows, dim). Variables and gradients may be halves; the rest is then float32. `dps.kernels.cuda_rowwise` is the
CUDA version, with the same bits, but without halves.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels.elements import entry, put_entry
from dps.kernels.jit import compiled
from dps.kernels.rows import prefetch
from dps.kernels.vectors import halved, lanes_of, load, store, zeros

Array: TypeAlias = npt.NDArray[Any]
Rows: TypeAlias = npt.NDArray[np.int64]
Scalar: TypeAlias = "np.floating[Any]"


@compiled
def adagrad_rowwise(
    out: Array, w: Array, row_accumulator: Array, g: Array, lr: Scalar, epsilon: Scalar, dim: Scalar
) -> None:
    """row_accumulator += mean of g**2 over the row; out = w - lr * g / (sqrt(row_accumulator) + epsilon).

    `dim` is the length of a row as a number of the arrays' dtype. Squares are added in as many running sums as a vector
    has lanes, element j in sum j % lanes; then these sums are added by halving; then the rest of the row, one by one.
    Source: Naumov et al. 2019 (DLRM).
    """
    n, lanes = w.shape[1], lanes_of(w)
    whole = n // lanes * lanes
    flat_out, flat_w, flat_g = out.reshape(out.size), w.reshape(w.size), g.reshape(g.size)
    for i in range(w.shape[0]):
        sums = zeros(flat_g)
        for j in range(i * n, i * n + whole, lanes):
            x = load(flat_g, j)
            sums = sums + x * x
        square = halved(sums)
        for j in range(whole, n):
            square += entry(g, i, j) * entry(g, i, j)
        a = row_accumulator[i] + square / dim
        row_accumulator[i] = a
        root = math.sqrt(a) + epsilon
        for j in range(i * n, i * n + whole, lanes):
            store(flat_out, j, load(flat_w, j) - lr * load(flat_g, j) / root)
        for j in range(whole, n):
            put_entry(out, i, j, entry(w, i, j) - lr * entry(g, i, j) / root)


@compiled
def adagrad_rowwise_rows(
    w: Array, row_accumulator: Array, rows: Rows, g: Array, lr: Scalar, epsilon: Scalar, dim: Scalar
) -> None:
    """`adagrad_rowwise` on the named rows. Shares no code, because functions with array arguments were half as fast."""
    n, lanes = w.shape[1], lanes_of(w)
    whole = n // lanes * lanes
    flat_w, flat_g = w.reshape(w.size), g.reshape(g.size)
    for i in range(rows.size):
        prefetch(w, rows, i)
        sums = zeros(flat_g)
        for j in range(i * n, i * n + whole, lanes):
            x = load(flat_g, j)
            sums = sums + x * x
        square = halved(sums)
        for j in range(whole, n):
            square += entry(g, i, j) * entry(g, i, j)
        r = rows[i]
        a = row_accumulator[r] + square / dim
        row_accumulator[r] = a
        root = math.sqrt(a) + epsilon
        ahead = (r - i) * n
        for j in range(i * n, i * n + whole, lanes):
            store(flat_w, ahead + j, load(flat_w, ahead + j) - lr * load(flat_g, j) / root)
        for j in range(whole, n):
            put_entry(w, r, j, entry(w, r, j) - lr * entry(g, i, j) / root)
