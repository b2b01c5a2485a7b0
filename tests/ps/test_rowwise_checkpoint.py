"""A checkpoint of row-wise Adagrad goes on where it was, on another number of ps and in other parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from tests.in_process import cluster

TABLE = np.arange(22, dtype=np.float32).reshape(11, 2)
GRADIENTS = [np.random.default_rng(seed).standard_normal((11, 2)).astype(np.float32) for seed in range(4)]


def train(server: Any, parts: int, folder: Path | None, gradients: list[Any], save: bool = False) -> Any:
    optimizer, partitioner = dps.optim.Adagrad(0.5, rowwise=True), dps.partition.Fixed(parts)
    settings: dict[str, Any] = {"optimizer": optimizer, "partitioner": partitioner}
    if folder is not None:
        settings["checkpoint_dir"] = str(folder)
    with dps.Session(server, {"table": TABLE, "bias": np.float32(1)}, **settings) as session:
        for gradient in gradients:
            session.push({"table": gradient, "bias": gradient[0, 0]})
        values = session.pull()
        if save:
            session.save()
        return values


def test_slots_with_one_element_a_row_are_cut_into_other_parts(tmp_path: Path) -> None:
    with cluster() as (server,):
        wanted = train(server, 1, None, GRADIENTS)
    with cluster(ps=3) as (server,):
        train(server, 4, tmp_path, GRADIENTS[:2], save=True)
    with cluster(ps=2) as (server,):
        found = train(server, 3, tmp_path, GRADIENTS[2:])
    assert found["table"].tobytes() == wanted["table"].tobytes()
    assert found["bias"] == wanted["bias"]


def test_accumulators_of_zero_are_not_restored_into_an_optimizer_without_epsilon(tmp_path: Path) -> None:
    def begin(optimizer: dps.optim.Optimizer) -> None:
        with (
            cluster() as (server,),
            dps.Session(server, {"w": np.zeros(3, np.float32)}, optimizer=optimizer, checkpoint_dir=str(tmp_path)) as s,
        ):
            s.push({"w": np.array([1, 0, 1], np.float32)})

    begin(dps.optim.Adagrad(0.5, initial_accumulator=0))
    with pytest.raises(
        dps.CheckpointError, match=r"holds accumulators of 0 .* epsilon=0: .*use the optimizer that was"
    ):
        begin(dps.optim.Adagrad(0.5, epsilon=0))
