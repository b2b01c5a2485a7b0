"""Addresses, and connections that come and go."""

from __future__ import annotations

import numpy as np
import pytest

from dps.errors import ConfigError, Unavailable
from dps.transport.current import runtime
from dps.transport.endpoint import (
    Connected,
    Delivery,
    Disconnected,
    Endpoint,
    Event,
)
from dps.transport.sim import Network, World
from tests.transport.sim.worlds import EXACT, PS, alone, delivery, pair


def test_a_message_sent_just_before_close_still_finds_its_connection() -> None:
    world = World()

    def server() -> int:
        assert delivery(runtime().endpoint(PS)).header == b"bye"
        return 0

    def client() -> int:
        endpoint = runtime().endpoint()
        endpoint.send(PS, b"bye")
        endpoint.close()
        return 0

    world.process("worker:0", client)
    world.at(0.3, lambda: world.process("ps:0", server))
    world.run(until_s=2.0)
    assert world.processes["ps:0"].exit_code == 0


def test_what_is_sent_before_the_connection_is_up_is_kept_and_sent_in_order() -> None:
    world = World()

    def client() -> int:
        endpoint = runtime().endpoint()
        for n in range(3):
            endpoint.send(PS, b"%d" % n)
        assert endpoint.receive(60.0) == Connected(PS)
        assert 2.0 < world.now < 2.01
        return 0

    def server() -> int:
        runtime().sleep(2.0)
        endpoint = runtime().endpoint(PS)
        assert [delivery(endpoint).header for _ in range(3)] == [b"0", b"1", b"2"]
        return 0

    world.process("worker:0", client)
    world.process("ps:0", server)
    world.run()
    assert [process.error for process in world.processes.values()] == [None, None]


def test_the_end_of_a_peer_is_noticed_and_so_is_its_return() -> None:
    world, seen = World(network=Network(detect_s=0.02)), list[Event | None]()

    def server() -> int:
        endpoint = runtime().endpoint(PS)
        while True:
            endpoint.receive(60.0)

    def client() -> int:
        endpoint = runtime().endpoint()
        endpoint.connect(PS)
        while len(seen) < 3:
            seen.append(endpoint.receive(60.0))
        return 0

    process = world.process("ps:0", server, restarts=1, restart_delay_s=0.5)
    world.process("worker:0", client)
    world.at(1.0, lambda: world.kill("ps:0"))
    world.run(until_s=10.0)
    assert seen == [Connected(PS), Disconnected(PS), Connected(PS)]
    whats = [(event.what, round(event.time_s, 3)) for event in world.trace if event.what.endswith("connected")]
    assert whats == [("connected", 0.0), ("disconnected", 1.02), ("connected", 1.5)]
    assert process.incarnation == 1
    world.close()


def test_a_reader_that_closes_its_endpoint_is_noticed_like_a_death() -> None:
    def server(world: World, endpoint: Endpoint) -> None:
        runtime().sleep(1.0)
        endpoint.close()
        runtime().sleep(1.0)

    def client(world: World, endpoint: Endpoint) -> None:
        assert endpoint.receive(60.0) == Disconnected(PS)
        assert world.now == pytest.approx(1.02)
        assert endpoint.receive(0.5) is None

    pair(server, client)


def test_last_words_come_before_the_end_of_the_connection() -> None:
    def server(world: World, endpoint: Endpoint) -> None:
        got = delivery(endpoint)
        endpoint.send(got.route, b"last words", [bytes(300_000)])

    def client(world: World, endpoint: Endpoint) -> None:
        events: list[Event | None] = []
        endpoint.send(PS, b"h")
        events = [endpoint.receive(60.0) for _ in range(2)]
        assert isinstance(events[0], Delivery)
        assert events[1] == Disconnected(PS)

    pair(server, client, network=EXACT)


def test_an_answer_to_a_dead_peer_does_not_reach_its_next_life() -> None:
    world, got = World(), []

    def server() -> int:
        endpoint = runtime().endpoint(PS)
        late = delivery(endpoint)
        runtime().sleep(2.0)
        endpoint.send(late.route, b"for the dead")
        fresh = delivery(endpoint)
        assert fresh.route != late.route
        endpoint.send(fresh.route, b"for the living")
        runtime().sleep(1.0)
        return 0

    def client() -> int:
        endpoint = runtime().endpoint()
        endpoint.send(PS, b"request")
        got.append(delivery(endpoint).header)
        assert endpoint.receive(0.5) is None
        return 0

    world.process("ps:0", server)
    world.process("worker:0", client, restarts=1)
    world.at(1.0, lambda: world.kill("worker:0"))
    world.run()
    assert got == [b"for the living"]
    assert [process.error for process in world.processes.values()] == [None, None]


