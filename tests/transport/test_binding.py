"""Where a node listens: addresses, interfaces, ranges of ports, and what others are told."""

from __future__ import annotations

import socket

import pytest

from dps.cluster.address import Address, parse, parse_ports
from dps.errors import ConfigError, NotAuthenticated, Unavailable
from dps.transport.endpoint import Connected, Delivery
from dps.transport.runtime import RealRuntime
from dps.transport.sockets import addresses as interfaces
from dps.transport.sockets.addresses import Binding, advertised, origin


@pytest.mark.parametrize(
    ("given", "listens"),
    [
        (Binding(), "127.0.0.1:0"),
        (Binding(towards="127.0.0.1:2220"), "127.0.0.1:0"),
        (Binding(towards="[::1]:2220"), "[::1]:0"),
        (Binding(towards="inproc://chief"), "127.0.0.1:0"),
        (Binding("lo"), "127.0.0.1:0"),
        (Binding("lo:2222"), "127.0.0.1:2222"),
        (Binding("127.0.0.1"), "127.0.0.1:0"),
        (Binding("[::1]"), "[::1]:0"),
        (Binding("0.0.0.0"), "0.0.0.0:0"),
        (Binding("[::]:5000"), "[::]:5000"),
        (Binding("ps-0.lab:5000"), "ps-0.lab:5000"),
        (Binding("ipc:///tmp/x"), "ipc:///tmp/x"),
    ],
)
def test_a_binding_says_where_to_listen(given: Binding, listens: str) -> None:
    assert str(given.asked()) == listens


@pytest.mark.parametrize(
    ("given", "bound", "told"),
    [
        (Binding("127.0.0.1:0"), "127.0.0.1:5000", "127.0.0.1:5000"),
        (Binding("localhost:0"), "localhost:5000", "localhost:5000"),
        (Binding("0.0.0.0:0", "node1"), "0.0.0.0:5000", "node1:5000"),
        (Binding("0.0.0.0:0", "node1:80"), "0.0.0.0:5000", "node1:80"),
        (Binding("[::]:0", "[fd00::1]"), "[::]:5000", "[fd00::1]:5000"),
        (Binding("ipc:///tmp/x", "node1"), "ipc:///tmp/x", "ipc:///tmp/x"),
    ],
)
def test_others_are_told_the_bound_address_or_the_one_that_is_advertised(given: Binding, bound: str, told: str) -> None:
    assert str(given.told(parse(bound))) == told


def test_of_a_wildcard_others_are_told_the_interface_that_reaches_the_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    def reaching(host: str) -> str:
        return {"10.0.0.9": "10.0.0.1", "fd00::9": "fd00::1", "192.0.2.1": "172.16.0.1"}[host]

    monkeypatch.setattr(interfaces, "reaching", reaching)
    told = {to: str(Binding("[::]", towards=to).told(Address("tcp", "::", 5))) for to in ("10.0.0.9:1", "[fd00::9]:1")}
    assert told == {"10.0.0.9:1": "10.0.0.1:5", "[fd00::9]:1": "[fd00::1]:5"}
    for chief in ("", "127.0.0.1:1", "inproc://chief"):  # not the loopback address: others are to reach it
        assert str(Binding("0.0.0.0", towards=chief).told(Address("tcp", "0.0.0.0", 5))) == "172.16.0.1:5"
    assert str(Binding(towards="10.0.0.9:1").asked()) == "10.0.0.1:0"


BAD = {
    "5000-": (lambda: parse_ports("5000-"), r"got --ports '5000-'; wanted FIRST-LAST.*5000-5100"),
    "backwards": (lambda: parse_ports("5100-5000"), "--ports '5100-5000'"),
    "port 0": (lambda: parse_ports("0-10"), "from 1 to 65535"),
    "too high": (lambda: parse_ports("65000-65536"), "from 1 to 65535"),
    "words": (lambda: parse_ports("any"), "--ports 'any'"),
    "advertised wildcard": (lambda: advertised("0.0.0.0:5000"), "by which other machines reach this one"),
    "advertised every interface": (lambda: advertised("[::]"), "by which other machines reach this one"),
    "advertised file": (lambda: advertised("ipc:///x"), "got --advertise 'ipc:///x'"),
    "advertised port": (lambda: advertised("a:b"), "got 'a:b', .* a port is a number"),
    "bare IPv6": (lambda: Binding("::1").asked(), "an IPv6 address needs brackets"),
    "no scheme of ours": (lambda: Binding("udp://a:1").asked(), "leave 'udp://' out"),
    "no port at all": (lambda: Binding("127.0.0.1:x").asked(), "a port is a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_malformed_is_one_clear_error(case: str) -> None:
    call, message = BAD[case]
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("text", ["0.0.0.0:2222", "*:2222", "10.1.2.3:2222", "[::]:2222", "192.168.0.1:0"])
def test_listening_beyond_loopback_is_refused_unless_the_network_is_trusted(text: str) -> None:
    with pytest.raises(NotAuthenticated, match=r"without keys.*`dps keys new DIR`.*--trusted-network"):
        Binding(text).check_trusted(parse(text))
    assert Binding(text, trusted=True).check_trusted(parse(text))


def test_next_to_a_socket_in_a_folder_a_node_listens_there() -> None:
    first, second = (str(Binding(towards="ipc:///run/dps-1/chief").asked()) for _ in range(2))
    assert first.startswith("ipc:///run/dps-1/node-") and first != second
    assert str(Binding("127.0.0.1:0", towards="ipc:///run/dps-1/chief").asked()) == "127.0.0.1:0"


@pytest.mark.parametrize("text", ["localhost:1", "127.0.0.9:1", "[::1]:1", "ipc:///tmp/x", "inproc://x"])
def test_listening_on_loopback_needs_no_trust(text: str) -> None:
    assert not Binding(text).check_trusted(parse(text))


def test_an_interface_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "nic7")])
    with pytest.raises(ConfigError, match="interface 'nic7' has no address; is it up"):
        Binding("nic7:5000").asked()


