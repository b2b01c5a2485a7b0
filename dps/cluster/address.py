"""Addresses of tasks: HOST:PORT, [IPV6]:PORT, inproc://NAME and ipc://PATH."""

from __future__ import annotations

from dps.errors import ConfigError

_FORMS = "HOST:PORT, [IPV6]:PORT, inproc://NAME or ipc://PATH"
MAX_PORT = 65535
TOKEN_MARK = "dps1-"
"""A join token begins with it."""


def is_token(text: str) -> bool:
    """Whether this is a join token rather than an address."""
    return text.strip().startswith(TOKEN_MARK)


def check_address(address: str) -> None:
    """Refuse an address that no server could listen on.

    Raises ConfigError (a ValueError): no port, a port outside 0 to 65535, an empty host, name or
    path, an unknown scheme, an IPv6 address without brackets. Port 0 means "choose one". Host names
    are not resolved, so nothing blocks.
    """
    if is_token(address):
        raise ConfigError("got a join token as an address; give it to --join, or to dps.Session(token)")
    scheme, mark, rest = address.partition("://")
    if mark:
        if scheme not in ("inproc", "ipc"):
            raise _refused(address, f"for TCP leave {scheme + mark!r} out")
        if not rest:
            raise _refused(address, f"put a {'name' if scheme == 'inproc' else 'path'} after {scheme + mark!r}")
        return
    host, _, port = address.rpartition(":")
    if not host or not port or (address.startswith("[") and address.endswith("]")):
        named = "127.0.0.1" if address.startswith(":") else address.rstrip(":") or "127.0.0.1"
        raise _refused(address, f"give host and port, such as {named}:2222")
    _check_host(address, host)
    if not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise _refused(address, f"a port is a number from 0 (choose one) to {MAX_PORT}")


def takes_any_port(address: str) -> bool:
    """Whether `address`, one that `check_address` accepts, has port 0: the server chooses its port."""
    return "://" not in address and int(address.rpartition(":")[2]) == 0


def _check_host(address: str, host: str) -> None:
    if host.startswith("[") and host.endswith("]"):
        import ipaddress  # only IPv6 needs it

        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise _refused(address, "what stands in brackets must be an IPv6 address, such as [::1]:2222") from None
    elif ":" in host:
        raise _refused(address, "an IPv6 address needs brackets, such as [::1]:2222")
    elif any(letter.isspace() or letter in "/[]," for letter in host):
        raise _refused(address, "a host has no spaces, commas, slashes or brackets")


def _refused(address: str, advice: str) -> ConfigError:
    return ConfigError(f"address: got {address!r}, wanted {_FORMS}; {advice}")
