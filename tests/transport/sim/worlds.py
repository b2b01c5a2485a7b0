"""Small worlds that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable

from dps.transport.current import runtime
from dps.transport.endpoint import (
    Connected,
    Delivery,
    Endpoint,
)
from dps.transport.sim import Network, World

PS = "127.0.0.1:5000"
EXACT = Network(latency_s=0.001, jitter=0.0, bytes_per_s=1e6)


def alone(main: Callable[[World], object], network: Network | None = None) -> World:
    """A world with one process whose main gets the world; it must end well."""
    world = World(network=network)

    def body() -> int:
        main(world)
        return 0

    process = world.process("ps:0", body)
    world.run()
    if process.error is not None:
        raise process.error
    assert process.state == "ended"
    return world


def pair(
    server: Callable[[World, Endpoint], object],
    client: Callable[[World, Endpoint], object],
    network: Network | None = None,
) -> World:
    """ps:0 bound at PS and worker:0 with an endpoint that is connected; both must end well."""
    world = World(network=network)

    def serve() -> int:
        server(world, runtime().endpoint(PS))
        return 0

    def use() -> int:
        endpoint = runtime().endpoint()
        endpoint.connect(PS)
        assert endpoint.receive(60.0) == Connected(PS)
        client(world, endpoint)
        return 0

    world.process("ps:0", serve)
    world.process("worker:0", use)
    world.run()
    for process in world.processes.values():
        if process.error is not None:
            raise process.error
        assert process.state == "ended"
    return world


def delivery(endpoint: Endpoint, timeout_s: float = 60.0) -> Delivery:
    """The next message; connection events are passed over."""
    while True:
        event = endpoint.receive(timeout_s)
        assert event is not None, "no message came"
        if isinstance(event, Delivery):
            return event