def test_what_is_neither_an_interface_nor_a_host_is_told_with_the_interfaces_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _unknown)
    monkeypatch.setattr(interfaces, "known", lambda: "lo 127.0.0.1, eth0 10.0.0.1")
    says = (
        r"no interface of this machine is called 'nic7' \(there are lo 127.0.0.1, eth0 10.0.0.1\), and host 'nic7' has"
    )
    with pytest.raises(Unavailable, match=says) as caught:
        RealRuntime("test").endpoint(Binding("nic7:5000"))
    assert caught.value.exit_code == 2


def _unknown(*_: object, **__: object) -> None:
    raise socket.gaierror(-2, "Name or service not known")


def test_the_interfaces_that_have_an_address_are_known() -> None:
    assert "lo 127.0.0.1" in interfaces.known().split(", ")


@pytest.mark.parametrize(("text", "everywhere"), [("192.0.2.77:5000", "0.0.0.0"), ("[2001:db8::77]:5000", "[::]")])
def test_an_address_of_another_machine_is_told_with_those_that_there_are(text: str, everywhere: str) -> None:
    with pytest.raises(Unavailable) as caught:
        RealRuntime("test").endpoint(Binding(text, trusted=True))
    said = str(caught.value)
    assert "no interface of this machine has it, there are " in said and interfaces.known() in said
    assert said.endswith(f"; or listen on all of them: --bind {everywhere}") and "port 0" not in said


def test_a_range_of_one_port_that_is_taken_wants_a_wider_range() -> None:
    runtime = RealRuntime("test")
    holder = runtime.endpoint("127.0.0.1:0")
    port = parse(holder.address).port
    try:
        with pytest.raises(Unavailable, match=f"every port of --ports {port}-{port} is taken; .* widen it"):
            runtime.endpoint(Binding("127.0.0.1", ports=f"{port}-{port}"))
    finally:
        holder.close(0)


def test_no_route_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", _unreachable)
    with pytest.raises(Unavailable, match=r"no interface of this machine reaches 240\.0\.0\.1"):
        Binding(towards="240.0.0.1:5").asked()


def _unreachable(*_: object) -> None:
    raise OSError(101, "Network is unreachable")


def test_a_port_of_the_range_is_taken_and_a_full_range_is_one_error() -> None:
    runtime, first = RealRuntime("test"), _free_port()
    ports = f"{first}-{first + 1}"
    one = runtime.endpoint(Binding("127.0.0.1", ports=ports))
    two = runtime.endpoint(Binding("127.0.0.1", ports=ports))
    try:
        assert [one.address, two.address] == [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]
        with pytest.raises(Unavailable, match=f"every port of --ports {ports} is taken"):
            runtime.endpoint(Binding("127.0.0.1", ports=ports))
        fixed = runtime.endpoint(Binding(f"127.0.0.1:{_free_port()}", ports=ports))
        fixed.close(0)
    finally:
        one.close(0)
        two.close(0)


def _free_port() -> int:
    """A port that is free now, and the one after it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@pytest.mark.parametrize(
    ("bind", "host"), [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("inproc://here", ""), ("ipc://PATH/node", "")]
)
def test_a_message_over_tcp_tells_from_which_host_it_came(bind: str, host: str, tmp_path: object) -> None:
    runtime = RealRuntime("test")
    node, client = runtime.endpoint(bind.replace("PATH", str(tmp_path))), runtime.endpoint()
    try:
        client.send(node.address, b"hello")
        assert client.receive(10.0) == Connected(node.address)
        event = node.receive(10.0)
        assert isinstance(event, Delivery) and origin(event.source) == host
    finally:
        client.close(0)
        node.close(0)
