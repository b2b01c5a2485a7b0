"""Runs of very many small variables: they open, train, and come back from a checkpoint, without long waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from tests.in_process import cluster

COUNT = 20_000
OPEN_S = 12.0
"""Generous: 100,000 variables took 3.5 s with the tasks as processes on two cores."""


def of_all(value: float, count: int = COUNT) -> dict[str, Any]:
    return {f"v{i}": np.full(16, value, np.float32) for i in range(count)}


@pytest.mark.slow
def test_twenty_thousand_variables_open_and_train() -> None:
    with cluster(ps=2, transport="tcp") as [server]:
        began = time.process_time()  # of all tasks, for they are in this process
        with dps.Session(server, of_all(2.0), optimizer=dps.optim.SGD(0.5), timeout=60) as session:
            assert time.process_time() - began < OPEN_S
            values = session.step(of_all(1.0))
            assert list(values) == [f"v{i}" for i in range(COUNT)]
            assert all(value.tolist() == [1.5] * 16 for value in values.values())
            mine = session.gradients()
            for array in mine.values():
                array[...] = 1.0
            assert np.stack(list(session.step(mine).values())).tolist() == [[1.0] * 16] * COUNT
            bad = of_all(1.0)
            bad["v17001"][3] = np.nan
            with pytest.raises(ValueError, match="the gradient of v17001 has NaN"):
                session.push(bad)


def test_many_variables_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    for start, then in ((2.0, 1.5), (9.0, 1.0)):  # the second run goes on from what the first has saved
        with cluster(transport="inproc") as [server]:
            params = of_all(start, 2000)
            with dps.Session(server, params, optimizer=dps.optim.SGD(0.5), checkpoint_dir=str(tmp_path)) as session:
                found = session.step(of_all(1.0, 2000))
                assert np.stack(list(found.values())).tolist() == [[then] * 16] * 2000
                session.save()


@pytest.mark.parametrize("ps", [1, 2])
def test_gradients_in_place_are_known_again_only_as_long_as_they_are_the_same(ps: int) -> None:
    with (
        cluster(ps=ps, transport="tcp") as [server],
        dps.Session(server, of_all(0.0, 40), optimizer=dps.optim.SGD(1.0), timeout=30) as session,
    ):

        def filled(value: float) -> Any:
            grads = session.gradients()
            for array in grads.values():
                array[...] = value
            return grads

        def values() -> list[float]:
            return [float(value.max()) for value in session.pull().values()]

        first, second = filled(1.0), filled(2.0)
        session.push(first)
        session.push(second)
        assert values() == [-3.0] * 40
        session.push({**first, "v7": second["v7"], "v8": np.full(16, 5.0, np.float32)})
        assert values() == [-4.0] * 7 + [-5.0, -8.0] + [-4.0] * 31
        session.push(dict(reversed(second.items())))
        assert values() == [-6.0] * 7 + [-7.0, -10.0] + [-6.0] * 31
        session.push({name: second[name] for name in second if name != "v0"})
        assert values() == [-6.0] + [-8.0] * 6 + [-9.0, -12.0] + [-8.0] * 31
        last = filled(1.0)
        waits = [session.push_async(last) for _ in range(3)]
        assert all(wait.result().accepted for wait in waits)
        assert values() == [-9.0] + [-11.0] * 6 + [-12.0, -15.0] + [-11.0] * 31


def test_nan_in_gradients_in_place_is_refused_by_its_name_and_nothing_is_applied() -> None:
    with (
        cluster(ps=2, transport="tcp") as [server],
        dps.Session(server, of_all(0.0, 40), optimizer=dps.optim.SGD(1.0), timeout=30) as session,
    ):
        mine = session.gradients()
        for array in mine.values():
            array[...] = 1.0
        mine["v13"][3] = np.inf
        with pytest.raises(
            ValueError,
            match="^the gradient of v13 has NaN or infinite values.*; lower the learning rate, clip",
        ):
            session.push(mine)
        assert not any(value.any() for value in session.pull().values())
        mine["v13"][3] = 1.0
        for name in ("v2", "v4"):  # the sum is infinite, no number is
            mine[name][...] = 3e38
        session.push(mine)
        assert {float(value.max()) for value in session.pull().values()} == {-1.0, float(np.float32(-3e38))}
