"""Addresses of nodes: "HOST:PORT" (tcp), "tcp://HOST:PORT", "ipc://PATH" and "inproc://NAME".

Parsing never uses the network. `url` and `listening_url` resolve a host name, which may query DNS and so block.
Numeric hosts and `localhost` (always 127.0.0.1) never do.
"""

from __future__ import annotations

import re
import socket

import zmq

from dps.errors import ConfigError, NotAuthenticated, Unavailable
from dps.record import record, replace

_HOST = re.compile(r"\*|[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_FORMS = '"HOST:PORT", "tcp://HOST:PORT", "ipc://PATH" or "inproc://NAME"'


@record
class Address:
    """One address: `host` and `port` for tcp, `path` (a file or a name) for ipc and inproc."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    prefix: str = ""
    """The prefix with which a tcp address was written: "" or "tcp://". Kept, so that addresses compare as text."""

    def __str__(self) -> str:
        if self.scheme != "tcp":
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.prefix}{host}:{self.port}"


def parse(text: str) -> Address:
    """The parts of an address. Raises ConfigError if it is malformed."""
    scheme, found, rest = text.partition("://")
    if not found:
        return _parse_tcp(text, text, "")
    if scheme == "tcp":
        return _parse_tcp(text, rest, "tcp://")
    if scheme not in ("ipc", "inproc"):
        raise ConfigError(f"address {text!r} begins with {scheme!r}; write {_FORMS}")
    if not rest or "\0" in rest or rest[0] in "*@":
        raise ConfigError(f"address {text!r} names no {'file' if scheme == 'ipc' else 'endpoint'}; write {_FORMS}")
    if scheme == "ipc" and len(rest.encode()) > zmq.IPC_PATH_MAX_LEN:
        longest = zmq.IPC_PATH_MAX_LEN
        raise ConfigError(f"address {text!r} has {len(rest.encode())} bytes of path; at most {longest} are possible")
    return Address(scheme, path=rest)


def _parse_tcp(text: str, rest: str, prefix: str) -> Address:
    host, found, port = rest.rpartition(":")
    if not found:
        raise ConfigError(f"address {text!r} has no port; write {_FORMS}")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ConfigError(f"address {text!r} has port {port!r}; a port is a number from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_ip(host, 6):
            raise ConfigError(f"address {text!r} has {host!r} in brackets, which is no IPv6 address")
    elif not _HOST.fullmatch(host):
        raise ConfigError(f"address {text!r} has host {host!r}; write {_FORMS}, IPv6 as [::1]:PORT")
    return Address("tcp", host, int(port), prefix=prefix)


def url(address: Address) -> str:
    """The URL that libzmq connects to, the same for all spellings of one address. May query DNS.

    Raises ConfigError for port 0 and Unavailable for a host that has no address.
    """
    if address.scheme != "tcp":
        return str(address)
    if address.port == 0:
        raise ConfigError(f"cannot connect to {address}: port 0 means 'choose one'; give the port that was chosen")
    return str(replace(address, host=resolve(address.host), prefix="tcp://"))


def listening_url(address: Address) -> str:
    """The URL that libzmq binds to. Raises NotAuthenticated if other machines could reach it. May query DNS."""
    if address.scheme != "tcp":
        return str(address)
    host = resolve(address.host)
    if not is_loopback(host):
        raise NotAuthenticated(
            f"{address} listens beyond this machine without keys, and keys are not yet supported; "
            f"use 127.0.0.1:{address.port}, and an ssh tunnel to reach it from other machines"
        )
    return str(replace(address, host=host, prefix="tcp://"))


def with_port(address: Address, port: int) -> Address:
    """The address in the same spelling, with the port that was really bound."""
    return replace(address, port=port)


def resolve(host: str) -> str:
    """The numeric address of a host, IPv4 before IPv6. Raises Unavailable if it has none. May query DNS."""
    if host == "localhost":
        return "127.0.0.1"
    if host == "*":
        return "0.0.0.0"
    if _is_ip(host, 4) or _is_ip(host, 6):
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"host {host!r} has no address ({error}); check the name, or give its number") from error
    best = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return str(best[4][0])


def is_loopback(host: str) -> bool:
    """Whether a numeric address can be reached from this machine only."""
    if _is_ip(host, 4):
        return host.startswith("127.")
    import ipaddress  # not needed for IPv4

    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _is_ip(host: str, version: int) -> bool:
    try:
        if version == 4:
            return bool(socket.inet_pton(socket.AF_INET, host))
        import ipaddress

        return ipaddress.ip_address(host).version == version
    except (OSError, ValueError):
        return False