def test_disconnect_drops_what_is_on_its_way_and_connect_starts_afresh() -> None:
    def server(world: World, endpoint: Endpoint) -> None:
        assert delivery(endpoint).header == b"second"

    def client(world: World, endpoint: Endpoint) -> None:
        endpoint.send(PS, b"first")
        endpoint.disconnect(PS)
        endpoint.disconnect(PS)
        assert endpoint.receive(0.1) is None
        endpoint.connect(PS)
        assert endpoint.receive(0.1) == Connected(PS)
        endpoint.send(PS, b"second")

    pair(server, client)


def test_spellings_of_one_address_share_a_connection() -> None:
    def server(world: World, endpoint: Endpoint) -> None:
        assert delivery(endpoint).route == delivery(endpoint).route

    def client(world: World, endpoint: Endpoint) -> None:
        endpoint.connect("localhost:5000")
        assert endpoint.receive(0.1) is None
        endpoint.send("127.0.0.1:5000", b"a")
        endpoint.send("localhost:5000", b"b")

    pair(server, client)


def test_a_taken_address_is_refused_by_name_until_it_is_free() -> None:
    def main(world: World) -> None:
        first = runtime().endpoint("127.0.0.1:2222")
        with pytest.raises(Unavailable, match=r"ps:0 cannot listen at localhost:2222: ps:0 has it"):
            runtime().endpoint("localhost:2222")
        first.close()
        assert runtime().endpoint("127.0.0.1:2222").address == "127.0.0.1:2222"

    alone(main)


def test_a_killed_process_frees_its_address() -> None:
    world, seen = World(), []

    def main() -> int:
        seen.append(runtime().endpoint(PS).address)
        runtime().sleep(1.0)
        return 0

    world.process("ps:0", main, restarts=1, restart_delay_s=0.0)
    world.at(0.5, lambda: world.kill("ps:0"))
    world.run()
    assert seen == [PS, PS]


def test_port_0_is_a_free_port_and_the_same_one_in_a_replay() -> None:
    def ports() -> list[str]:
        found: list[str] = []
        alone(lambda world: found.extend(runtime().endpoint("127.0.0.1:0").address for _ in range(3)))
        return found

    assert len(set(ports())) == 3
    assert all(port.startswith("127.0.0.1:") and not port.endswith(":0") for port in ports())
    assert ports() == ports()


def test_an_inproc_name_belongs_to_one_process() -> None:
    world, got = World(), []

    def main() -> int:
        endpoint = runtime().endpoint("inproc://node")
        endpoint.send("inproc://node", runtime().name.encode())
        got.append((runtime().name.encode(), delivery(endpoint).header))
        return 0

    world.process("a", main)
    world.process("b", main)
    world.run()
    assert sorted(got) == [(b"a", b"a"), (b"b", b"b")]


def test_bad_addresses_headers_frames_and_routes_are_refused() -> None:
    def main(world: World) -> None:
        endpoint = runtime().endpoint()
        with pytest.raises(ConfigError, match="give host and port"):
            endpoint.connect("localhost")
        with pytest.raises(ConfigError, match="port 0"):
            endpoint.connect("localhost:0")
        with pytest.raises(ValueError, match="header"):
            endpoint.send(PS, b"")
        with pytest.raises(ValueError, match="not C-contiguous"):
            endpoint.send(PS, b"h", [np.zeros((4, 4))[:, :2]])
        with pytest.raises(ValueError, match="not from this endpoint"):
            endpoint.send(bytes(16), b"h")

    alone(main)


def test_a_peer_that_is_back_before_its_end_was_noticed_is_a_new_connection_all_the_same() -> None:
    world, seen = World(), list[Event | None]()

    def server() -> int:
        runtime().endpoint(PS).receive(2.0)
        return 0

    def client() -> int:
        endpoint = runtime().endpoint()
        endpoint.connect(PS)
        seen.extend(endpoint.receive(1.5) for _ in range(3))
        return 0

    world.process("ps:0", server)
    world.process("worker:0", client)
    world.at(1.0, lambda: world.kill("ps:0", restart_after=0.001))
    world.run()
    assert seen == [Connected(PS), Disconnected(PS), Connected(PS)]
    assert [round(event.time_s, 3) for event in world.trace if event.what == "disconnected"] == [1.02]
