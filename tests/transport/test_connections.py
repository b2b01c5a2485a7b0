"""Which connections are ended, as a state machine: the monitor, the kernel's counts and the ends are stood in for."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import zmq

from dps.transport.sockets import connections
from dps.transport.sockets.connections import (
    ACCEPTED,
    DISCONNECTED,
    LEAD_NBYTES,
    STRANGERS_NBYTES,
    STRIKES,
    STRIKES_ADMITTED,
    Connections,
)  # fmt: skip
from dps.transport.sockets.frames import MAX_FRAME_NBYTES

MB = 1 << 20


class World:
    """A listener with connections 3, 4, ...; the route of connection 3 is b"3"."""

    closed = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[bytes] = []
        self.received: dict[int, int] = {}
        self.ended: list[int] = []
        self.most = 100
        monitor: Any = self
        self.known = Connections(monitor)
        monkeypatch.setattr(connections, "received", self.received.__getitem__)
        self.hosts: dict[int, str] = {}
        monkeypatch.setattr(connections, "host_of", lambda fd: self.hosts.get(fd, f"host {fd}"))
        monkeypatch.setattr(connections, "most_connections", lambda: self.most)
        self.deaf = False

        def close(known: Connections, connection: Any, why: str, deaf: bool) -> bool:
            self.ended.append(connection.fd)
            return deaf and self.deaf

        monkeypatch.setattr(Connections, "_close", close)

    def recv(self, flags: int) -> bytes:
        if not self.events:
            raise zmq.Again
        return self.events.pop(0)

    def accept(self, *fds: int) -> None:
        for fd in fds:
            self.events += [struct.pack("=HI", ACCEPTED, fd), b"address"]
            self.received[fd] = 0
        self.known.read_monitor()

    def hear(self, fd: int) -> bool:
        """A message of a connection is read, as the endpoint does it."""
        route = str(fd).encode()
        if route in self.known.ended:
            return False
        if route not in self.known.heard:
            self.known.map_route(route, Source(fd))
        self.known.heard[route] = True
        return True

    def look(self, readable: bool = False, rounds: int = 0) -> list[int]:
        self.known.end_stalled(readable, rounds)
        ended, self.ended = self.ended, []
        return ended


class Source:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def get(self, option: int) -> int:
        assert option == zmq.SRCFD
        return self._fd


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_bytes_of_messages_that_are_read_count_for_nothing(world: World) -> None:
    world.accept(3)
    for _ in range(50):
        world.received[3] += LEAD_NBYTES
        world.hear(3)
        assert world.look() == []


def test_a_connection_that_brings_bytes_and_finishes_no_message_is_ended(world: World) -> None:
    world.known.admitted = lambda route: False
    world.accept(3, 4)
    world.hear(3)
    world.received |= {3: LEAD_NBYTES, 4: LEAD_NBYTES}
    assert world.look() == []
    world.received |= {3: LEAD_NBYTES + MB, 4: LEAD_NBYTES + 1}
    assert world.look() == [4]
    assert world.look() == [] and len(world.known) == 1


def test_an_admitted_process_has_credit(world: World) -> None:
    world.known.admitted = lambda route: route == b"3"
    world.accept(3)
    world.hear(3)
    world.known.end_stalled(False, 0)
    world.received[3] = LEAD_NBYTES + MAX_FRAME_NBYTES
    assert world.look() == []
    world.known.allow(2 * MAX_FRAME_NBYTES)
    world.received[3] = LEAD_NBYTES + 2 * MAX_FRAME_NBYTES
    assert world.look() == []
    world.received[3] += 1
    assert world.look() == [3]


def test_where_messages_wait_a_connection_gets_its_turn_before_it_is_ended(world: World) -> None:
    world.known.admitted = lambda route: False
    world.accept(3, 4)
    world.received[3] = 2 * LEAD_NBYTES
    assert world.look(readable=True, rounds=10) == []
    assert world.look(readable=True, rounds=14) == []
    assert world.look(readable=True, rounds=15) == [3]
    world.received[4] = 2 * LEAD_NBYTES
    assert world.look(readable=True, rounds=20) == []
    world.hear(4)
    assert world.look(readable=True, rounds=30) == []


def test_strangers_share_one_bound(world: World) -> None:
    world.known.admitted = lambda route: route == b"3"
    fds = range(3, 10)
    world.accept(*fds)
    world.hear(3)
    world.look()
    world.received |= {fd: LEAD_NBYTES - fd for fd in fds}
    assert world.look() == [4, 5]
    assert sum(LEAD_NBYTES - fd for fd in fds if fd > 5) <= STRANGERS_NBYTES


def test_too_many_refused_messages_end_a_connection_and_the_rest_of_it_is_not_read(world: World) -> None:
    world.known.admitted = lambda route: route == b"4"
    world.accept(3, 4)
    assert world.hear(3) and world.hear(4)
    world.known.blame(b"4", STRIKES_ADMITTED - 1)
    for _ in range(STRIKES - 1):
        world.known.blame(b"3")
    world.known.blame(b"nobody")
    world.known.blame("127.0.0.1:1", STRIKES)
    assert world.ended == []
    world.known.blame(b"3")
    assert world.ended == [3] and list(world.known.ended) == [b"3"]
    assert not world.hear(3) and world.hear(4)
    world.known.blame(b"3", STRIKES)
    assert world.ended == [3]


def test_a_descriptor_that_is_used_again_is_another_connection(world: World) -> None:
    world.accept(3)
    world.hear(3)
    world.known.admitted = lambda route: False
    world.known.blame(b"3", STRIKES - 1)
    world.events += [struct.pack("=HI", DISCONNECTED, 3), b"address"]
    world.accept(3)
    world.known.map_route(b"other", Source(3))
    world.known.blame(b"other")
    world.known.blame(b"3", STRIKES)
    assert world.ended == [] and b"3" not in world.known.heard


def test_what_a_connection_brought_that_is_gone_is_not_blamed_on_the_next_one_with_its_descriptor(world: World) -> None:
    world.known.admitted = lambda route: False
    known, unknown, new = (b"\0\0\0\0" + bytes([number]) for number in (1, 2, 3))
    world.accept(3)
    world.known.map_route(known, Source(3))
    for _ in range(2):
        world.events += [struct.pack("=HI", DISCONNECTED, 3), b"address"]
        world.accept(3)
    for route in (known, new, unknown, known):
        world.known.map_route(route, Source(3))
    for route in (known, unknown):
        world.known.blame(route, STRIKES)
    assert world.ended == []
    world.known.blame(new, STRIKES)
    assert world.ended == [3]


def test_of_too_many_connections_the_oldest_that_nobody_admitted_are_ended(world: World) -> None:
    world.known.admitted = lambda route: route in (b"3", b"5")
    world.most = 3
    world.accept(3, 4, 5)
    for fd in (3, 4, 5):
        world.hear(fd)
    world.accept(6, 7)
    assert world.ended == [4, 6] and len(world.known) == 3
    world.known.admitted = lambda route: True
    world.accept(8)
    assert world.ended == [4, 6, 8], "all others are needed"


def test_routes_that_were_read_after_their_connection_was_gone_are_forgotten(world: World) -> None:
    world.accept(3)
    world.hear(3)
    for number in range(connections.KNOWN + 5):
        route = b"gone %d" % number
        world.known.map_route(route, Source(99))
        world.known.heard[route] = True
    assert len(world.known.heard) < 10 and b"3" in world.known.heard


def test_a_deaf_connection_counts_until_libzmq_closes_it_and_nothing_of_it_is_read(world: World) -> None:
    world.known.admitted = lambda route: False
    world.deaf, world.most = True, 1
    world.accept(3)
    world.hear(3)
    world.known.blame(b"3", STRIKES)
    assert len(world.known) == 1 and not world.hear(3)
    world.known.blame(b"3", STRIKES)
    assert world.ended == [3]
    world.accept(4)
    assert world.ended == [3, 3] and len(world.known) == 1, "it makes room"


def test_who_is_not_admitted_has_credit_where_strangers_are_served(world: World) -> None:
    world.known.admitted = lambda route: False
    world.known.serves_strangers = True
    world.accept(3)
    world.received[3] = LEAD_NBYTES + MAX_FRAME_NBYTES
    assert world.look() == []
    world.received[3] += 1
    assert world.look() == [3]
