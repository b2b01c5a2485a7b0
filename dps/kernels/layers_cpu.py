"""The layers' arithmetic on CPU, with numpy and its BLAS. `dps.kernels.layers_cuda` has the same functions.

All arrays are C-contiguous and of one dtype, float32 or float64; row numbers and labels are int64. The first arguments
are written, the others are read, and written arrays overlap no others. Nothing is checked here: `dps.layers` does that,
also for labels and row numbers. `stream` is ignored; it exists because `layers_cuda` has it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Rows: TypeAlias = npt.NDArray[np.int64]

ACTIVATIONS = ("identity", "relu", "tanh", "sigmoid")
"""The activations of a dense layer. The derivative of each can be computed from its result alone."""


def dense_forward(out: Array, x: Array, w: Array, b: Array, activation: str, stream: Any = None) -> None:
    """out = activation(x @ w + b), with shapes (batch, n_out), (batch, n_in), (n_in, n_out), (n_out,)."""
    np.matmul(x, w, out=out)
    out += b
    activate(out, out, activation)


def activate(out: Array, x: Array, activation: str, stream: Any = None) -> None:
    """out = activation(x), of any shape; `out` may be `x`. The identity copies."""
    if activation == "relu":
        np.maximum(x, 0, out=out)
    elif activation == "tanh":
        np.tanh(x, out=out)
    elif activation == "sigmoid":
        with np.errstate(over="ignore"):  # exp(-x) is inf for a very small x, and the sigmoid 0
            np.exp(np.negative(x, out=out), out=out)
        out += 1
        np.reciprocal(out, out=out)
    elif out is not x:
        out[...] = x


def activate_backward(dx: Array, dout: Array, out: Array, activation: str, stream: Any = None) -> None:
    """dx = dout * activation'(x), from the result `out` of `activate`, of any shape; `dx` may be `dout`."""
    if activation == "relu":
        np.multiply(dout, out > 0, out=dx)
    elif activation == "tanh":
        np.multiply(dout, 1 - out * out, out=dx)
    elif activation == "sigmoid":
        np.multiply(dout, out * (1 - out), out=dx)
    elif dx is not dout:
        dx[...] = dout


def dense_backward(
    dx: Array | None, dw: Array, db: Array, dout: Array, out: Array, x: Array, w: Array, activation: str,
    stream: Any = None,
) -> None:  # fmt: skip
    """The gradients of `dense_forward` by x, w and b, from `dout`, the gradient by its result `out`.

    dz = dout * activation'(out); db = sum of dz over the batch; dw = x.T @ dz; dx = dz @ w.T, left out when dx is
    None. `dout` is overwritten with dz.
    """
    activate_backward(dout, dout, out, activation)
    np.sum(dout, axis=0, out=db)
    np.matmul(x.T, dout, out=dw)
    if dx is not None:
        np.matmul(dout, w.T, out=dx)


def softmax_cross_entropy(loss: Array, dscores: Array, scores: Array, labels: Rows, stream: Any = None) -> None:
    """loss[i] = log(sum(exp(scores[i]))) - scores[i, labels[i]], and the gradient of the mean of `loss` by `scores`.

    Shapes (batch,), (batch, classes), (batch, classes), (batch,). The largest score of a row is subtracted first, so
    that nothing overflows.
    """
    right = np.arange(len(labels)), labels
    np.subtract(scores, scores.max(axis=1, keepdims=True), out=dscores)
    np.negative(dscores[right], out=loss)
    np.exp(dscores, out=dscores)
    total = dscores.sum(axis=1, keepdims=True)
    loss += np.log(total[:, 0])
    dscores /= total
    dscores[right] -= 1
    dscores /= scores.dtype.type(max(len(labels), 1))


def embedding_gather(out: Array, table: Array, rows: Rows, stream: Any = None) -> None:
    """out[i] = table[rows[i]], with shapes (n, dim), (rows, dim), (n,)."""
    np.take(table, rows, axis=0, out=out, mode="clip")  # in range already; mode "raise" would copy `out`


def embedding_scatter_add(
    dtable: Array, rows: Rows, order: Rows, starts: Rows, dout: Array, stream: Any = None
) -> None:
    """dtable[rows[s]] += the sum of dout[order[i]] for i from starts[s] up to starts[s + 1].

    `dps.kernels.layers_cpu.row_order` makes `rows`, `order` and `starts` from the row numbers of a gather; `rows` are
    distinct, or have nothing to add. The order of the sums is the same in every run. Shapes (rows, dim), (d,), (n,),
    (d + 1,), (n, dim).
    """
    named = starts[:-1] < starts[1:]
    if named.any():
        dtable[rows[named]] += np.add.reduceat(dout[order], starts[:-1][named], axis=0)


def mean(out: Array, x: Array, stream: Any = None) -> None:
    """out[0] = the mean of x, with shapes (1,), (n,); nan when x is empty."""
    out[0] = x.sum() / x.dtype.type(x.size) if x.size else np.nan


def zero(out: Array, stream: Any = None) -> None:
    """out = 0, of any shape."""
    out[...] = 0


def add(out: Array, a: Array, b: Array, stream: Any = None) -> None:
    """out = a + b, of one shape."""
    np.add(a, b, out=out)


def multiply(out: Array, a: Array, b: Array, stream: Any = None) -> None:
    """out = a * b, element by element, of one shape."""
    np.multiply(a, b, out=out)


def put_columns(out: Array, x: Array, start: int, stream: Any = None) -> None:
    """out[:, start : start + n] = x, with shapes (rows, columns), (rows, n)."""
    out[:, start : start + x.shape[1]] = x


def take_columns(out: Array, x: Array, start: int, stream: Any = None) -> None:
    """out = x[:, start : start + n], with shapes (rows, n), (rows, columns)."""
    out[...] = x[:, start : start + out.shape[1]]


def row_order(rows: Rows) -> tuple[Rows, Rows, Rows]:
    """The distinct row numbers, sorted; the positions of each in order of occurrence; where these positions begin.

    Shapes (d,), (n,), (d + 1,), int64. The positions of distinct[s] are order[starts[s]:starts[s + 1]].
    """
    order = np.argsort(rows, kind="stable")
    in_order = rows[order]
    begins = np.flatnonzero(np.diff(in_order, prepend=in_order[:1] - 1))
    starts = np.append(begins, len(rows))
    return in_order[begins], order, starts
