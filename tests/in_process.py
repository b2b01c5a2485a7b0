"""Clusters out of `dps.Server` objects in this process, on any transport, for tests."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dps

_number = itertools.count()


def bind(transport: str, folder: Path | None = None) -> str:
    """An address on a transport: tcp with port 0, or a new inproc or ipc name."""
    if transport == "tcp":
        return "127.0.0.1:0"
    name = f"dps-test-{os.getpid()}-{next(_number)}"
    return f"inproc://{name}" if transport == "inproc" else f"ipc://{folder}/{name}"


@contextmanager
def cluster(
    ps: int = 1,
    workers: int = 1,
    transport: str = "tcp",
    folder: Path | None = None,
    update: Any = None,
    owned: bool = True,
    trusted: bool = False,
    checkpoint_root: Path | None = None,
) -> Iterator[list[dps.Server]]:
    """Chief, ps and workers; yields the worker servers and stops all at the end. `trusted`: tcp sockets are plain."""

    def server(job: str, task: int, **settings: Any) -> dps.Server:
        return dps.Server(None, job, task, bind=bind(transport, folder), trusted_network=trusted, **settings)

    leads = {"update": update, "owned": owned, "checkpoint_root": checkpoint_root}
    chief = server("chief", 0, ps=ps, workers=workers, **leads)
    made = [chief]
    try:
        made += [server("ps", i, chief=chief.address) for i in range(ps)]
        made += [server("worker", i, chief=chief.address) for i in range(workers)]
        yield made[1 + ps :]
    finally:
        for server in made:  # the chief first: it tells the others
            server.stop()


def on_all(servers: list[dps.Server], work: Callable[[dps.Server], Any], timeout_s: float = 240.0) -> list[Any]:
    """Run `work(server)` on a thread for each server; results in order. The first error is raised here."""
    results: list[Any] = [None] * len(servers)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = work(servers[index])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(servers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
        if errors:
            raise errors[0]
        assert not thread.is_alive(), "a worker did not end in time"
    return results
