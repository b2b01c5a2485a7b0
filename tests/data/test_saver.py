"""A run that is restored from a checkpoint gets the batches that its checkpoint has not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dps
from dps.checkpoint.memory import MemoryStorage
from dps.transport.sim import World

CHIEF = "chief:2220"
BATCHES = 12


def dataset() -> dps.data.Dataset:
    return dps.data.from_arrays(np.arange(2.0 * BATCHES)).shuffle(9, seed=3).batch(2)


def run(storage: MemoryStorage, limit: int, remote: bool, seed: int) -> list[float]:
    """One worker trains for up to `limit` batches. Returns the sums of the batches that it has pushed."""
    pushed: list[float] = []

    def serves() -> None:
        server = dps.Server(None, "dataset", 0, chief=CHIEF, bind="dataset0:0")
        dps.data.serve(dataset(), server, position=dps.data.saved_position("run"))
        server.join()

    def works() -> None:
        server = dps.Server(None, "worker", 0, chief=CHIEF, bind="worker0:0")
        source = dps.data.remote(server) if remote else dataset().iterator(dps.data.saved_position("run"))
        with dps.Session(
            server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0), checkpoint_dir="run",
            hooks=[dps.data.InputSaver(source, steps=3), dps.StopAtStep(num_steps=limit)],
        ) as session:  # fmt: skip
            batches = iter(source)
            while not session.should_stop() and (batch := next(batches, None)) is not None:
                session.push({"w": batch.sum(keepdims=True)})
                pushed.append(float(batch.sum()))
                if isinstance(batches, dps.data.RemotePass):
                    batches.done()
        server.stop()

    def serves_ps(job: str) -> None:
        bind = CHIEF if job == "chief" else "ps0:0"
        dps.Server(None, job, 0, chief=CHIEF, bind=bind, ps=1, workers=1).join()

    with World(seed, storage=storage) as world:
        for job in ("chief", "ps"):
            world.process(job, lambda job=job: serves_ps(job))  # type: ignore[misc]
        world.process("dataset:0", serves)
        process = world.process("worker:0", works)
        world.run(60.0, stop=lambda: process.state == "ended")
        assert process.error is None
    return pushed


@pytest.mark.parametrize("remote", [False, True])
def test_a_restored_run_goes_on_with_the_next_batch(remote: bool) -> None:
    whole = run(MemoryStorage(), 1000, remote, 0)
    assert len(whole) == BATCHES
    for limit in (1, 3, 7):
        storage = MemoryStorage()
        first = run(storage, limit, remote, limit)
        assert first + run(storage, 1000, remote, limit + 20) == whole


def test_what_is_no_source_of_positions_is_refused() -> None:
    with pytest.raises(dps.ConfigError, match="InputSaver: got a list, wanted an iterator"):
        dps.data.InputSaver([1, 2])  # type: ignore[arg-type]


def test_a_position_is_looked_for_in_a_path_and_under_a_name_that_is_there(tmp_path: Path) -> None:
    with dps.Server.create_local_server() as server:
        source = dataset().iterator()
        with dps.Session(
            server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0), checkpoint_dir=tmp_path,
            hooks=[dps.data.InputSaver(source, steps=1)],
        ) as session:  # fmt: skip
            session.push({"w": next(source)[:1]})
    newest = dps.data.saved_position(tmp_path)
    (_, last) = sorted(path.name for path in tmp_path.glob("step-*"))
    assert newest is not None and newest == dps.data.saved_position(str(tmp_path), last)
    with pytest.raises(dps.CheckpointError, match=r"there is no checkpoint 'step-7' in .*" + last):
        dps.data.saved_position(tmp_path, "step-7")  # as if the run was to begin anew
    for bad in ("", None, 3):
        with pytest.raises(dps.ConfigError, match="saved_position: got the checkpoint_dir .*wanted a path"):
            dps.data.saved_position(bad)  # type: ignore[arg-type]
