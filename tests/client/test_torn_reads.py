"""One version of each shard or nothing: readers beside writers, in one process and between processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.transport.current import runtime
from tests.in_process import cluster, on_all
from tests.without_leases import drop_leases

SECONDS = float(os.environ.get("DPS_TORN_SECONDS", "1"))
SMALL, LARGE = 400_000, 1_600_000
"""Elements: of a model that is read in one round trip, and of one that is not. A pass over both takes a while, and
frames are sent without a copy."""


def write(session: dps.Session, size: int, stop: threading.Event) -> int:
    """Each push adds one to every element, so that in one version all are equal."""
    gradient = {"a": np.full(size, -1, np.float32), "b": np.full(1000, -1, np.float32)}
    pushes = 0
    while not stop.is_set():
        session.push(gradient)
        pushes += 1
    return pushes


MANY = 10
"""Reads and pushes that a test wants to have seen, however long a busy machine takes for them."""


def torn(values: Any) -> bool:
    first = values["a"][0]
    return not ((values["a"] == first).all() and (values["b"] == first).all())


def read(session: dps.Session, how: str, seconds: float, stop: threading.Event) -> tuple[int, int]:
    """Reads and torn reads in some seconds, and until many pushes were seen; the writer is stopped at the end."""
    clock = runtime()
    end, reads, pushes, found = clock.now() + seconds, 0, 0.0, 0
    try:
        while clock.now() < end or (min(reads, pushes) <= MANY and clock.now() < end + 60.0):
            with session.view() if how == "view" else nullcontext(session.pull()) as values:
                found += torn(values)
                pushes = float(values["a"][0])
            reads += 1
    finally:
        stop.set()
    return reads, found


def first_values(size: int) -> dict[str, Any]:
    return {"a": np.zeros(size, np.float32), "b": np.zeros(1000, np.float32)}


def in_one_process(how: str, seconds: float, size: int) -> tuple[int, int, int]:
    stop = threading.Event()

    def work(server: dps.Server) -> Any:
        with dps.Session(server, first_values(size), optimizer=dps.optim.SGD(1.0), timeout=30) as session:
            return write(session, size, stop) if server.task == 0 else read(session, how, seconds, stop)

    with cluster(1, 2, "inproc") as servers:
        pushes, (reads, found) = on_all(servers, work, seconds + 90)
    return pushes, reads, found


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("how", ["view", "pull"])
def test_readers_in_the_same_process_see_whole_versions(how: str, size: int) -> None:
    pushes, reads, found = in_one_process(how, SECONDS, size)
    assert found == 0
    assert pushes > MANY and reads > MANY


@pytest.mark.slow
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_without_leases_reads_are_torn(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_leases(monkeypatch)
    found = 0
    for _ in range(5):
        found += in_one_process("view", 3.0, size)[2]
        if found:
            break
    assert found > 0


def between_processes(
    transport: str, how: str, shared: bool, size: int, seconds: float, folder: Path
) -> tuple[int, int, int]:
    stop = threading.Event()
    with cluster(1, 1, transport, folder) as (worker,):
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, worker.target, how, str(shared), str(seconds)], stdout=subprocess.PIPE,
            text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        with dps.Session(
            worker, first_values(size), optimizer=dps.optim.SGD(1.0), shared_memory=shared, timeout=30
        ) as session:
            ended = threading.Thread(target=lambda: (reader.wait(), stop.set()), daemon=True)
            ended.start()
            pushes = write(session, size, stop)
        assert reader.stdout is not None
        reads, found = map(int, reader.stdout.read().split())
        reader.stdout.close()
        ended.join(5)
    return pushes, reads, found


LANES = [
    ("tcp", "pull", False, SMALL), ("ipc", "pull", False, SMALL), ("tcp", "pull", True, SMALL),
    ("tcp", "pull", True, LARGE), ("ipc", "view", True, SMALL), ("ipc", "view", True, LARGE),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "how", "shared", "size"), LANES)
def test_readers_in_another_process_see_whole_versions(
    transport: str, how: str, shared: bool, size: int, tmp_path: Path
) -> None:
    pushes, reads, found = between_processes(transport, how, shared, size, SECONDS, tmp_path)
    assert found == 0
    assert pushes > MANY and reads > MANY


@pytest.mark.slow
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_without_leases_reads_out_of_shared_memory_are_torn(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_leases(monkeypatch)
    assert any(between_processes("tcp", "view", True, size, 2.0, tmp_path)[2] for _ in range(5))


READER = """
import sys, threading, dps
from tests.client.test_torn_reads import read
_, target, how, shared, seconds = sys.argv
with dps.Session(target, shared_memory=shared == "True", timeout=30) as session:
    print(*read(session, how, float(seconds), threading.Event()))
"""
