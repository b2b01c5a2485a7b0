"""Who may read the page of a run: tokens, cookies, hosts, and the file of the token for Prometheus."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dps.errors import ConfigError
from dps.launch.watch.access import Access, is_own_host, read_metrics_token


def test_a_token_is_valid_once_and_a_new_one_replaces_it() -> None:
    access = Access()
    assert not access.use_token("")
    first = access.make_token()
    assert not access.use_token(first[:-1]) and access.use_token(first) and not access.use_token(first)
    old, new = access.make_token(), access.make_token()
    assert not access.use_token(old) and access.use_token(new)


def test_a_cookie_opens_its_own_path_and_no_other() -> None:
    access, other = Access(), Access()
    pair, *attributes = access.set_cookie().split("; ")
    assert sorted(attributes) == ["HttpOnly", f"Path={access.path}", "SameSite=Strict"]
    assert access.may_see(access.path, [f"a=b; {pair}; c=d"], None)
    assert access.may_see(access.path + "events", ["a=b", pair], "same-origin")
    assert not access.may_see(other.path, [pair], None)
    assert not other.may_see(other.path, [pair], None)
    assert not access.may_see(access.path, [], None) and not access.may_see("/", [pair], None)
    assert not access.may_see(access.path, [f"{pair}0", pair[:-1], "dps-watch=é"], None)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "else"])
def test_what_another_site_or_another_port_asks_for_is_refused_with_the_cookie_too(site: str) -> None:
    access = Access()
    assert not access.may_see(access.path, [access.set_cookie().partition(";")[0]], site)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "LOCALHOST"])
def test_this_machine_has_these_names(host: str) -> None:
    assert is_own_host([host])


@pytest.mark.parametrize(
    "hosts",
    [
        [], [""], ["example.org"], ["127.0.0.1.example.org"], ["localhost.example.org:80"], ["127.0.0.1:"],
        ["127.0.0.1:80:80"],
        ["127.0.0.1", "127.0.0.1"], ["[::1]:80"], ["0.0.0.0"], ["127.0.0.2"], ["127.0.0.1:80\x00"], ["user@127.0.0.1"],
    ],
)  # fmt: skip
def test_and_no_others(hosts: list[str]) -> None:
    assert not is_own_host(hosts)


def test_prometheus_shows_one_bearer_token() -> None:
    access = Access("s" * 20)
    assert access.may_measure([f"Bearer {'s' * 20}"]) and access.may_measure([f"bearer  {'s' * 20} "])
    for wrong in ([], [""], ["Bearer"], ["Bearer "], [f"Basic {'s' * 20}"], [f"Bearer {'s' * 19}"]):
        assert not access.may_measure(wrong)
    assert not access.may_measure([f"Bearer {'s' * 20}"] * 2)
    assert not Access("").may_measure(["Bearer "])


def test_a_token_file_that_is_not_there_is_made_for_this_account_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = read_metrics_token(str(path))
    assert len(made) == 32 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_metrics_token(str(path)) == made == path.read_text().strip()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    read_metrics_token(str(path))
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"open to other accounts .mode {mode:o}.; to close it: chmod 600"):
        read_metrics_token(str(path))


@pytest.mark.parametrize("text", ["", "short", "two words of a token", "é" * 20, "x" * 20 + "\nmore"])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="has no token: wanted 16 or more letters"):
        read_metrics_token(str(path))


def test_what_is_no_file_or_another_accounts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IsADirectoryError):
        read_metrics_token(str(tmp_path))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="wanted a regular file of this account"):
        read_metrics_token(str(tmp_path / "pipe"))
    read_metrics_token(str(tmp_path / "token"))
    os.chown(tmp_path / "token", 1234, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(ConfigError, match="wanted a regular file of this account"):
        read_metrics_token(str(tmp_path / "token"))
