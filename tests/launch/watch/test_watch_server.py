"""The server of a run's page by real HTTP: what it answers, and above all what it does not."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dps.errors import ConfigError
from dps.launch.watch import server as watch_server
from dps.launch.watch.server import REFUSED, WatchServer
from tests.launch.watch.readings import ask, enter, events, of_ps, reading, serving, session
from tests.launch.watch.watched import until

TOKEN = "0123456789abcdef"
SECRET = "the name of the run"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WatchServer]:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker.0.log").write_text("2026-01-01T00:00:00.000Z begins\n")
    with serving(str(tmp_path), TOKEN) as made:
        told = reading(str(tmp_path), {"0": of_ps(1, 5, {"worker:0": session(5)})}, name=SECRET)
        made.feed.add_reading(told)
        made.metrics.add_reading(told)
        yield made


def test_it_listens_on_this_machine_alone(server: WatchServer) -> None:
    assert server.server_address == ("127.0.0.1", server.port) and server.port > 0


def test_the_token_becomes_a_cookie_with_which_the_page_is_there(server: WatchServer) -> None:
    path = server.make_url().partition(str(server.port))[2]
    status, headers, body = ask(server, path)
    assert status == 200 and f"url={server.access.path}" in body and SECRET not in body
    cookie, *rest = headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", f"Path={server.access.path}"} == set(rest)
    status, headers, body = ask(server, server.access.path, headers={"Cookie": cookie})
    assert status == 200 and "<title>dps watch</title>" in body
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer" and headers["x-content-type-options"] == "nosniff"


def test_the_token_is_valid_once(server: WatchServer) -> None:
    path = server.make_url().partition(str(server.port))[2]
    assert ask(server, path)[0] == 200
    status, headers, body = ask(server, path)
    assert (status, body) == (403, REFUSED) and "set-cookie" not in headers


def test_without_token_or_cookie_nothing_is_told(server: WatchServer) -> None:
    page = server.access.path
    cookie = enter(server)
    paths = [
        "/",
        "/?token=",
        "/?token=x",
        "/?token=x&token=y",
        page,
        f"{page}events",
        f"{page}save",
        "/favicon.ico",
        "//",
        "*",
    ]
    for path in paths:
        for headers in ({}, {"Cookie": "dps-watch=0"}, {"Cookie": cookie[:-1]}):
            status, found, body = ask(server, path, headers=headers)
            assert (status, body) == (403, REFUSED), path
            assert "set-cookie" not in found and SECRET not in str(found)
    assert ask(server, f"{page}nothing", headers={"Cookie": cookie})[0] == 404
    assert ask(server, f"{page}../../etc/passwd", headers={"Cookie": cookie})[0] == 404


@pytest.mark.parametrize("host", ["example.org", "localhost.example.org", "127.0.0.1.example.org:80", ""])
def test_another_host_name_is_refused_also_with_token_and_cookie(server: WatchServer, host: str) -> None:
    cookie = enter(server)
    token_path = server.make_url().partition(str(server.port))[2]
    for path in (token_path, server.access.path, f"{server.access.path}events", "/metrics"):
        told = {"Host": host, "Cookie": cookie, "Authorization": f"Bearer {TOKEN}"}
        status, headers, body = ask(server, path, headers=told)
        assert status == 421 and SECRET not in body and "set-cookie" not in headers
    assert ask(server, token_path)[0] == 200  # the token was not used up
    assert ask(server, server.access.path, headers={"Host": f"localhost:{server.port}", "Cookie": cookie})[0] == 200


@pytest.mark.parametrize(
    "method", ["POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "X"]
)
def test_any_method_but_get_is_refused(server: WatchServer, method: str) -> None:
    cookie = enter(server)
    token_path = server.make_url().partition(str(server.port))[2]
    for path in (server.access.path, token_path, "/metrics"):
        told = {"Cookie": cookie, "Authorization": f"Bearer {TOKEN}"}
        status, headers, body = ask(server, path, method, told)
        assert (status, headers["allow"], body) == (405, "GET", "")
    assert ask(server, token_path)[0] == 200


NO_REQUESTS = [
    b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("raw", NO_REQUESTS)
def test_what_is_no_request_gets_no_figures(server: WatchServer, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(raw)
        answer = b""
        while data := connection.recv(4096):
            answer += data
    assert re.match(rb"HTTP/1.1 (400|414|421|505) |$", answer) and SECRET.encode() not in answer


def test_a_page_is_sent_all_first_and_then_what_is_new(server: WatchServer, tmp_path: Path) -> None:
    cookie = enter(server)
    with events(server.port, server.access.path, cookie) as news:
        first = next(news)
        assert first["status"]["name"] == SECRET
        assert first["lines"] == [["2026-01-01T00:00:00.000Z", "worker:0", "begins"]]
        assert [point[1] for point in first["points"]] == [5]
        with (tmp_path / "logs" / "worker.0.log").open("a") as log:
            log.write("2026-01-01T00:00:01.000Z \x1b[1mgoes on\x1b[0m\n")
        server.feed.add_reading(reading(str(tmp_path), {"0": of_ps(1, 7, {"worker:0": session(7)})}))
        second = next(news)
        assert [point[1] for point in second["points"]] == [7] and second["status"]["training"]["step"] == 7
        assert [line[2] for line in second["lines"]] == ["goes on"] and "curves" not in second
        server.feed.close()
        assert list(news) == []


def test_a_saved_page_has_the_figures_in_it_and_asks_nobody(server: WatchServer) -> None:
    status, headers, body = ask(server, f"{server.access.path}save", headers={"Cookie": enter(server)})
    assert status == 200 and headers["content-disposition"] == 'attachment; filename="dps-run-4.html"'
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', body, re.S)
    assert data and json.loads(data[1])["status"]["name"] == SECRET
    assert not re.search(r"(src|href)=\"(?!data:|save)|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", body)


def test_prometheus_needs_its_token(server: WatchServer, tmp_path: Path) -> None:
    status, headers, body = ask(server, "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4") and "dps_step 5.0" in body
    for headers in ({}, {"Authorization": "Bearer x"}, {"Cookie": enter(server)}):
        status, found, body = ask(server, "/metrics", headers=headers)
        assert status == 401 and found["www-authenticate"].startswith("Bearer") and "dps_" not in body
    with serving(str(tmp_path)) as without:
        assert ask(without, "/metrics", headers={"Authorization": "Bearer "})[0] == 401


def test_a_port_that_is_taken_is_one_line_with_what_to_try(server: WatchServer, tmp_path: Path) -> None:
    wanted = f"port {server.port} of 127.0.0.1 is taken; leave --port out and dps watch takes a free one"
    with pytest.raises(ConfigError, match=wanted), serving(str(tmp_path), port=server.port):
        pass


def test_connections_are_few_and_one_that_says_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_server, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(watch_server.PageRequest, "timeout", 0.3)
    with serving(str(tmp_path)) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(4)]
        assert sum(each.recv(1) == b"" for each in silent) == 4  # one at once, three when they were silent for too long
        # Its thread lets a connection go a moment after it has closed it.
        until(lambda: server._free._value == 3)
        assert ask(server, "/")[0] == 403
        for each in silent:
            each.close()
