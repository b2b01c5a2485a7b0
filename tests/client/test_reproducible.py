"""Sync training gives the same bits whatever the timing, the number of ps, the transport, also in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.transport.sim import Compute, Network
from tests.in_process import cluster, on_all

STEPS = 12
ROWS = 13


def first_values() -> dict[str, Any]:
    draw = np.random.default_rng(3)
    return {
        "hidden": {"w": draw.normal(size=(ROWS, 7)).astype(np.float32), "b": np.zeros(7, np.float32)},
        "out": [draw.normal(size=(7, 3)), np.float32(0.5) * np.ones(3, np.float32)],
    }


def gradient(values: Any, worker: int, step: int) -> Any:
    """A made-up gradient of the values, another one for each worker and step; elementwise, so its bits are fixed."""

    def one(array: Any) -> Any:
        wave = np.sin(array * (1 + worker) + step).astype(array.dtype)
        return wave + array.dtype.type(0.1) * array

    return {
        "hidden": {"w": one(values["hidden"]["w"]), "b": one(values["hidden"]["b"])},
        "out": [one(values["out"][0]), one(values["out"][1])],
    }


def train(server: Any, optimizer: Any = None, partitioner: Any = None) -> bytes:
    """Train; the bytes of the final values."""
    with dps.Session(
        server, first_values(), optimizer=optimizer or dps.optim.Adam(0.01), update=dps.SyncReplicas(),
        partitioner=partitioner, timeout=30,
    ) as session:  # fmt: skip
        for step in range(STEPS):
            values = session.pull()
            assert session.push(gradient(values, server.task, step)).accepted
        return flat(session.pull())


def flat(values: Any) -> bytes:
    arrays = [values["hidden"]["w"], values["hidden"]["b"], *values["out"]]
    return b"".join(a.tobytes() for a in arrays)


@pytest.fixture(scope="module")
def wanted() -> bytes:
    """The bits of one run: two workers, one ps, tcp."""
    with cluster(ps=1, workers=2) as servers:
        first, second = on_all(servers, train)
    assert first == second
    return bytes(first)


@pytest.mark.parametrize(("ps", "transport"), [(1, "tcp"), (2, "tcp"), (3, "tcp"), (2, "inproc"), (2, "ipc")])
def test_sync_bits_do_not_depend_on_ps_and_transport(wanted: bytes, ps: int, transport: str, tmp_path: Path) -> None:
    with cluster(ps, 2, transport, tmp_path) as servers:
        assert on_all(servers, train) == [wanted, wanted]


def test_sync_bits_do_not_depend_on_partitioning(wanted: bytes) -> None:
    with cluster(2, 2) as servers:
        found = on_all(servers, lambda server: train(server, partitioner=dps.partition.Fixed(3)))
    assert found == [wanted, wanted]


@pytest.mark.parametrize("seed", range(5))
def test_sync_bits_are_those_of_the_simulator(wanted: bytes, seed: int) -> None:
    run = dps.simulate(
        train, ps=2, workers=2, seed=seed, compute=Compute(0.1, 0.9), piece_nbytes=64,
        network=Network(loss=0.02, double=0.02, reorder=0.1),
    )  # fmt: skip
    assert not run.errors
    assert run.results == [wanted, wanted]


def test_two_sync_workers_with_half_batches_are_one_with_the_whole_batch() -> None:
    draw = np.random.default_rng(0)
    x, target = draw.normal(size=(64, 5)), draw.normal(size=64)

    def least_squares(server: Any, share: slice) -> Any:
        with dps.Session(
            server, {"w": np.zeros(5)}, optimizer=dps.optim.SGD(0.1), update=dps.SyncReplicas(), timeout=30
        ) as s:
            for _ in range(20):
                w = s.pull()["w"]
                s.push({"w": x[share].T @ (x[share] @ w - target[share]) / len(x[share])})
            return s.pull()["w"]

    with cluster(2, 2) as servers:
        halves = on_all(servers, lambda s: least_squares(s, slice(32 * s.task, 32 * s.task + 32)))
    with cluster(1, 1) as servers:
        whole = on_all(servers, lambda s: least_squares(s, slice(None)))
    np.testing.assert_allclose(halves[0], whole[0], rtol=1e-12)
    np.testing.assert_array_equal(halves[0], halves[1])


@pytest.mark.parametrize("ps", [1, 2])
def test_async_with_one_worker_is_plain_training_bit_for_bit(ps: int) -> None:
    def work(server: Any) -> bytes:
        with dps.Session(server, first_values(), optimizer=dps.optim.SGD(0.05), timeout=30) as session:
            for step in range(STEPS):
                session.push(gradient(session.pull(), 0, step))
            return flat(session.pull())

    with cluster(ps, 1) as servers:
        (found,) = on_all(servers, work)
    plain = first_values()
    for step in range(STEPS):
        grads = gradient(plain, 0, step)
        for values, g in ((plain["hidden"], grads["hidden"]), (plain["out"], grads["out"])):
            for key in values if isinstance(values, dict) else range(len(values)):
                values[key] = values[key] - values[key].dtype.type(0.05) * g[key]
    assert found == flat(plain)
