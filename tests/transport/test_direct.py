"""The direct way between two processes of one machine: who is heard, what fits, and what falls back to ZeroMQ."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dps.transport.endpoint import Connected, Delivery, Route
from dps.transport.runtime import RealRuntime
from dps.transport.sockets import datagrams as peers
from dps.transport.sockets.datagrams import LONGEST_NBYTES, Direct

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such sockets")


Make = Callable[[], Direct]
NAME = "0123456789abcdef"
MARK = bytes.fromhex(NAME)


@pytest.fixture
def make() -> Iterator[Make]:
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(Direct()))


def pair(make: Make) -> tuple[Direct, Direct]:
    """A client that knows its node as "node", and the node that knows it as b"client"."""
    client, node = make(), make()
    client.pair("node", node.name, hears=True)
    node.pair(b"client", client.name, hears=False)
    return client, node


def test_a_message_arrives_with_its_frames_and_the_route_that_its_sender_has(make: Make) -> None:
    client, node = pair(make)
    assert client.send("node", b"head", [np.arange(3, dtype=np.float32), b"", b"xy"])
    got = node.receive()
    assert got is not None and (got.route, got.header) == (b"client", b"head")
    assert [bytes(frame) for frame in got.frames] == [np.arange(3, dtype=np.float32).tobytes(), b"", b"xy"]
    assert node.receive() is None


def test_who_has_not_written_is_not_written_to(make: Make) -> None:
    client, node = pair(make)
    assert "node" in client.peers.written and b"client" not in node.peers.written
    client.send("node", b"head", [])
    node.receive()
    assert b"client" in node.peers.written and node.send(b"client", b"back", [])
    assert client.receive() == Delivery("node", b"back", [])


def test_strangers_are_not_heard(make: Make) -> None:
    stranger, node = make(), make()
    stranger.pair("node", node.name, hears=True)
    assert stranger.send("node", b"head", [])
    assert node.receive() is None


def test_a_socket_lies_in_a_folder_that_only_its_user_may_enter(make: Make) -> None:
    one, other = make(), make()
    folder = Path(os.fsdecode(one.name)).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and Path(os.fsdecode(other.name)).parent == folder
    one.close()
    assert Path(os.fsdecode(other.name)).is_socket() and not Path(os.fsdecode(one.name)).exists()


def test_a_process_whose_folder_was_removed_makes_another(make: Make) -> None:
    client, node = pair(make)
    shutil.rmtree(os.path.dirname(node.name))
    assert not client.send("node", b"head", []) and "node" not in client.peers.written
    client, node = pair(make)
    assert client.send("node", b"head", []) and node.receive() == Delivery(b"client", b"head", [])


def test_a_name_that_another_account_could_bind_is_not_paired(make: Make, tmp_path: Path) -> None:
    node = make()
    open_to_all, own = tmp_path / "open", tmp_path / "own"
    open_to_all.mkdir()
    own.mkdir(mode=0o700)
    open_to_all.chmod(0o755)
    (tmp_path / "link").symlink_to(own)
    assert node.pair(b"own", os.fsencode(own / NAME), hears=True)
    for name in (open_to_all / NAME, tmp_path / "link" / NAME, tmp_path / "absent" / NAME, own / "name"):
        assert not node.pair(b"route", os.fsencode(name), hears=True)
    for text in (b"", b"\0dps-abstract", b"relative/name", b"/"):
        assert not node.pair(b"route", text, hears=True)
    assert not node.send(b"route", b"head", [])


@pytest.mark.parametrize(
    "datagram",
    [
        b"", b"\x01", MARK, MARK + struct.pack("<H", 0), MARK + struct.pack("<HI", 1, 0),
        MARK + struct.pack("<HI", 1, 5) + b"abc", MARK + struct.pack("<HI", 1, 3) + b"abcd",
        MARK + struct.pack("<H", 65535) + b"x" * 100, MARK + b"x" * (LONGEST_NBYTES + 1),
        MARK[::-1] + struct.pack("<HI", 1, 4) + b"evil",
    ],
)  # fmt: skip
def test_malformed_datagrams_are_thrown_away_and_the_next_is_read(make: Make, datagram: bytes) -> None:
    node = make()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        node.pair(b"client", os.path.join(os.path.dirname(node.name), NAME.encode()), hears=False)
        sender.sendto(datagram, node.name)
        sender.sendto(MARK + struct.pack("<HI", 1, 4) + b"good", node.name)
    got = node.receive()
    assert got is not None and got.header == b"good"


def test_what_is_too_long_or_finds_no_room_or_nobody_goes_through_zeromq(make: Make) -> None:
    client, node = pair(make)
    assert not client.send("node", b"head", [bytes(LONGEST_NBYTES)])
    sent = 0
    while client.send("node", b"head", [bytes(30_000)]):
        sent += 1
        assert sent < 10_000
    assert sent > 0 and "node" in client.peers.written  # there may be room again
    node.close()
    assert not client.send("node", b"head", []) and "node" not in client.peers.written


def test_who_takes_the_name_of_a_socket_that_is_closed_gets_nothing(make: Make) -> None:
    client, node = pair(make)
    assert client.send("node", b"one", [])
    node.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(node.name)
        try:
            other.setblocking(False)
            assert not client.send("node", b"two", []) and "node" not in client.peers.written
            with pytest.raises(BlockingIOError):
                other.recv(100)
        finally:
            os.unlink(node.name)


def test_a_forgotten_peer_keeps_no_descriptor(make: Make) -> None:
    client, _node = pair(make)
    before = len(os.listdir("/proc/self/fd"))
    assert client.send("node", b"one", []) and len(os.listdir("/proc/self/fd")) == before + 1
    client.peers.gone("node")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_peer_whose_connection_broke_is_heard_and_written_to_again_once_it_writes(make: Make) -> None:
    client, node = pair(make)
    client.send("node", b"one", [])
    node.receive()
    client.disconnected("node")
    assert "node" not in client.peers.written and not client.send("node", b"two", [])
    assert node.send(b"client", b"back", [])  # the node knows nothing of the break
    assert client.receive() == Delivery("node", b"back", [])
    assert "node" in client.peers.written


def test_a_peer_that_took_the_place_of_another_is_not_mistaken_for_it(make: Make) -> None:
    client, node = pair(make)
    client.send("node", b"one", [])
    node.receive()
    other = make()
    client.pair("node", other.name, hears=True)
    assert node.send(b"client", b"old", []) and client.receive() is None
    assert client.send("node", b"two", []) and node.receive() is None
    other.pair(b"client", client.name, hears=False)
    assert other.receive() == Delivery(b"client", b"two", [])


def test_who_knows_as_many_as_it_can_has_room_for_one_whose_socket_is_closed_and_for_no_other(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PEERS", 2)
    node, clients = make(), [make() for _ in range(4)]
    for number, client in enumerate(clients):
        client.pair("node", node.name, hears=True)
        assert node.pair(b"%d" % number, client.name, hears=False) == (number < 2)
        client.send("node", b"from %d" % number, [])
    assert [node.receive() for _ in range(3)] == [Delivery(b"0", b"from 0", []), Delivery(b"1", b"from 1", []), None]
    clients[0].close()
    assert node.pair(b"3", clients[3].name, hears=False) and not node.pair(b"2", clients[2].name, hears=False)
    clients[1].send("node", b"again", [])
    clients[3].send("node", b"now", [])
    assert [node.receive() for _ in range(2)] == [Delivery(b"1", b"again", []), Delivery(b"3", b"now", [])]


def test_endpoints_that_are_paired_use_it_and_fall_back_when_it_fails() -> None:
    runtime = RealRuntime("test")
    node, client = runtime.endpoint("127.0.0.1:0"), runtime.endpoint(None)

    def delivery(endpoint: object) -> Delivery:
        for _ in range(100):
            event = endpoint.receive(1.0)  # type: ignore[attr-defined]
            if isinstance(event, Delivery):
                return event
        raise AssertionError("nothing came")

    try:
        client.send(node.address, b"one")
        assert client.receive(5.0) == Connected(node.address)
        first = delivery(node)
        node.pair(first.route, client.direct, False)
        client.pair(node.address, node.direct, True)
        client.send(node.address, b"two")
        assert delivery(node)[:3] == (first.route, b"two", [])
        node.send(first.route, b"back", [bytes(100_000)])
        assert delivery(client).header == b"back"
        node._direct.close()  # type: ignore[attr-defined]
        client.send(node.address, b"three")
        assert delivery(node)[:3] == (first.route, b"three", [])
    finally:
        client.close()
        node.close()


def test_a_socket_that_is_closed_while_it_is_read_has_no_message(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    client, node = pair(make)

    class Interrupted:
        """A socket whose owner is closed by the handler of a signal while it receives a stranger's datagram."""

        def recv_into(self, buffer: memoryview) -> int:
            node.close()
            return own.recv_into(buffer)

        def close(self) -> None:
            own.close()

    own = node._socket
    assert own is not None
    monkeypatch.setattr(node, "_socket", Interrupted())
    assert client.send("node", b"header", []) and node.receive() is None


