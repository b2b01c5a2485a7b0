"""Networks of layers: gradients, memory, devices and errors, on the CPU and in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.kernels import device as gpu
from dps.layers import Dense, Embedding, Sequential
from dps.layers.place import KEPT_STEPS, CpuPlace, GpuPlace, Pool

DEVICES = ["/cpu:0", "/gpu:0"]


def dense(device: Any = None, dtype: str = "float64") -> Sequential:
    return Sequential([Dense(4, 5, "tanh"), Dense(5, 3, "identity", name="out")], device, dtype)


def words(device: Any = None) -> Sequential:
    return Sequential([Embedding(6, 2, fields=2, name="words"), Dense(4, 3, "identity")], device, "float64")


X = np.random.default_rng(5).normal(size=(4, 4))
IDS = np.array([[0, 3], [3, 3], [5, 0], [1, 3]])
LABELS = np.array([2, 0, 1, 2])


def table_of(network: Sequential) -> Any:
    return network.initial_params()["words"]["table"].value


def test_gradients_agree_with_finite_differences_of_the_loss() -> None:
    network, h = dense("/cpu:0"), 1e-6
    params = network.initial_params(seed=3)
    _, grads = network.loss_and_gradients(params, X, LABELS)
    for layer, values in params.items():
        for key, value in values.items():
            for i in np.ndindex(value.shape):
                at, value[i] = value[i], value[i] + h
                up, _ = network.loss_and_gradients(params, X, LABELS)
                value[i] = at - h
                down, _ = network.loss_and_gradients(params, X, LABELS)
                value[i] = at
                assert grads[layer][key][i] == pytest.approx((up - down) / (2 * h), abs=1e-8), (layer, key, i)


def test_a_gradient_by_a_table_has_each_row_once_and_agrees_with_finite_differences() -> None:
    network, h = words("/cpu:0"), 1e-6
    params = network.initial_params()
    table = params["words"]["table"].value
    _, grads = network.loss_and_gradients(params, IDS, LABELS)
    found = grads["words"]["table"]
    assert found.indices.tolist() == [0, 1, 3, 5]
    for i, row in enumerate(found.indices):
        for j in range(2):
            at, table[row, j] = table[row, j], table[row, j] + h
            up, _ = network.loss_and_gradients(params, IDS, LABELS)
            table[row, j] = at - h
            down, _ = network.loss_and_gradients(params, IDS, LABELS)
            table[row, j] = at
            assert found.values[i, j] == pytest.approx((up - down) / (2 * h), abs=1e-8)


@pytest.mark.parametrize(("make", "x"), [(dense, X), (words, IDS)])
def test_both_devices_give_the_same_loss_gradients_and_scores(make: Any, x: Any) -> None:
    cpu, gpu = make("/cpu:0"), make("/gpu:0")
    params = cpu.initial_params(seed=7)
    (loss, grads), (loss_there, there) = (n.loss_and_gradients(params, x, LABELS) for n in (cpu, gpu))
    assert loss == pytest.approx(loss_there, rel=1e-12)
    for layer, values in grads.items():
        for key, value in values.items():
            if isinstance(value, dps.Rows):
                assert value.indices.tolist() == there[layer][key].indices.tolist()
                value, there[layer][key] = value.values, there[layer][key].values
            np.testing.assert_allclose(value, there[layer][key], rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(cpu.scores(params, x), gpu.scores(params, x), rtol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_were_looked_up_serve_as_the_table(device: str) -> None:
    network = words(device)
    params = network.initial_params()
    loss, grads = network.loss_and_gradients(params, IDS, LABELS)
    rows = np.array([0, 1, 3, 4, 5])  # more than the batch names
    few = {**params, "words": {"table": dps.Rows(rows, table_of(network)[rows])}}
    loss_of_few, grads_of_few = network.loss_and_gradients(few, IDS, LABELS)
    assert loss_of_few == loss
    assert grads_of_few["words"]["table"].indices.tolist() == [0, 1, 3, 5]
    np.testing.assert_array_equal(grads_of_few["words"]["table"].values, grads["words"]["table"].values)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_written_where_out_says(device: str) -> None:
    network = dense(device)
    params = network.initial_params()
    _, wanted = network.loss_and_gradients(params, X, LABELS)
    out = {name: {key: np.full_like(value, 7) for key, value in layer.items()} for name, layer in params.items()}
    _, grads = network.loss_and_gradients(params, X, LABELS, out=out)
    for name in params:
        for key in ("w", "b"):
            assert grads[name][key] is out[name][key]
            np.testing.assert_array_equal(out[name][key], wanted[name][key])


def test_training_makes_the_loss_fall() -> None:
    network = dense("/cpu:0", "float32")
    params = network.initial_params()
    losses = []
    for _ in range(60):
        loss, grads = network.loss_and_gradients(params, X, LABELS)
        losses.append(loss)
        for name, layer in params.items():
            for key, value in layer.items():
                value -= 0.5 * grads[name][key]
    assert losses[-1] < 0.1 * losses[0]
    assert network.accuracy(params, X, LABELS) == 1


# ---- memory ----


@pytest.mark.parametrize(("make", "x"), [(dense, X), (words, IDS)])
def test_a_step_like_the_last_one_allocates_nothing_on_the_gpu(make: Any, x: Any) -> None:
    network = make("/gpu:0")
    params = network.initial_params()
    network.loss_and_gradients(params, x, LABELS)
    made = network._place.pool.made, network._place.staging.made
    network.loss_and_gradients(params, x[::-1], LABELS)
    assert (network._place.pool.made, network._place.staging.made) == made


def test_nothing_comes_back_to_the_host_but_the_loss_and_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    to_host = gpu.to_host
    monkeypatch.setattr(gpu, "to_host", lambda *a: (shapes.append(a[0].shape), to_host(*a)))
    network = dense("/gpu:0")
    network.loss_and_gradients(network.initial_params(), X, LABELS)
    assert sorted(shapes) == [(1,), (3,), (4, 5), (5,), (5, 3)]


def test_a_step_that_failed_leaves_the_network_usable() -> None:
    network = dense("/gpu:0")
    params = network.initial_params()
    wanted, _ = network.loss_and_gradients(params, X, LABELS)
    with pytest.raises(ValueError):
        network.loss_and_gradients({"dense_0": params["dense_0"]}, X, LABELS)
    assert network.loss_and_gradients(params, X, LABELS)[0] == wanted


def test_a_pool_keeps_what_it_made_and_lets_go_of_shapes_that_are_no_longer_asked_for() -> None:
    pool = Pool(np.empty)
    a, b = pool.take_array((2, 3), "float32"), pool.take_array((2, 3), "float32")
    assert a is not b
    pool.free_arrays()
    assert {id(pool.take_array((2, 3), "float32")), id(pool.take_array((2, 3), "float32"))} == {id(a), id(b)}
    for _ in range(KEPT_STEPS + 2):
        pool.free_arrays()
    pool.take_array((2, 3), "float32")
    assert pool.made == 3


# ---- devices ----


def test_the_device_is_a_string_a_device_the_scope_or_the_cpu() -> None:
    assert isinstance(dense()._place, CpuPlace)
    assert isinstance(dense("/job:worker/task:1/gpu:0")._place, GpuPlace)
    assert isinstance(dense(dps.Device("/gpu"))._place, GpuPlace)
    with dps.device("/job:worker"), dps.device("/gpu:0"):
        assert isinstance(dense()._place, GpuPlace)
        assert isinstance(dense("/cpu:0")._place, CpuPlace)


def test_a_gpu_that_is_not_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dps.ConfigError, match=r"^device '/device:GPU:99': got GPU:99, wanted 0 to .*device='/cpu:0'$"):
        dense("/gpu:99")
    monkeypatch.setattr(gpu, "is_available", lambda: "there is no driver")
    with pytest.raises(dps.ConfigError, match=r"'/device:GPU:0': .*there is no driver; .*; or device='/cpu:0'$"):
        dense("/gpu:0")
    with pytest.raises(dps.ConfigError, match="not on TPU"):
        dense("/device:TPU:0")


def test_first_values_depend_on_the_seed_alone() -> None:
    here, there, other = dense("/cpu:0").initial_params(4), dense("/gpu:0").initial_params(4), dense().initial_params(5)
    np.testing.assert_array_equal(here["out"]["w"], there["out"]["w"])
    assert (here["out"]["w"] != other["out"]["w"]).all()
    assert list(here) == ["dense_0", "out"] and here["out"]["b"].tolist() == [0, 0, 0]


# ---- errors ----


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (X[:, :3], LABELS, r"x: got shape \(4, 3\), wanted \(batch, 4\)"),
        (X[0], LABELS, r"x: got shape \(4,\), wanted \(batch, 4\)"),
        (X[:0], LABELS[:0], "a batch of 1 or more"),
        (X, LABELS[:3], r"labels: got int64 \(3,\), wanted integers \(4,\)"),
        (X, LABELS * 1.0, "labels: got float64"),
        (X, np.array([0, 1, 3, 2]), "labels: got 3 at position 2, wanted 0 to 2"),
        (X, np.array([0, 1, 2, -1]), "labels: got -1 at position 3, wanted 0 to 2"),
    ],
)
def test_a_batch_that_does_not_fit_is_named(x: Any, labels: Any, message: str) -> None:
    network = dense()
    with pytest.raises(ValueError, match=message):
        network.loss_and_gradients(network.initial_params(), x, labels)


def test_parameters_that_do_not_fit_are_named() -> None:
    network = dense()
    params = network.initial_params()
    with pytest.raises(ValueError, match="there is no out/b"):
        network.scores({**params, "out": {"w": params["out"]["w"]}}, X)
    with pytest.raises(ValueError, match=r"out/w: got float32 \(5, 3\), wanted float64 \(5, 3\)"):
        network.scores({**params, "out": {**params["out"], "w": np.zeros((5, 3), "float32")}}, X)
    with pytest.raises(ValueError, match=r"out: got float64 \(3, 5\) for out/w"):
        network.loss_and_gradients(params, X, LABELS, out={"out": {"w": np.empty((3, 5))}})


def test_row_numbers_that_do_not_fit_are_named() -> None:
    network = words()
    params = network.initial_params()
    with pytest.raises(ValueError, match="x: got 6 at position 1, wanted 0 to 5"):
        network.scores(params, np.array([[0, 6]]))
    with pytest.raises(ValueError, match=r"x: got int64 \(3,\), wanted integers \(batch, 2\)"):
        network.scores(params, np.array([0, 1, 2]))
    few = {**params, "words": {"table": dps.Rows(np.array([0, 3]), table_of(network)[[0, 3]])}}
    with pytest.raises(ValueError, match="x names row 5, which is not among the 2 looked up"):
        network.scores(few, IDS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dense(3, 4, "swish"), "got activation='swish', wanted one of identity, relu, tanh, sigmoid"),
        (lambda: Dense(0, 4), "got 0 inputs and 4 outputs"),
        (lambda: Embedding(5, 0), "got 5 rows, dim 0"),
        (lambda: Sequential([]), "got no layers"),
        (lambda: Sequential([Dense(3, 4), Dense(5, 2, "identity")]), "dense_0 gives 4 values, dense_1 takes 5"),
        (lambda: Sequential([Dense(3, 4)]), "dense_0 is last and ends in relu"),
        (lambda: Sequential([Dense(3, 4), Embedding(4, 2)]), "got the embedding embedding_1 in place 1"),
        (lambda: Sequential([Dense(2, 2, name="a"), Dense(2, 2, "tanh", name="a")]), "a different one for each layer"),
        (lambda: Sequential([Dense(3, 4, "tanh")], dtype="float16"), "got dtype float16"),
    ],
)
def test_layers_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
