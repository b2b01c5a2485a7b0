"""The layers' arithmetic on CUDA. `dps.kernels.layers_cpu` has the same functions and documents them.

Arrays are those of `dps.kernels.device`. Every call starts its kernels on `stream`, in order, and does not wait; None
is the default stream. The order of sums is the same in every run, because there are no atomic operations.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, TypeAlias

import numba
import numpy as np

from dps.kernels.device import cuda, gpu_function, gpu_kernel, launch, simulated
from dps.kernels.layers_product import CODES, activations, product

Array: TypeAlias = Any


def _name(array: Array) -> str:
    return str(np.dtype(array.dtype).name)


# ---- dense layers ----


def matmul_nt(out: Array, a: Array, b: Array, stream: Any = None) -> None:
    """out = a @ b.T, with shapes (m, n), (m, k), (n, k)."""
    product("nt", out, a.shape[1])(out, a, b, None, 0, stream)


def matmul_tn(out: Array, a: Array, b: Array, stream: Any = None) -> None:
    """out = a.T @ b, with shapes (m, n), (k, m), (k, n)."""
    product("tn", out, a.shape[0])(out, a, b, None, 0, stream)


def dense_forward(out: Array, x: Array, w: Array, b: Array, activation: str, stream: Any = None) -> None:
    """out = activation(x @ w + b) in one kernel, with shapes (batch, n_out), (batch, n_in), (n_in, n_out), (n_out,)."""
    product("nn", out, x.shape[1])(out, x, w, b, CODES[activation], stream)


def dense_backward(
    dx: Array | None, dw: Array, db: Array, dout: Array, out: Array, x: Array, w: Array, activation: str,
    stream: Any = None,
) -> None:  # fmt: skip
    """The gradients of `dense_forward` by x (left out when dx is None), w and b. `dout` is overwritten.

    One pass multiplies by the derivative and sums for `db`; two products follow.
    """
    _columns(db, dout, out, CODES[activation], stream)
    matmul_tn(dw, x, dout, stream)
    if dx is not None:
        matmul_nt(dx, dout, w, stream)


def _columns(total: Array, dout: Array, out: Array, activation: int, stream: Any) -> None:
    columns, lanes = (3, 2) if simulated() else (8, 32)
    if total.size:
        kernel, threads = _column_kernel(columns, lanes, _name(dout)), columns * lanes
        nbytes = threads * dout.dtype.itemsize
        launch(kernel, -(-total.size // columns), threads, stream, total, dout, out, activation, nbytes=nbytes)


@cache
def _column_kernel(columns: int, lanes: int, dtype: str) -> Any:
    """dout *= activation'(out); total = the sum of each column of `dout`.

    A block has `columns` columns and processes their rows, `lanes` at a time. 8 columns of float32 are the 32 bytes of
    one memory access. There are so few because a layer has few columns, and many blocks are needed.
    """
    kind, zero = numba.from_dtype(np.dtype(dtype)), np.dtype(dtype).type(0)
    _, derived = activations(dtype)

    @gpu_kernel
    def column_sums(total: Array, dout: Array, out: Array, activation: int) -> None:
        partial = cuda.shared.array(0, kind)  # (lanes, columns)
        lane, offset = cuda.threadIdx.x // columns, cuda.threadIdx.x % columns
        column = cuda.blockIdx.x * columns + offset
        rows, width = dout.shape
        value = zero
        if column < width:
            for row in range(lane, rows, lanes):
                d = dout[row, column]
                if activation:
                    d = derived(d, out[row, column], activation)
                    dout[row, column] = d
                value += d
        partial[cuda.threadIdx.x] = value
        cuda.syncthreads()
        if lane == 0 and column < width:
            for other in range(1, lanes):
                value += partial[other * columns + offset]
            total[column] = value

    return column_sums


# ---- elements ----


def activate(out: Array, x: Array, activation: str, stream: Any = None) -> None:
    """out = activation(x), of any shape, C-contiguous."""
    _each(_activation_kernels(_name(x))[0], out.size, stream, _flat(out), _flat(x), CODES[activation])


def activate_backward(dx: Array, dout: Array, out: Array, activation: str, stream: Any = None) -> None:
    """dx = dout * activation'(x), from the result `out` of `activate`, of any shape, C-contiguous."""
    kernel, code = _activation_kernels(_name(dout))[1], CODES[activation]
    _each(kernel, dx.size, stream, _flat(dx), _flat(dout), _flat(out), code)


