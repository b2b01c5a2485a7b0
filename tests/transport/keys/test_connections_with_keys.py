"""Endpoints with keys: who gets a connection, and what is said at once to who does not."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path

import pytest
import zmq

from dps.errors import NotAuthenticated
from dps.transport.endpoint import Connected, Delivery, Endpoint, Event, Refused
from dps.transport.keys import files as key_files
from dps.transport.keys.keyring import credentials, read
from dps.transport.sockets.handshake import mechanism
from tests.transport.keys.conftest import Make

SOON_S = 60.0


def until(endpoint: Endpoint, *kinds: type[Event], within_s: float = SOON_S) -> Event:
    deadline = time.monotonic() + within_s
    while (left_s := deadline - time.monotonic()) > 0:
        event = endpoint.receive(left_s)
        if isinstance(event, kinds):
            return event
    raise AssertionError(f"no {kinds} within {within_s} s")


def reached(client: Endpoint, address: str, role: str = "chief") -> Event:
    """What becomes of a connection to the listener of a role."""
    client.expect(address, role)
    client.send(address, b"hello")
    return until(client, Connected, Refused)


def refusal(client: Endpoint, address: str, role: str = "chief") -> str:
    event = reached(client, address, role)
    assert isinstance(event, Refused), event
    return event.reason


def both_ways(client: Endpoint, node: Endpoint) -> str:
    """The role with which a message of the client comes, once an answer to one has come back. Sent again and again, as
    the layers above do: while keys change, a connection may be made anew twice."""
    deadline, asker = time.monotonic() + SOON_S, ""
    while time.monotonic() < deadline:
        client.send(node.address, b"question")
        for _ in range(5):
            if isinstance(event := node.receive(0.02), Delivery):
                asker = str(event.source.get("User-Id"))
                node.send(event.route, b"answer")
            if isinstance(client.receive(0.02), Delivery):
                return asker
    raise AssertionError("no answer")


def exchange(client: Endpoint, node: Endpoint, connections: int) -> str:
    """As `both_ways`, once the client has been connected so many more times."""
    deadline = time.monotonic() + SOON_S
    while connections:
        assert time.monotonic() < deadline, "the connection was not made anew"
        connections -= isinstance(client.receive(0.01), Connected)
        assert not isinstance(node.receive(0.01), Refused)
    return both_ways(client, node)


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_every_message_comes_with_the_role_of_its_key(make: Make, folder: str, tmp_path: Path, scheme: str) -> None:
    node = make(folder, "ps", "127.0.0.1:0" if scheme == "tcp" else f"ipc://{tmp_path}/node")
    out = str(tmp_path / "out")
    key_files.export(folder, ["reader"], out)
    for keys, role in ((folder, "worker"), (out, "reader")):
        client = make(keys, role)
        assert reached(client, node.address, "ps") == Connected(node.address)
        assert both_ways(client, node) == role
    assert node.keyed and mechanism(f"{'tcp://' if scheme == 'tcp' else ''}{node.address}") == "CURVE"


def test_a_listener_with_another_key_is_refused_at_once(make: Make, folder: str, tmp_path: Path) -> None:
    node = make(folder, "worker", "127.0.0.1:0")
    began = time.monotonic()
    said = refusal(make(folder, "worker"), node.address, "ps")
    assert said.startswith(f"the ps at {node.address} has another key than the ps of {folder}")
    other = str(tmp_path / "other")
    key_files.new(other)
    assert f"has another key than the worker of {other}" in refusal(make(other, "worker"), node.address, "worker")
    assert time.monotonic() - began < 20.0  # 0.1 s where nothing else is at work; a deadline passes after 60 s


def test_a_client_whose_key_is_not_known_is_refused_at_once(
    make: Make, folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = make(folder, "chief", "127.0.0.1:0")
    other = str(tmp_path / "other")
    key_files.new(other)
    shutil.copy(os.path.join(folder, "chief-1.pub"), os.path.join(other, "chief-1.pub"))
    client = make(other, "worker")
    for _ in range(2):
        said = refusal(client, node.address)
        assert said.startswith(f"the chief at {node.address} refuses the key of worker in {other}: it does not know it")
        time.sleep(0.15)  # refused connections are tried again when somebody sends, at most so often
    assert node.receive(0.0) is None
    assert caplog.text.count(f"refused a connection from 127.0.0.1: {folder} has no such key") == 1


@pytest.mark.parametrize("keyed", ["client", "listener"])
def test_one_side_without_keys_is_told_what_the_other_side_wants(make: Make, folder: str, keyed: str) -> None:
    listens, calls = ("", folder) if keyed == "client" else (folder, "")
    node = make(listens, "chief", "127.0.0.1:0")
    said = refusal(make(calls, "worker"), node.address)
    assert said == (
        f"the chief at {node.address} has no keys, this side has those of {folder}; give both the same"
        if keyed == "client"
        else f"who listens at {node.address} wants keys; give --keys DIR (DPS_KEYS, keys=)"
    )


def test_a_plain_socket_and_garbage_leave_a_listener_with_keys_as_it_was(make: Make, folder: str) -> None:
    node = make(folder, "chief", "127.0.0.1:0")
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(f"tcp://{node.address}")
        plain.send_multipart([b"header", b"frame"])
        host, _, port = node.address.rpartition(":")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03" + os.urandom(4096)):
            with socket.create_connection((host, int(port)), SOON_S) as raw:
                raw.sendall(garbage)
                raw.settimeout(SOON_S)
                try:
                    while raw.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
        assert node.receive(0.2) is None
    client = make(folder, "worker")
    assert reached(client, node.address) == Connected(node.address) and both_ways(client, node) == "worker"


def test_an_address_without_a_listener_is_no_refusal(make: Make, folder: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closes_at_once:
        closes_at_once.settimeout(SOON_S)
        client = make(folder, "worker")
        client.connect(f"127.0.0.1:{closes_at_once.getsockname()[1]}")  # as of a tunnel whose far end is not there yet
        for _ in range(3):
            closes_at_once.accept()[0].close()
            assert client.receive(0.05) is None


def test_a_new_set_leaves_connections_as_they_are_and_the_end_of_the_older_one_makes_them_anew(
    make: Make, folder: str
) -> None:
    node, client = make(folder, "chief", "127.0.0.1:0"), make(folder, "worker")
    assert reached(client, node.address) == Connected(node.address)
    key_files.rotate(folder)
    assert len(credentials(folder, "worker").pairs) == 2  # whoever reads the folder first, all hear of it
    assert both_ways(client, node) == "worker"
    for role in ("chief", "worker"):
        key_files.revoke(folder, role)
        assert exchange(client, node, 1) == "worker"
    assert len(read(folder).pairs["chief"]) == 1 and len(read(folder).pairs["ps"]) == 2


def test_a_host_with_the_older_keys_only_is_let_in_until_they_are_revoked(
    make: Make, folder: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    key_files.export(folder, ["worker"], out)
    key_files.rotate(folder)
    node = make(folder, "chief", "127.0.0.1:0")
    client = make(out, "worker")
    assert reached(client, node.address) == Connected(node.address)
    key_files.revoke(folder, "worker")
    deadline, said = time.monotonic() + SOON_S, None
    while not isinstance(said, Refused) and time.monotonic() < deadline:
        node.receive(0.01)
        said = client.receive(0.01)
    assert isinstance(said, Refused) and "refuses the key of worker" in said.reason and "was revoked" in said.reason


def test_a_listener_whose_own_keys_are_revoked_ends(make: Make, folder: str) -> None:
    node = make(folder, "ps", "127.0.0.1:0")
    key_files.revoke(folder, "ps")
    with pytest.raises(NotAuthenticated, match="has no private key of ps"):
        until(node, Delivery)
