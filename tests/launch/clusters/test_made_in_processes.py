"""Variables that the ps make, with real processes: the worker's memory does not grow with the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.kernels.first_values import made

ROWS, DIM = 1_600_000, 16
NORMAL = dps.init.Normal(0.01, seed=1)


def resident_mb(which: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def opened(server: dps.Server, rows: Any) -> tuple[float, Any]:
    """How far the memory of the worker rose when it opened a session on 102 MB, and some of its rows."""
    table = dps.Variable(shape=(ROWS, DIM), init=NORMAL, sparse=True)
    settings: dict[str, Any] = {"optimizer": dps.optim.SGD(0.1), "partitioner": dps.partition.Fixed(2)}
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now: proc(5)
    before = resident_mb("VmRSS")
    with dps.Session(server, {"table": table, "b": np.ones(3, np.float32)}, **settings) as session:
        return resident_mb("VmHWM") - before, session.lookup("table", rows)


@pytest.mark.slow
def test_a_worker_opens_a_large_table_without_its_memory() -> None:
    rows = np.array([0, 5, ROWS // 2 - 1, ROWS // 2, ROWS - 1])
    with dps.LocalCluster(ps=2, workers=1, processes=True) as local:
        run = local.run(opened, rows)
        run.wait()
        grown_mb, found = run.results[0]
    assert grown_mb < 20
    assert np.array_equal(found, made(NORMAL, "table", (ROWS, DIM), "float32")[rows])