@cache
def _activation_kernels(dtype: str) -> tuple[Any, Any]:
    activated, derived = activations(dtype)

    @gpu_kernel
    def forward(out: Array, x: Array, activation: int) -> None:
        n = cuda.grid(1)
        if n < out.size:
            out[n] = activated(x[n], activation)

    @gpu_kernel
    def backward(dx: Array, dout: Array, out: Array, activation: int) -> None:
        n = cuda.grid(1)
        if n < dx.size:
            dx[n] = derived(dout[n], out[n], activation)

    return forward, backward


def add(out: Array, a: Array, b: Array, stream: Any = None) -> None:
    """out = a + b, of one shape, C-contiguous."""
    _each(_add, out.size, stream, _flat(out), _flat(a), _flat(b))


@gpu_kernel
def _add(out: Array, a: Array, b: Array) -> None:
    n = cuda.grid(1)
    if n < out.size:
        out[n] = a[n] + b[n]


def multiply(out: Array, a: Array, b: Array, stream: Any = None) -> None:
    """out = a * b, element by element, of one shape, C-contiguous."""
    _each(_multiply, out.size, stream, _flat(out), _flat(a), _flat(b))


@gpu_kernel
def _multiply(out: Array, a: Array, b: Array) -> None:
    n = cuda.grid(1)
    if n < out.size:
        out[n] = a[n] * b[n]


def put_columns(out: Array, x: Array, start: int, stream: Any = None) -> None:
    """out[:, start : start + n] = x, with shapes (rows, columns), (rows, n)."""
    _each(_put_columns, x.size, stream, out, x, start)


