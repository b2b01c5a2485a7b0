from __future__ import annotations

import socket

import pytest

from dps.cluster.address import parse, with_port
from dps.errors import ConfigError, Unavailable
from dps.transport.sockets.addresses import dialled, is_loopback, resolve, url


def test_all_spellings_of_one_address_have_one_url() -> None:
    spellings = ["localhost:2222", "127.0.0.1:2222"]
    assert {url(text) for text in spellings} == {"tcp://127.0.0.1:2222"}
    assert url("[::1]:2222") == "tcp://[::1]:2222"
    assert url("ipc:///tmp/x") == "ipc:///tmp/x"


def test_a_port_is_put_into_the_spelling_that_was_given() -> None:
    assert str(with_port(parse("localhost:0"), 5000)) == "localhost:5000"
    assert str(with_port(parse("[::1]:0"), 5000)) == "[::1]:5000"


def test_connecting_to_port_0_is_refused() -> None:
    with pytest.raises(ConfigError, match="port 0"):
        url("127.0.0.1:0")


def test_ipv4_is_chosen_before_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert resolve("ps-0.lab") == "192.0.2.7"


def test_a_host_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unavailable, match=r"nowhere\.lab.*check the name"):
        url("nowhere.lab:1")


def test_localhost_never_asks_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "getaddrinfo")
    assert resolve("localhost") == "127.0.0.1"


def test_loopback_is_127_and_colon_colon_1() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.3.2.1", "::1", "0.0.0.0", "10.0.0.1", "::")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "origin", "dials"),
    [
        ("10.0.0.2:5000", "10.0.0.2", "10.0.0.2:5000"),
        ("10.9.9.9:5000", "10.0.0.2", "10.0.0.2:5000"),
        ("node2:5000", "10.0.0.2", "10.0.0.2:5000"),
        ("10.9.9.9:5000", "fd00::2", "[fd00::2]:5000"),
        ("[fd00::2]:5000", "fd00::2", "[fd00::2]:5000"),
        ("127.0.0.2:5000", "127.0.0.1", "127.0.0.2:5000"),
        ("localhost:5000", "127.0.0.1", "localhost:5000"),
        ("169.254.169.254:80", "127.0.0.1", "127.0.0.1:80"),
        ("ipc:///run/ps", "127.0.0.1", "ipc:///run/ps"),
        ("10.9.9.9:5000", "", "10.9.9.9:5000"),
        ("named:5000", "10.0.0.2", "named:5000"),
    ],
)
def test_a_node_is_dialled_where_its_message_came_from_or_where_the_cluster_names_it(
    told: str, origin: str, dials: str
) -> None:
    assert dialled(told, origin, {"named:5000"}) == dials


@pytest.mark.parametrize("told", ["ipc:///run/ps", "inproc://ps", "nonsense", "", "10.0.0.2:"])
def test_an_address_that_no_other_machine_can_have_is_refused(told: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        dialled(told, "10.0.0.2")
