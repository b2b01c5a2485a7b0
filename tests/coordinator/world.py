"""A simulated cluster whose workers serve, and a program that schedules from a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dps
from dps.calls.functions import ServedFunctions
from dps.coordinator.worker import Worker
from dps.transport.sim import Network, World
from dps.transport.sim.world import Fault

CHIEF = "chief:2220"
SERVED = ["tests.coordinator.functions"]


def chief(ps: int = 1, workers: int = 2, ends_at: float = 0.0) -> int:
    server = dps.Server(None, "chief", 0, bind=CHIEF, ps=ps, workers=workers, owned=True)
    server.join(ends_at or None)
    server.stop()
    return server.exit_code or 0


def ps(task: int) -> int:
    return dps.Server(None, "ps", task, chief=CHIEF, bind=f"ps{task}:0").join() or 0


def worker(task: int, served: Sequence[str] = SERVED, moves: bool = False) -> int:
    """`moves`: it has another port each time that it is started."""
    port = 0 if moves else 2300 + task
    with dps.Server(None, "worker", task, chief=CHIEF, bind=f"worker{task}:{port}") as server:
        Worker(server, ServedFunctions(served)).run()
    return 0


def client() -> dps.Server:
    return dps.Server(None, "client", None, chief=CHIEF, bind="client:0")


def simulated(
    program: Callable[[dps.Server], Any], workers: int = 2, seed: int = 0, faults: Sequence[Fault] = (),
    network: Network | None = None, until_s: float = 300.0, restarts: int = 0, servers: int = 1,
    ends_at: float = 0.0, moves: bool = False,
) -> Any:  # fmt: skip
    """What `program(server)` returns, or raises, in a world of its own."""
    found: list[Any] = []

    def run() -> None:
        with client() as server:
            found.append(program(server))

    with World(seed, network, faults=faults) as world:
        world.process("chief", lambda: chief(servers, workers, ends_at))
        for task in range(servers):
            world.process(f"ps:{task}", lambda task=task: ps(task))  # type: ignore[misc]
        for task in range(workers):
            world.process(f"worker:{task}", lambda task=task: worker(task, SERVED, moves), restarts=restarts)  # type: ignore[misc]
        process = world.process("client", run)
        world.run(until_s, stop=lambda: process.state == "ended")
        if process.error is not None:
            raise process.error
        assert found, f"the program did not end: {process.state}\n{world.trace_text(50)}"
    return found[0]
