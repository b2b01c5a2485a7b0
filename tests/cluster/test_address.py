from __future__ import annotations

import ipaddress

import pytest
import zmq
from hypothesis import assume, given
from hypothesis import strategies as st

from dps.cluster.address import (
    LONGEST_PATH,
    MAX_PORT,
    Address,
    at_port,
    check_address,
    parse,
    parse_ports,
    split,
    with_port,
)
from dps.cluster.identity import Identity
from dps.cluster.spec import ClusterSpec
from dps.collectives.member import second_binding
from dps.errors import ConfigError
from dps.transport.sockets.addresses import Binding, advertised

GOOD = {
    "127.0.0.1:2222": Address("tcp", "127.0.0.1", 2222),
    "localhost:0": Address("tcp", "localhost", 0),
    "node-7.example.org:65535": Address("tcp", "node-7.example.org", 65535),
    "*:2222": Address("tcp", "*", 2222),
    "[::1]:2222": Address("tcp", "::1", 2222),
    "[fe80::1%eth0]:80": Address("tcp", "fe80::1%eth0", 80),
    "inproc://ps/0": Address("inproc", path="ps/0"),
    "ipc:///run/dps/a b": Address("ipc", path="/run/dps/a b"),
}


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_taken_apart_and_written_as_it_was(text: str) -> None:
    assert parse(text) == GOOD[text]
    assert str(parse(text)) == text


BAD = {
    "localhost": "such as localhost:2222",
    "localhost:": "such as localhost:2222",
    ":2222": "such as 127.0.0.1:2222",
    "": "such as 127.0.0.1:2222",
    "[::1]": "such as [::1]:2222",
    "::1:2222": "needs brackets",
    "[localhost]:2222": "must be an IPv6 address",
    "[1.2.3.4]:80": "must be an IPv6 address",
    "host:65536": "from 0 (choose one) to 65535",
    "host:-1": "from 0 (choose one) to 65535",
    "host:http": "from 0 (choose one) to 65535",
    "host:²": "from 0 (choose one) to 65535",
    "host:" + "1" * 5000: "from 0 (choose one) to 65535",
    "a b:1": "a host is a name of letters",
    "a:1,b:2": "needs brackets",
    "tcp://host:1": "leave 'tcp://' out",
    "udp://a:1": "leave 'udp://' out",
    "inproc://": "put a name after",
    "ipc://": "put a path after",
    "ipc://*": "put a path after",
    "ipc://@name": "put a path after",
    "ipc:///" + "x" * 200: f"a path has at most {LONGEST_PATH} bytes",
}


@pytest.mark.parametrize("text", BAD)
def test_an_address_nobody_could_listen_on_is_refused_with_advice(text: str) -> None:
    with pytest.raises(ValueError, match="wanted HOST:PORT") as caught:
        check_address(text)
    assert isinstance(caught.value, ConfigError)
    assert f"got {text!r}" in str(caught.value)
    assert BAD[text] in str(caught.value)


def test_a_join_token_is_told_from_an_address() -> None:
    with pytest.raises(ConfigError, match="got a join token as an address; give it to --join"):
        parse("dps1-abc")


def test_a_path_may_be_as_long_as_a_socket_s() -> None:
    assert zmq.IPC_PATH_MAX_LEN == LONGEST_PATH
    longest = "ipc:///" + "x" * (LONGEST_PATH - 1)
    assert str(parse(longest)) == longest


def test_only_port_zero_lets_the_server_choose() -> None:
    two = {"worker": ["inproc://a:0", "inproc://a:0"]}
    ClusterSpec({"worker": ["a:0", "a:0", "[::1]:0", "[::1]:0"]}).check_servable()
    for same in (two, {"worker": ["a:2220", "a:2220"]}):
        with pytest.raises(ConfigError, match="for both worker:0 and worker:1"):
            ClusterSpec(same).check_servable()


# -- properties -------------------------------------------------------------------------------------------------

label = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,12}[A-Za-z0-9])?", fullmatch=True)
names = st.lists(label, min_size=1, max_size=4).map(".".join)
v4 = st.ip_addresses(v=4).map(str)
v6 = st.one_of(st.ip_addresses(v=6).map(str), st.ip_addresses(v=6).map(lambda ip: ip.exploded))
interfaces = st.from_regex(r"[a-z]{2,8}[0-9]{0,3}(\.[0-9]{1,4})?", fullmatch=True)
hosts = st.one_of(names, v4, interfaces, st.sampled_from(["*", "localhost", "0.0.0.0"]))
"""As they are written, without brackets."""
written = st.one_of(hosts, v6.map(lambda host: f"[{host}]"), st.just("[::]"))
ports = st.integers(0, MAX_PORT)
paths = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=25)


@given(written, ports)
def test_every_host_and_port_is_taken_apart_and_put_together(host: str, port: int) -> None:
    text = f"{host}:{port}"
    address = parse(text)
    assert str(address) == text and (address.scheme, address.port) == ("tcp", port)
    assert address.host == host.strip("[]") and (":" in address.host) == host.startswith("[")
    if ":" in address.host:
        ipaddress.IPv6Address(address.host)
    assert split(text) == (host, str(port)) and split(host) == (host, None)
    assert str(with_port(address, 5)) == at_port(text, 5) == at_port(host, 5) == f"{host}:5"


@given(st.sampled_from(["ipc", "inproc"]), paths)
def test_every_path_is_kept_as_it_is(scheme: str, path: str) -> None:
    assume(path[0] not in "*@" and "://" not in path)
    text = f"{scheme}://{path}"
    assert parse(text) == Address(scheme, path=path) and str(parse(text)) == text


@given(st.one_of(st.text(), st.text("0123456789:[]abc.%-/ipctn*@ ")))
def test_any_text_is_parsed_or_refused_and_survives_a_round_trip(text: str) -> None:
    try:
        address = parse(text)
    except ConfigError:
        return
    assert parse(str(address)) == address


@given(written, ports, written, st.integers(1, MAX_PORT))
def test_who_is_told_to_bind_gives_host_port_or_both(bind: str, port: int, told: str, own: int) -> None:
    """Of a task that the cluster names; without a port, or with 0, it listens at that of its name."""
    cluster = ClusterSpec({"chief": ["chief:1"], "ps": [f"{told}:{own}"]})

    def bound(text: str) -> str:
        return Identity.in_cluster(cluster, "ps", 0, text).bind

    assert bound("") == f"{told}:{own}" and bound(bind) == f"{bind}:{own}"
    assert bound(f"{bind}:{port}") == f"{bind}:{port or own}"


@given(written, st.none() | ports, written, st.none() | ports)
def test_a_second_node_of_a_task_is_at_the_same_hosts_and_at_other_ports(
    bind: str, port: int | None, told: str, as_port: int | None
) -> None:
    def at(host: str, number: int | None) -> str:
        return host if number is None else f"{host}:{number}"

    second = second_binding(Binding(at(bind, port), at(told, as_port)))
    assert second == Binding(at(bind, None if port is None else 0), told)
    assert second_binding(Binding("ipc:///x", "host:1")) == Binding()


@given(st.one_of(names, v4, v6.map(lambda host: f"[{host}]")), st.none() | ports)
def test_what_is_advertised_has_a_port_or_gets_the_bound_one(host: str, port: int | None) -> None:
    assume(host not in ("0.0.0.0", "[::]"))
    text = host if port is None else f"{host}:{port}"
    assert str(advertised(text)) == f"{host}:{port or 0}"
    told = Binding("0.0.0.0", text).told(Address("tcp", "0.0.0.0", 7))
    assert str(told) == f"{host}:{port or 7}"


@given(ports, ports)
def test_a_range_of_ports_has_both_ends_and_none_is_0(first: int, last: int) -> None:
    text = f"{first}-{last}"
    if not 1 <= first <= last:
        with pytest.raises(ConfigError, match="wanted FIRST-LAST"):
            parse_ports(text)
        return
    assert list(parse_ports(text)) == list(range(first, last + 1)) and list(parse_ports(f"{first}")) == [first]
    assert Binding("h", ports=text).range(Address("tcp", "h", 0)) == list(range(first, last + 1))
    assert Binding("h", ports=text).range(Address("tcp", "h", 9)) == [9]
