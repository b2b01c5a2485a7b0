"""The custom loop of the tf.distribute guide in one process: the guide's losses, and the curve of plain SGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dps
from dps.strategy import CentralStorage, Mirrored, OneDevice, get_strategy
from tests.strategy.text import GUIDE, batches, guide_batches, guide_params, params, plain, train


def cpus(count: int) -> list[str]:
    return [f"/cpu:{index}" for index in range(count)]


MADE: dict[str, Callable[[], Any]] = {
    "default": get_strategy,
    "OneDevice": lambda: OneDevice("/cpu:0"),
    "OneDevice on a GPU": lambda: OneDevice("/gpu:0"),
    "Mirrored on a GPU": lambda: Mirrored(["/gpu:0"]),
    "Mirrored on a GPU and a CPU": lambda: Mirrored(["/gpu:0", "/cpu:0"]),
    "CentralStorage on a GPU": lambda: CentralStorage(["/gpu:0"]),
    **{f"Mirrored {n}": lambda n=n: Mirrored(cpus(n)) for n in (1, 2, 4)},  # type: ignore[misc]
    **{f"CentralStorage {n}": lambda n=n: CentralStorage(cpus(n)) for n in (1, 2, 4)},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", MADE)
def test_the_guides_loop_gives_the_guides_losses(name: str) -> None:
    strategy = MADE[name]()
    losses, _ = train(strategy, guide_params(), guide_batches(5 * strategy.num_replicas_in_sync))
    np.testing.assert_allclose(losses, GUIDE, atol=1e-6)


@pytest.mark.thinned
@pytest.mark.parametrize("size", [8, 7, 3])
@pytest.mark.parametrize("name", MADE)
def test_the_curve_is_that_of_plain_sgd_also_where_batches_do_not_divide(name: str, size: int) -> None:
    dataset = batches(size, 20)
    losses, values = train(MADE[name](), params(), dataset)
    wanted, end = plain(params(), dataset)
    np.testing.assert_allclose(losses, wanted, atol=1e-6)
    for variable in end:
        np.testing.assert_allclose(values[variable], end[variable], atol=1e-6)


OPTIMIZERS = [
    dps.optim.SGD(0.1, weight_decay=0.01), dps.optim.Momentum(0.1, nesterov=True), dps.optim.Adagrad(0.1),
    dps.optim.Adagrad(0.1, rowwise=True), dps.optim.RMSProp(0.01, momentum=0.5, centered=True), dps.optim.Adam(0.01),
    dps.optim.AdamW(0.01), dps.optim.Ftrl(0.1, l1=0.01), dps.optim.SGD(dps.optim.Piecewise([3], [0.5, 0.1])),
]  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("device", ["/cpu:0", "/gpu:0"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_strategy_updates_as_a_ps_does(optimizer: Any, device: str) -> None:
    dataset = batches(4, 6)
    _, values = train(OneDevice(device), params(), dataset, optimizer)
    with dps.Server.create_local_server() as server, dps.Session(server, params(), optimizer=optimizer) as session:
        from tests.strategy.text import loss_and_gradients

        for x, y in dataset:
            session.push(loss_and_gradients(session.pull(), x, y, 4)[1])
        wanted = session.pull()
    for name in wanted:
        np.testing.assert_allclose(values[name], wanted[name], rtol=0, atol=0 if device == "/cpu:0" else 1e-12)


def test_the_same_gradients_give_the_same_bits_whatever_the_timing() -> None:
    runs = [train(Mirrored(cpus(4)), params(), batches(7, 10)) for _ in range(5)]
    assert all(losses == runs[0][0] for losses, _ in runs)
    assert all((values[name] == runs[0][1][name]).all() for _, values in runs for name in values)
