"""A training loop whose reading, computing and link take known times, more of one in one worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import dps
from dps.launch.commands.operating import StatusClient
from dps.launch.runs.status import training_of
from dps.transport.current import runtime
from dps.transport.sockets.endpoint import ZmqEndpoint

PIECE_S = 0.03
"""What each of reading, computing and the link takes in a worker that is not slow."""
NBYTES = 1 << 17


class Order(NamedTuple):
    """What the workers do."""

    slow: str = ""
    """What takes longer in the slow worker: "data", "computing", "link"; "": nothing."""
    worker: int = 2
    factor: float = 4.0
    leaves: str = ""
    """The slow worker ends once this file is there."""
    ends: str = ""
    """All end once this file is there."""
    spins: bool = False
    """Whether computing uses a processor; else it sleeps."""


def pause(seconds: float, spins: bool = False) -> None:
    if not spins:
        runtime().sleep(seconds)
        return
    end, values = runtime().now() + seconds, np.ones(200)
    while runtime().now() < end:
        values = np.sqrt(values + 1.0)


def slow_link(nbytes_s: float) -> None:
    """A transport that sleeps, in place of a slow link: what this process sends takes its time."""
    send: Callable[..., Any] = ZmqEndpoint.send

    def throttled(self: ZmqEndpoint, route: Any, header: Any, arrays: Any = (), *args: Any, **named: Any) -> Any:
        runtime().sleep(sum(array.nbytes for array in arrays) / nbytes_s)
        return send(self, route, header, arrays, *args, **named)

    ZmqEndpoint.send = throttled  # type: ignore[method-assign]


def train(server: Any, update: str, order: dict[str, Any]) -> int:
    """Train until a file says that it is over; how many pushes this worker has made."""
    told = Order(**order)
    factor = {told.slow: told.factor} if server.task == told.worker else {}
    slow_link(NBYTES / PIECE_S / factor.get("link", 1.0))

    def examples() -> Iterator[int]:
        while True:
            pause(PIECE_S * factor.get("data", 1.0))
            yield 1

    dataset, pushes = dps.data.from_generator(examples), 0
    params = {"w": np.zeros(NBYTES // 4, np.float32)}
    with dps.Session(
        server, params, optimizer=dps.optim.SGD(0.1), update=update, shared_memory=False, timeout=30
    ) as session:
        for _ in dataset:
            if os.path.exists(told.ends) or (server.task == told.worker and os.path.exists(told.leaves)):
                break
            values = session.pull()
            pause(PIECE_S * factor.get("computing", 1.0), told.spins)
            session.push({"w": values["w"]})
            pushes += 1
    return pushes


class Watch:
    """Asks a run as `dps status` does."""

    def __init__(self, target: str) -> None:
        self.client = StatusClient(target, "the test")

    def ask(self) -> dict[str, Any]:
        chief = self.client.ask_chief()
        return training_of(chief, self.client.ask_ps(chief))

    def rate(self, seconds: float) -> float:
        """Global steps a second."""
        clock = runtime()
        before, began = self.ask()["step"], clock.now()
        clock.sleep(seconds)
        after = self.ask()["step"]
        return float((after - before) / (clock.now() - began))
