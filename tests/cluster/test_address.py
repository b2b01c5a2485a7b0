from __future__ import annotations

import pytest

from dps.cluster.address import check_address, takes_any_port
from dps.errors import ConfigError


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:2222",
        "localhost:0",
        "node-7.example.org:65535",
        "[::1]:2222",
        "[fe80::1%eth0]:80",
        "inproc://ps0",
        "ipc:///tmp/dps/ps0",
    ],
)
def test_an_address_a_server_can_listen_on_is_accepted(address: str) -> None:
    assert check_address(address) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("localhost", "such as localhost:2222"),
        ("localhost:", "such as localhost:2222"),
        (":2222", "such as 127.0.0.1:2222"),
        ("", "such as 127.0.0.1:2222"),
        ("[::1]", "such as [::1]:2222"),
        ("::1:2222", "needs brackets"),
        ("[localhost]:2222", "must be an IPv6 address"),
        ("host:65536", "from 0 (choose one) to 65535"),
        ("host:-1", "from 0 (choose one) to 65535"),
        ("host:http", "from 0 (choose one) to 65535"),
        ("host:²", "from 0 (choose one) to 65535"),
        ("a b:1", "no spaces"),
        ("a:1,b:2", "needs brackets"),
        ("tcp://host:1", "leave 'tcp://' out"),
        ("inproc://", "put a name after"),
        ("ipc://", "put a path after"),
    ],
)
def test_an_address_nobody_could_listen_on_is_refused_with_advice(address: str, advice: str) -> None:
    with pytest.raises(ValueError, match="wanted HOST:PORT") as caught:
        check_address(address)
    assert isinstance(caught.value, ConfigError)
    assert f"got {address!r}" in str(caught.value)
    assert advice in str(caught.value)


def test_only_port_zero_lets_the_server_choose() -> None:
    addresses = ["a:0", "[::1]:0", "a:2220", "inproc://a:0", "ipc:///a:0"]
    assert [takes_any_port(address) for address in addresses] == [True, True, False, False, False]
