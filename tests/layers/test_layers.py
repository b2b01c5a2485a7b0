"""The layers' kernels: both twins, against float64 numpy, finite differences and PyTorch.

Without a GPU the CUDA twin runs in numba's simulator, which raises on an index out of range.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dps.kernels import device
from dps.kernels.layers_cpu import row_order
from dps.kernels.layers_product import LARGE, SMALL, TINY_WIDE, Tile, tiled

SHAPES = [(1, 1, 1), (3, 5, 7), (17, 33, 20)]  # m, k, n: none is a multiple of a tile
TOLERANCE = {"float32": 2e-5, "float64": 1e-13}


class Twin:
    """One of the two modules, called with host arrays: those that it writes are copied back."""

    def __init__(self, name: str) -> None:
        self.kernels = importlib.import_module(f"dps.kernels.layers_{name}")
        self.on_gpu = name == "cuda"

    def put(self, array: Any) -> Any:
        if not self.on_gpu:
            return np.ascontiguousarray(array).copy()
        return device.to_device(array)

    def get(self, array: Any) -> Any:
        if not self.on_gpu:
            return array
        return device.to_host(array)

    def __call__(self, name: str, written: list[Any], *read: Any) -> list[Any]:
        """Calls the kernel; what it makes of `written`, whose contents may matter."""
        first = [None if a is None else self.put(a) for a in written]
        rest = [self.put(a) if isinstance(a, np.ndarray) else a for a in read]
        getattr(self.kernels, name)(*first, *rest)
        return [None if a is None else self.get(a) for a in first]


@pytest.fixture(params=["cpu", "cuda"])
def twin(request: pytest.FixtureRequest) -> Twin:
    return Twin(request.param)


def random(*shape: int, dtype: str = "float64", seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def rubbish(*shape: int, dtype: str = "float64") -> Any:
    """What memory holds before it is written; nothing of it may come out again."""
    return np.full(shape, 1e30, dtype)


def slope(f: Callable[[Any], float], x: Any, h: float = 1e-6) -> Any:
    """The gradient of f at x by central differences."""
    found = np.empty_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        found[i] = (f(up) - f(down)) / (2 * h)
    return found


def activated(z: Any, name: str) -> Any:
    return {
        "identity": lambda: z,
        "relu": lambda: np.where(z > 0, z, 0),
        "tanh": lambda: np.sinh(z) / np.cosh(z),
        "sigmoid": lambda: 1 / (1 + np.exp(-z)),
    }[name]()


# ---- dense layers ----


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_products_agree_with_sums_of_products_in_float64(twin: Twin, layout: str, shape: Any, dtype: str) -> None:
    m, k, n = shape
    a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=2)
    wanted = np.einsum("mk,kn->mn", a.astype(float), b.astype(float))
    if layout == "nn":
        (found,) = twin("dense_forward", [rubbish(m, n, dtype=dtype)], a, b, np.zeros(n, dtype), "identity")
    elif layout == "nt":
        outs = [rubbish(m, n, dtype=dtype), rubbish(n, k, dtype=dtype), rubbish(k, dtype=dtype), a]
        found, *_ = twin("dense_backward", outs, a, np.zeros((m, n), dtype), b.T, "identity")
    else:
        outs = [None, rubbish(m, n, dtype=dtype), rubbish(n, dtype=dtype), b]
        _, found, *_ = twin("dense_backward", outs, b, a.T, np.zeros((m, n), dtype), "identity")
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("tile", "layout", "shape"),
    [
        (SMALL, "nn", (35, 17, 33)),
        pytest.param(SMALL, "nt", (35, 17, 33), marks=pytest.mark.slow),  # a thread of Python for each of theirs
        pytest.param(SMALL, "tn", (35, 17, 33), marks=pytest.mark.slow),
        pytest.param(LARGE, "nn", (3, 9, 130), marks=pytest.mark.slow),
        (TINY_WIDE, "tn", (9, 9, 65)),
    ],
)
def test_the_tiles_that_the_other_tests_do_not_reach_cover_every_value(tile: Tile, layout: str, shape: Any) -> None:
    m, k, n = shape
    a, b = random(m, k, dtype="float32"), random(k, n, dtype="float32", seed=2)
    cuda = Twin("cuda")
    left, right = cuda.put(a.T if layout == "tn" else a), cuda.put(b.T if layout == "nt" else b)
    out = cuda.put(rubbish(m, n, dtype="float32"))
    tiled(layout, tile, "float32")(out, left, right, None, 0, None)
    np.testing.assert_allclose(cuda.get(out), np.einsum("mk,kn->mn", a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tile", [SMALL, LARGE, TINY_WIDE])
def test_the_threads_of_a_tile_share_its_loads_evenly(tile: Tile) -> None:
    assert tile.rows * tile.depth % tile.threads == 0 and tile.cols * tile.depth % tile.threads == 0
    assert tile.threads <= 1024 and 2 * sum(tile.stage_sizes) * 8 <= 48 << 10  # what every GPU gives without asking


@pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "sigmoid"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_dense_layer_adds_its_bias_and_ends_in_its_activation(twin: Twin, activation: str, dtype: str) -> None:
    x, w, b = random(3, 5, dtype=dtype), random(5, 7, dtype=dtype, seed=2), random(7, dtype=dtype, seed=3)
    wanted = activated(np.einsum("mk,kn->mn", x.astype(float), w.astype(float)) + b, activation)
    (found,) = twin("dense_forward", [rubbish(3, 7, dtype=dtype)], x, w, b, activation)
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "sigmoid"])
def test_a_dense_layers_gradients_agree_with_finite_differences(twin: Twin, activation: str) -> None:
    x, w, b, dout = random(3, 5), random(5, 7, seed=2), random(7, seed=3), random(3, 7, seed=4)

    def weighed(x: Any, w: Any, b: Any) -> float:
        return float((activated(np.einsum("mk,kn->mn", x, w) + b, activation) * dout).sum())

    out = activated(x @ w + b, activation)
    dx, dw, db, _ = twin(
        "dense_backward", [rubbish(3, 5), rubbish(5, 7), rubbish(7), dout], out, x, w, activation
    )  # fmt: skip
    np.testing.assert_allclose(dx, slope(lambda x: weighed(x, w, b), x), atol=1e-8)
    np.testing.assert_allclose(dw, slope(lambda w: weighed(x, w, b), w), atol=1e-8)
    np.testing.assert_allclose(db, slope(lambda b: weighed(x, w, b), b), atol=1e-8)


def test_the_first_layers_gradient_by_its_input_can_be_left_out(twin: Twin) -> None:
    x, w, dout = random(3, 2), random(2, 4, seed=2), random(3, 4, seed=3)
    _, dw, db, _ = twin("dense_backward", [None, rubbish(2, 4), rubbish(4), dout], x @ w, x, w, "identity")
    np.testing.assert_allclose(dw, np.einsum("mi,mo->io", x, dout), rtol=1e-12)
    np.testing.assert_allclose(db, dout[0] + dout[1] + dout[2], rtol=1e-12)


@pytest.mark.parametrize(
    ("activation", "wanted"),
    [("relu", [0, 1000, np.nan]), ("tanh", [-1, 1, np.nan]), ("sigmoid", [0, 1, np.nan])],
)
def test_activations_neither_overflow_nor_hide_nan(twin: Twin, activation: str, wanted: list[float]) -> None:
    b = np.array([-1000, 1000, np.nan])
    (found,) = twin("dense_forward", [rubbish(1, 3)], np.zeros((1, 1)), np.zeros((1, 3)), b, activation)
    np.testing.assert_array_equal(found, [wanted])


# ---- loss and sums ----


def cross_entropy(scores: Any, labels: Any) -> Any:
    return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]


def test_equal_scores_of_two_classes_cost_log_2(twin: Twin) -> None:
    loss, dscores = twin(
        "softmax_cross_entropy", [rubbish(2), rubbish(2, 2)], np.array([[3.0, 3.0], [-1.0, -1.0]]), np.array([0, 1])
    )
    np.testing.assert_allclose(loss, [np.log(2), np.log(2)], rtol=1e-15)
    np.testing.assert_allclose(dscores, [[-0.25, 0.25], [0.25, -0.25]], rtol=1e-15)  # (p - 1 or p - 0) / 2 rows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_loss_and_its_gradient_agree_with_float64_and_finite_differences(twin: Twin, dtype: str) -> None:
    scores, labels = random(3, 10, dtype=dtype), np.array([9, 0, 4])
    loss, dscores = twin(
        "softmax_cross_entropy", [rubbish(3, dtype=dtype), rubbish(3, 10, dtype=dtype)], scores, labels
    )
    exact = scores.astype(float)
    np.testing.assert_allclose(loss, cross_entropy(exact, labels), rtol=TOLERANCE[dtype])
    wanted = slope(lambda s: float(cross_entropy(s, labels).mean()), exact)
    np.testing.assert_allclose(dscores, wanted, atol=max(TOLERANCE[dtype], 1e-9))


def test_large_scores_do_not_overflow(twin: Twin) -> None:
    loss, dscores = twin(
        "softmax_cross_entropy", [rubbish(1), rubbish(1, 3)], np.array([[5000.0, 5000.0, -5000.0]]), np.array([0])
    )
    np.testing.assert_allclose(loss, [np.log(2)], rtol=1e-15)
    np.testing.assert_allclose(dscores, [[-0.5, 0.5, 0]], rtol=1e-15)


def test_means_are_what_one_adds_up(twin: Twin) -> None:
    np.testing.assert_array_equal(twin("mean", [rubbish(1)], np.arange(9.0))[0], [4])
    assert np.isnan(twin("mean", [rubbish(1)], np.empty(0))[0][0])
    np.testing.assert_array_equal(twin("zero", [rubbish(2, 5)])[0], np.zeros((2, 5)))


# ---- embeddings ----


def test_a_gather_reads_the_named_rows_again_and_again(twin: Twin) -> None:
    table = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    (found,) = twin("embedding_gather", [rubbish(4, 3)], table, np.array([2, 0, 2, 1]))
    np.testing.assert_array_equal(found, [[7, 8, 9], [1, 2, 3], [7, 8, 9], [4, 5, 6]])


def test_the_order_of_rows_groups_equal_ones_in_order_of_occurrence() -> None:
    distinct, order, starts = row_order(np.array([5, 2, 5, 9, 2]))
    assert (distinct.tolist(), order.tolist(), starts.tolist()) == ([2, 5, 9], [1, 4, 0, 2, 3], [0, 2, 4, 5])


def test_a_scatter_adds_the_values_of_equal_rows(twin: Twin) -> None:
    rows = np.array([3, 1, 3, 3])
    dout = np.array([[2.0, 1.0], [10.0, 20.0], [-4.0, 2.0], [1.0, 3.0]])
    table = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [0.0, 3.0]])
    (found,) = twin("embedding_scatter_add", [table], *row_order(rows), dout)
    np.testing.assert_array_equal(found, [[0, 0], [11, 21], [2, 2], [-1, 9]])


def test_a_scatter_on_a_gpu_adds_in_order_of_occurrence() -> None:
    dout = np.array([[1e16], [-1e16], [1.0]])
    (found,) = Twin("cuda")("embedding_scatter_add", [np.zeros((1, 1))], *row_order(np.zeros(3, np.int64)), dout)
    assert found[0, 0] == 1  # with 1 before -1e16 it is lost


def test_a_scatter_passes_over_rows_that_have_nothing_to_add(twin: Twin) -> None:
    starts = np.array([0, 1, 1, 2, 2])  # row 1 and row 3 have none
    dout = np.array([[5.0], [7.0]])
    (found,) = twin("embedding_scatter_add", [np.ones((4, 1))], np.arange(4), np.arange(2), starts, dout)
    np.testing.assert_array_equal(found[:, 0], [6, 1, 8, 1])


# ---- against PyTorch ----


@pytest.mark.slow  # loads torch
@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_a_layer_and_its_loss_agree_with_pytorch(twin: Twin, activation: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch: pip install torch")
    x, w, b, labels = random(6, 5), random(5, 4, seed=2), random(4, seed=3), np.array([0, 3, 1, 1, 2, 0])
    tx, tw, tb = (torch.tensor(a, requires_grad=True) for a in (x, w, b))
    scores = getattr(torch, activation)(tx @ tw + tb)
    torch.nn.functional.cross_entropy(scores, torch.tensor(labels)).backward()
    (out,) = twin("dense_forward", [rubbish(6, 4)], x, w, b, activation)
    loss, dscores = twin("softmax_cross_entropy", [rubbish(6), rubbish(6, 4)], out, labels)
    grads = twin("dense_backward", [rubbish(6, 5), rubbish(5, 4), rubbish(4), dscores], out, x, w, activation)
    each = torch.nn.functional.cross_entropy(scores, torch.tensor(labels), reduction="none")
    np.testing.assert_allclose(loss, each.detach().numpy(), rtol=1e-12)
    for found, wanted in zip(grads, (tx, tw, tb), strict=False):
        np.testing.assert_allclose(found, wanted.grad.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.slow  # loads torch
def test_an_embeddings_gradient_agrees_with_pytorch(twin: Twin) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch: pip install torch")
    table, rows, dout = random(6, 3), np.array([4, 1, 4, 0, 1, 4]), random(6, 3, seed=2)
    wanted = torch.tensor(table, requires_grad=True)
    torch.nn.functional.embedding(torch.tensor(rows), wanted).backward(torch.tensor(dout))
    (found,) = twin("embedding_scatter_add", [np.zeros((6, 3))], *row_order(rows), dout)
    np.testing.assert_allclose(found, wanted.grad.numpy(), rtol=1e-14)


# ---- elements ----


@pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "sigmoid"])
def test_an_activation_alone_is_that_of_a_dense_layer(twin: Twin, activation: str) -> None:
    x, dout = random(3, 5), random(3, 5, seed=2)
    values = {"identity": x, "relu": np.maximum(x, 0), "tanh": np.tanh(x), "sigmoid": 1 / (1 + np.exp(-x))}[activation]
    derived = {"identity": np.ones_like(x), "relu": x > 0, "tanh": 1 - values**2, "sigmoid": values * (1 - values)}
    (out,) = twin("activate", [rubbish(3, 5)], x, activation)
    np.testing.assert_allclose(out, values, rtol=1e-13)
    (dx,) = twin("activate_backward", [rubbish(3, 5)], dout, out, activation)
    np.testing.assert_allclose(dx, dout * derived[activation], rtol=1e-12)


def test_sums_products_and_columns(twin: Twin) -> None:
    a, b, narrow = random(3, 5), random(3, 5, seed=2), random(3, 2)
    np.testing.assert_array_equal(twin("add", [rubbish(3, 5)], a, b)[0], a + b)
    np.testing.assert_array_equal(twin("multiply", [rubbish(3, 5)], a, b)[0], a * b)
    np.testing.assert_array_equal(twin("take_columns", [rubbish(3, 2)], a, 3)[0], a[:, 3:])
    (out,) = twin("put_columns", [a], narrow, 1)
    np.testing.assert_array_equal(out, np.concatenate([a[:, :1], narrow, a[:, 3:]], axis=1))
