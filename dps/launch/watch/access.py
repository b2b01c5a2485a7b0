"""Who may read the page of a run: a token that is valid once, a cookie, the name of the host, a token for Prometheus.

Any account of the machine reaches a port of 127.0.0.1, and any page that the user has open can make the browser ask it.
So nothing is told without a secret, and the page's address has one, too: a browser sends the cookies of 127.0.0.1 to
all of its ports, but those of a path only to requests of that path, which nobody else knows (docs/decisions/0084).
"""

from __future__ import annotations

import os
import re
import stat
import threading
from hmac import compare_digest

from dps.errors import ConfigError
from dps.process import own_files
from dps.transport.current import runtime

COOKIE = "dps-watch"
HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.IGNORECASE)
"""The names of this machine for itself, with any port: a browser behind `ssh -L 9000:127.0.0.1:8000` asks port 9000.
What another name is resolved to is its owner's choice: who asks by it may be a page of that owner (DNS rebinding)."""
LEAST = 16
"""Characters that a token for Prometheus has to have."""
OWN_SITE = ("same-origin", "none")
"""What a browser says of a request that this page or its user made (Sec-Fetch-Site)."""


class Access:
    """The secrets of one `dps watch`. Used by several threads. `metrics_token`: what Prometheus shows; "": it may not
    read."""

    def __init__(self, metrics_token: str = "") -> None:
        self._lock = threading.Lock()
        self._token: str | None = None
        self._cookie, self._metrics_token = secret(), metrics_token
        self.path = f"/{secret()}/"
        """Where the page is."""

    def make_token(self) -> str:
        """A new token for one browser. An earlier one that nobody has used is no longer valid."""
        with self._lock:
            self._token = secret()
            return self._token

    def use_token(self, given: str) -> bool:
        """Whether this is the token. If so it is used up."""
        with self._lock:
            if self._token is None or not is_same(given, self._token):
                return False
            self._token = None
            return True

    def set_cookie(self) -> str:
        """The header that gives a browser the cookie."""
        return f"{COOKIE}={self._cookie}; Path={self.path}; HttpOnly; SameSite=Strict"

    def may_see(self, path: str, cookies: list[str], site: str | None) -> bool:
        """Whether a request may have what is below the page's path. `cookies`: its headers of that name; `site`: its
        header Sec-Fetch-Site, None from a program that is no browser."""
        pairs = [pair.strip() for header in cookies for pair in header.split(";")]
        found = [is_same(pair, f"{COOKIE}={self._cookie}") for pair in pairs]
        return is_same(path[: len(self.path)], self.path) and any(found) and (site is None or site in OWN_SITE)

    def may_measure(self, authorization: list[str]) -> bool:
        """Whether a request may have the figures for Prometheus, by its headers Authorization."""
        if not self._metrics_token or len(authorization) != 1:
            return False
        kind, _, token = authorization[0].partition(" ")
        return kind.lower() == "bearer" and is_same(token.strip(), self._metrics_token)


def secret() -> str:
    """128 random bits as text."""
    return runtime().secret().hex()


def is_same(given: str, wanted: str) -> bool:
    """Compare in a time that does not say how much is right."""
    return compare_digest(given.encode(errors="replace"), wanted.encode())


def is_own_host(hosts: list[str]) -> bool:
    """Whether a request, with these headers Host, was sent to this machine under a name of its own."""
    return len(hosts) == 1 and HOST.fullmatch(hosts[0].strip()) is not None


def read_metrics_token(path: str) -> str:
    """The token that Prometheus has to show, from a file of this account that no other can read. One that is not there
    is made, with a new token. ConfigError for what cannot be used."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, own_files.FILE)
    except FileExistsError:
        return _read_token(path)
    with open(handle, "w", encoding="ascii") as file:
        file.write(f"{(made := secret())}\n")
    return made


def _read_token(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8", errors="replace") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
            raise ConfigError(f"got --metrics-token-file {path}; wanted a regular file of this account")
        if found.st_mode & own_files.OTHERS:
            mode = f"{stat.S_IMODE(found.st_mode):o}"
            raise ConfigError(f"{path} is open to other accounts (mode {mode}); to close it: chmod 600 {path}")
        token = file.read(4096).strip()
    if not re.fullmatch(rf"[!-~]{{{LEAST},}}", token):
        raise ConfigError(
            f"{path} has no token: wanted {LEAST} or more letters, digits and signs without a space; name a file that "
            "is not there, and dps watch makes one"
        )
    return token
