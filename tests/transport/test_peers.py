"""Who hears whom: whatever one end forgets, no message of the other is lost without a sign."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from dps.transport.sockets.datagrams import LONGEST_NBYTES, DatagramPeers, fits


class End:
    """One end of a pair: its name, its table and what it sent that way."""

    def __init__(self, open_names: set[bytes]) -> None:
        self.open_names = open_names
        self.peers = DatagramPeers(open_names.__contains__)
        self.name = b""

    def start(self, name: bytes) -> None:
        """A new process with a new name and an empty table."""
        self.open_names.discard(self.name)
        self.name, self.peers = name, DatagramPeers(self.open_names.__contains__)
        self.open_names.add(name)


def test_what_is_too_long_does_not_fit() -> None:
    assert fits(LONGEST_NBYTES - 14, 1) and not fits(LONGEST_NBYTES - 13, 1)
    assert fits(LONGEST_NBYTES - 22, 3) and not fits(LONGEST_NBYTES - 21, 3)


def test_a_new_name_at_a_route_ends_the_old_one() -> None:
    peers = DatagramPeers(lambda name: True)
    assert peers.pair("node", b"old", True) and peers.pair("node", b"new", True)
    assert peers.heard(b"old") is None and peers.written.get("node") == b"new"


def test_who_is_gone_is_not_heard() -> None:
    peers = DatagramPeers(lambda name: True)
    peers.pair("node", b"name", True)
    peers.gone("node")
    peers.gone("node")
    assert peers.written.get("node") is None and peers.heard(b"name") is None and peers.written.get("node") is None


EVENTS = st.lists(
    st.sampled_from(["pair", "client writes", "node writes", "client loses", "node restarts", "client restarts"]),
    max_size=40,
)


@given(EVENTS)
def test_no_message_is_sent_to_an_end_that_does_not_hear_it(events: list[str]) -> None:
    """The node is at an address; each client has a route of its own. Whoever is written to by name either hears it or
    its socket is closed, and a message for one life of a process never reaches another."""
    names: set[bytes] = set()
    client, node = End(names), End(names)
    client.start(b"client 0")
    node.start(b"node 0")
    routes = {node.name: "address", client.name: client.name}

    def write(source: End, target: End, route: str | bytes) -> None:
        name = source.peers.written.get(route)
        if name is None:
            return  # through ZeroMQ
        if name not in names:
            source.peers.gone(route)
            return
        assert name == target.name, "written to another life of the process"
        assert target.peers.heard(source.name) == routes[source.name], "sent, and never heard"

    for lives, event in enumerate(events, 1):
        if event == "pair":
            if node.peers.pair(client.name, client.name, False):
                client.peers.pair("address", node.name, True)
        elif event == "client writes":
            write(client, node, "address")
        elif event == "node writes":
            write(node, client, client.name)
        elif event == "client loses":
            client.peers.disconnected("address")
        elif event == "node restarts":
            node.start(b"node %d" % lives)
            routes[node.name] = "address"
        else:
            client.start(b"client %d" % lives)
            routes[client.name] = client.name
