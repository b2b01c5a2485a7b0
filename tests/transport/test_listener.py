"""Connections that come to a listener, over real sockets: how they end, and that their ends disturb nobody."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import zmq

from dps.transport.endpoint import Delivery
from dps.transport.sockets.connections import STRIKES
from dps.transport.sockets.endpoint import ZmqEndpoint
from dps.transport.sockets.listener import Names
from tests.transport.raw_peer import connected, frame

WITHIN_S = 10.0
kept: list[zmq.Context[zmq.Socket[bytes]]] = []


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """Is not ended: where a test fails, that would wait for ever."""
    made = zmq.Context[zmq.Socket[bytes]]()
    yield made
    kept.append(made)


def received(endpoint: ZmqEndpoint, *others: ZmqEndpoint) -> Delivery:
    """The next message, while the others do their work, too."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        for other in others:
            other.receive(0.0)
        if isinstance(event := endpoint.receive(0.01), Delivery):
            return event
    raise AssertionError(f"no message within {WITHIN_S} s")


def test_a_listener_closes_while_its_peers_go_and_the_other_sockets_of_the_process_go_on(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    node = ZmqEndpoint(context, Names(), "127.0.0.1:0")
    with closing(connected(node.address)) as peer:
        peer.sendall(frame(b"ask"))
        node.send(received(node).route, b"answer", [bytes(32 << 20)])  # more than the kernel takes
        time.sleep(0.1)
        node.close(5.0)  # the rest is still leaving
        time.sleep(0.1)
    time.sleep(0.2)  # libzmq sees that the peer is gone, after the endpoint was closed
    other, client = ZmqEndpoint(context, Names(), "127.0.0.1:0"), ZmqEndpoint(context, Names())
    client.send(other.address, b"hello")
    assert received(other, client).header == b"hello"
    for each in (other, client):
        each.close(0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="its kernel lets a connection go deaf")
def test_who_brings_garbage_waits_with_the_rest_until_libzmq_closes_his_connection(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    node = ZmqEndpoint(context, Names(), "127.0.0.1:0", silence_s=0.5)
    node.accepted.admitted = lambda route: False
    honest = ZmqEndpoint(context, Names())
    with closing(connected(node.address)) as peer:
        peer.setblocking(False)
        sent, read, ended_at = 0, 0, 0.0
        began = time.monotonic()
        while not ended_at and time.monotonic() < began + WITHIN_S:
            try:
                sent += peer.send(frame(b"garbage") * 100)
            except BlockingIOError:
                pass
            except OSError:
                ended_at = time.monotonic()
            if isinstance(event := node.receive(0), Delivery):
                read += 1
                node.accepted.blame(event.route)
        assert read == STRIKES and ended_at > began + 0.3, (read, ended_at - began)
    honest.send(node.address, b"hello")
    assert received(node, honest).header == b"hello"
    for each in (node, honest):
        each.close(0.0)