def paired(node: Any, client: Any) -> Route:
    """Have a client and a bound endpoint exchange datagrams; the client's route."""
    client.send(node.address, b"one")
    while not isinstance(first := node.receive(0.05), Delivery):
        client.receive(0.01)
    node.pair(first.route, client.direct, False)
    client.pair(node.address, node.direct, True)
    client.send(node.address, b"again")
    assert node.receive(5.0) is not None
    return first.route


def test_a_bound_endpoint_does_its_regular_work_and_reads_its_sockets_while_datagrams_come_without_a_pause() -> None:
    runtime = RealRuntime("test")
    node, client = runtime.endpoint("127.0.0.1:0"), runtime.endpoint(None)
    other = runtime.endpoint(None)
    try:
        route = paired(node, client)
        upkeep, done = node._upkeep, list[float]()  # type: ignore[attr-defined]
        run_due = upkeep.run_due
        upkeep.run_due = lambda now: (done.append(now), run_due(now))
        others = 0
        for _ in range(4):
            client.send(node.address, b"next")
        for number in range(800):
            if number % 100 == 50:
                upkeep.due_at = 0.0
            if number % 100 == 0:
                other.send(node.address, b"by socket")
            event = node.receive(1.0)
            if isinstance(event, Delivery) and event.header == b"by socket":
                others += 1
            else:  # so several are always there
                client.send(node.address, b"next")
            node.send(route, b"answer")
            client.receive(0)
            if number % 100 == 99:
                time.sleep(0.02)
        assert len(done) >= 8 and others >= 7
    finally:
        for endpoint in (client, other, node):
            endpoint.close()


def test_a_wake_ends_the_next_wait_also_after_its_descriptor_was_read() -> None:
    runtime = RealRuntime("test")
    node, client = runtime.endpoint("127.0.0.1:0"), runtime.endpoint(None)
    try:
        route = paired(node, client)
        while node.receive(0.0) is not None:
            pass
        node.wake()
        node._signals.attend()  # type: ignore[attr-defined]  # as a message to a node that is away does
        node.send(route, b"answer")
        began = time.monotonic()
        assert node.receive(0.4) is None and time.monotonic() - began < 0.03
    finally:
        client.close()
        node.close()