@gpu_kernel
def _put_columns(out: Array, x: Array, start: int) -> None:
    n = cuda.grid(1)
    columns = x.shape[1]
    if n < x.size:
        out[n // columns, start + n % columns] = x[n // columns, n % columns]


def take_columns(out: Array, x: Array, start: int, stream: Any = None) -> None:
    """out = x[:, start : start + n], with shapes (rows, n), (rows, columns)."""
    _each(_take_columns, out.size, stream, out, x, start)


@gpu_kernel
def _take_columns(out: Array, x: Array, start: int) -> None:
    n = cuda.grid(1)
    columns = out.shape[1]
    if n < out.size:
        out[n // columns, n % columns] = x[n // columns, start + n % columns]


def _flat(array: Array) -> Array:
    return array.reshape(array.size)


# ---- loss ----


def softmax_cross_entropy(loss: Array, dscores: Array, scores: Array, labels: Array, stream: Any = None) -> None:
    """loss[i] = log(sum(exp(scores[i]))) - scores[i, labels[i]], and the gradient of the mean of `loss` by `scores`.

    Shapes (batch,), (batch, classes), (batch, classes), (batch,). A block for each row.
    """
    batch, classes = scores.shape
    threads = 4 if simulated() else 32 if classes <= 64 else 256
    if batch:
        kernel, nbytes = _softmax_kernel(threads, _name(scores)), threads * scores.dtype.itemsize
        launch(kernel, batch, threads, stream, loss, dscores, scores, labels, nbytes=nbytes)


@cache
def _softmax_kernel(threads: int, dtype: str) -> Any:
    kind, number = numba.from_dtype(np.dtype(dtype)), np.dtype(dtype).type
    zero, lowest = number(0), number(-np.inf)
    total_of, largest_of = _in_block(threads, False), _in_block(threads, True)

    @gpu_kernel
    def softmax(loss: Array, dscores: Array, scores: Array, labels: Array) -> None:
        shared = cuda.shared.array(0, kind)
        row, thread = cuda.blockIdx.x, cuda.threadIdx.x
        batch, classes = scores.shape
        largest = lowest
        for c in range(thread, classes, threads):
            largest = max(largest, scores[row, c])
        largest = largest_of(shared, largest, thread)
        total = zero
        for c in range(thread, classes, threads):
            e = math.exp(scores[row, c] - largest)
            dscores[row, c] = e
            total += e
        total = total_of(shared, total, thread)
        right = labels[row]
        for c in range(thread, classes, threads):
            p = dscores[row, c] / total
            if c == right:
                p -= number(1)
                loss[row] = math.log(total) - (scores[row, c] - largest)
            dscores[row, c] = p / number(batch)

    return softmax


def _in_block(threads: int, largest: bool) -> Any:
    """The sum, or the maximum, of one value of each thread of a block, by halving; every thread gets the result."""

    @gpu_function
    def reduced(shared: Array, value: Any, thread: int) -> Any:
        shared[thread] = value
        cuda.syncthreads()
        half = threads // 2
        while half > 0:
            if thread < half:
                if largest:
                    shared[thread] = max(shared[thread], shared[thread + half])
                else:
                    shared[thread] += shared[thread + half]
            cuda.syncthreads()
            half //= 2
        result = shared[0]
        cuda.syncthreads()  # before `shared` is used again
        return result

    return reduced


def mean(out: Array, x: Array, stream: Any = None) -> None:
    """out[0] = the mean of x, with shapes (1,), (n,); nan when x is empty."""
    threads = 4 if simulated() else 256
    launch(_mean_kernel(threads, _name(x)), 1, threads, stream, out, x, nbytes=threads * x.dtype.itemsize)


@cache
def _mean_kernel(threads: int, dtype: str) -> Any:
    kind, number = numba.from_dtype(np.dtype(dtype)), np.dtype(dtype).type
    zero, nothing = number(0), number(np.nan)
    total_of = _in_block(threads, False)

    @gpu_kernel
    def mean_of(out: Array, x: Array) -> None:
        shared = cuda.shared.array(0, kind)
        thread, value = cuda.threadIdx.x, zero
        size = x.size
        for i in range(thread, size, threads):
            value += x[i]
        value = total_of(shared, value, thread)
        if thread == 0:
            out[0] = value / number(size) if size > 0 else nothing

    return mean_of


# ---- embeddings ----


def embedding_gather(out: Array, table: Array, rows: Array, stream: Any = None) -> None:
    """out[i] = table[rows[i]], with shapes (n, dim), (rows, dim), (n,). A thread for each element."""
    _each(_gather, out.size, stream, out, table, rows)


@gpu_kernel
def _gather(out: Array, table: Array, rows: Array) -> None:
    n = cuda.grid(1)
    size, dim = out.shape
    if n < size * dim:
        i, j = n // dim, n % dim
        out[i, j] = table[rows[i], j]


def embedding_scatter_add(
    dtable: Array, rows: Array, order: Array, starts: Array, dout: Array, stream: Any = None
) -> None:
    """dtable[rows[s]] += the sum of dout[order[i]] for i from starts[s] up to starts[s + 1]; `rows` are distinct.

    Shapes (rows, dim), (d,), (n,), (d + 1,), (n, dim). One thread for each element of each distinct row adds its values
    one after the other, so there are no races, and the order of the sum is fixed.
    """
    _each(_scatter_add, rows.size * dtable.shape[1], stream, dtable, rows, order, starts, dout)


@gpu_kernel
def _scatter_add(dtable: Array, rows: Array, order: Array, starts: Array, dout: Array) -> None:
    n = cuda.grid(1)
    dim = dtable.shape[1]
    if n < rows.size * dim:
        s, j = n // dim, n % dim
        value = dtable[rows[s], j]
        for i in range(starts[s], starts[s + 1]):
            value += dout[order[i], j]
        dtable[rows[s], j] = value


def zero(out: Array, stream: Any = None) -> None:
    """out = 0, of any shape, C-contiguous."""
    _each(_zero, out.size, stream, _flat(out))


@gpu_kernel
def _zero(out: Array) -> None:
    n = cuda.grid(1)
    if n < out.size:
        out[n] = 0


def _each(kernel: Any, size: int, stream: Any, *arguments: Any) -> None:
    """Start a kernel with one thread per element."""
    threads = 8 if simulated() else 256
    if size:
        launch(kernel, -(-size // threads), threads, stream, *arguments)
