"""The network interfaces of this machine: the address of one by its name, and of the one that reaches a host."""

from __future__ import annotations

import socket
import struct
import sys

from dps.errors import ConfigError, Unavailable

_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux."""
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that belong to nobody, so a route to them is the default route."""


def is_interface(name: str) -> bool:
    """Whether this machine has an interface of this name."""
    return any(name == known for _, known in socket.if_nameindex())


def known() -> str:
    """The interfaces of this machine for people, each with its address: "lo 127.0.0.1, eth0 10.0.0.1"."""
    names = [name for _, name in socket.if_nameindex()]
    if sys.platform != "linux":
        return ", ".join(names)
    found = {name: _ipv4_of(name) or _ipv6_of(name) for name in names}
    return ", ".join(f"{name} {address}" for name, address in found.items() if address)


def address_of(name: str) -> str:
    """The numeric address of an interface, IPv4 before IPv6. Raises ConfigError if it has none."""
    if sys.platform != "linux":
        raise ConfigError(f"got interface {name!r}, wanted its address: names of interfaces are read on Linux only")
    found = _ipv4_of(name) or _ipv6_of(name)
    if not found:
        raise ConfigError(f"interface {name!r} has no address; is it up? (ip address show dev {name})")
    return found


def reaching(host: str) -> str:
    """The numeric address of this machine from which it reaches a numeric host. Sends nothing, does not block.

    Raises Unavailable if no route leads there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # any port: a datagram socket only looks for a route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Unavailable(
            f"no interface of this machine reaches {host} ({error.strerror}); look at its routes (ip route get {host})"
        ) from None


def greets(host: str, port: int, timeout_s: float) -> bool:
    """Whether who listens at a numeric host speaks ZeroMQ's protocol. Blocks up to twice `timeout_s`.

    Raises Unavailable if nobody can be connected to."""
    try:
        with socket.create_connection((host, port), timeout_s) as probe:
            return _signature(probe)
    except OSError as error:
        why = f"no answer for {timeout_s:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise Unavailable(f"port {port} of {host} cannot be connected to: {why}") from None


def _signature(probe: socket.socket) -> bool:
    """Whether the first ten bytes are those of ZMTP."""
    got = b""
    try:
        while len(got) < 10 and (more := probe.recv(10 - len(got))):
            got += more
    except TimeoutError:
        pass
    return len(got) == 10 and got[0] == 0xFF and got[9] == 0x7F


def outward(ipv6: bool = False) -> str:
    """The address by which other machines probably know this one: where its default route begins, else that of any
    interface beyond loopback, else loopback."""
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    try:
        return reaching(_ELSEWHERE[family])
    except Unavailable:
        pass
    names = [name for _, name in socket.if_nameindex() if name != "lo"] if sys.platform == "linux" else []
    read = _ipv6_of if ipv6 else _ipv4_of
    return next(filter(None, map(read, names)), "::1" if ipv6 else "127.0.0.1")


def _ipv4_of(name: str) -> str:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            got = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(got[20:24])


def _ipv6_of(name: str) -> str:
    """The first IPv6 address of an interface that is not link-local, which needs the interface's name beside it."""
    try:
        with open("/proc/net/if_inet6") as file:
            rows = [line.split() for line in file]
    except OSError:
        return ""
    found = [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[5] == name]
    return next((address for address in found if not address.startswith("fe80:")), "")
