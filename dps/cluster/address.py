"""Addresses of tasks as text, taken apart in one place: HOST:PORT, [IPV6]:PORT, inproc://NAME and ipc://PATH.

Nothing is resolved, so nothing blocks. `dps.transport.sockets.addresses` says what a node
listens on and dials for an address.
"""

from __future__ import annotations

import re
import sys

from dps.errors import ConfigError
from dps.process.record import record, replace

_FORMS = "HOST:PORT, [IPV6]:PORT, inproc://NAME or ipc://PATH"
_HOST = re.compile(r"\*|[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_PORTS = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)
MAX_PORT = 65535
LONGEST_PATH = 107 if sys.platform == "linux" else 103
"""The most bytes of the path of a socket."""
WILDCARDS = ("0.0.0.0", "::", "*")
TOKEN_MARK = "dps1-"
"""A join token begins with it."""


@record
class Address:
    """One address: `host` (an IPv6 one without brackets) and `port` for tcp, `path` (a file or a name) for ipc and
    inproc."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.scheme != "tcp":
            return f"{self.scheme}://{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_token(text: str) -> bool:
    """Whether this is a join token rather than an address."""
    return text.strip().startswith(TOKEN_MARK)


def parse(text: str) -> Address:
    """The parts of an address. Port 0 means "choose one".

    Raises ConfigError (a ValueError) for an address that no server could listen on: no port, a port outside 0 to 65535,
    an empty host, name or path, an unknown scheme, an IPv6 address without brackets."""
    if is_token(text):
        raise ConfigError("got a join token as an address; give it to --join, or to dps.Session(token)")
    scheme, mark, rest = text.partition("://")
    if not mark:
        return _parse_tcp(text)
    if scheme not in ("inproc", "ipc"):
        raise _refused(text, f"for TCP leave {scheme + mark!r} out")
    if not rest or "\0" in rest or rest[0] in "*@":
        raise _refused(text, f"put a {'name' if scheme == 'inproc' else 'path'} after {scheme + mark!r}")
    if scheme == "ipc" and len(rest.encode(errors="surrogatepass")) > LONGEST_PATH:
        raise _refused(text, f"a path has at most {LONGEST_PATH} bytes")
    return Address(scheme, path=rest)


def check_address(text: str) -> None:
    """Refuse an address that no server could listen on. Raises ConfigError; see `parse`."""
    parse(text)


def parse_target(text: str) -> Address:
    """The parts of an address to connect to. Raises ConfigError as `parse` does, and for port 0."""
    address = parse(text)
    if address.scheme == "tcp" and address.port == 0:
        raise ConfigError(f"cannot connect to {address}: port 0 means 'choose one'; give the port that was chosen")
    return address


def split(text: str) -> tuple[str, str | None]:
    """HOST as it is written (an IPv6 address in its brackets) and PORT of a tcp address; None if it has none."""
    host, mark, port = text.rpartition(":")
    return (host, port) if mark and not text.endswith("]") else (text, None)


def at_port(text: str, port: int) -> str:
    """The host of "HOST" or "HOST:PORT" with another port."""
    return f"{split(text)[0]}:{port}"


def with_port(address: Address, port: int) -> Address:
    """The address with the port that was really bound."""
    return replace(address, port=port)


def parse_ports(text: str) -> range:
    """The ports of "5000-5100", or of one number. Raises ConfigError for anything else."""
    found = _PORTS.fullmatch(text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= MAX_PORT:
        raise ConfigError(f"got --ports {text!r}; wanted FIRST-LAST, two ports from 1 to {MAX_PORT}, such as 5000-5100")
    return range(first, last + 1)


def _parse_tcp(text: str) -> Address:
    host, port = split(text)
    if not host or not port:
        raise _refused(text, f"give host and port, such as {host or '127.0.0.1'}:2222")
    found = _host(text, host)
    if not (port.isascii() and port.isdigit()) or len(port) > len(str(MAX_PORT)) or int(port) > MAX_PORT:
        raise _refused(text, f"a port is a number from 0 (choose one) to {MAX_PORT}")
    return Address("tcp", found, int(port))


def _host(text: str, host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        import ipaddress  # only IPv6 needs it

        try:
            return str(ipaddress.IPv6Address(host[1:-1])) and host[1:-1]
        except ValueError:
            raise _refused(text, "what stands in brackets must be an IPv6 address, such as [::1]:2222") from None
    if ":" in host:
        raise _refused(text, "an IPv6 address needs brackets, such as [::1]:2222")
    if not _HOST.fullmatch(host):
        raise _refused(text, "a host is a name of letters, digits, dots and hyphens, or a number such as 127.0.0.1")
    return host


def _refused(text: str, advice: str) -> ConfigError:
    return ConfigError(f"address: got {text!r}, wanted {_FORMS}; {advice}")
