"""Where nodes listen and are dialled: addresses are resolved, and bindings become addresses.

`url` and `listening_url` resolve a host name, which may query DNS and so block. Numeric hosts and `localhost` (always
127.0.0.1) never do.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    import socket


from dps.cluster.address import WILDCARDS, Address, parse, parse_ports, parse_target, split
from dps.errors import ConfigError, NotAuthenticated, Unavailable
from dps.process.record import record, replace


class UnknownHost(Unavailable):
    """A host name has no address: it is written wrongly, or this machine's resolver does not know it."""

    exit_code = 2


def url(text: str) -> str:
    """The URL that libzmq connects to, the same for all spellings of one address. May query DNS.

    Raises ConfigError for a malformed address and port 0, and Unavailable for a host that has no address.
    """
    return listening_url(parse_target(text))


def listening_url(address: Address) -> str:
    """The URL that libzmq binds to. May query DNS."""
    if address.scheme != "tcp":
        return str(address)
    return f"tcp://{replace(address, host=resolve(address.host))}"


def of_url(url: str) -> Address:
    """The address that has this URL."""
    return parse(url.removeprefix("tcp://"))


def resolve(host: str) -> str:
    """The numeric address of a host, IPv4 before IPv6. Raises UnknownHost if it has none. May query DNS."""
    import socket

    if host == "localhost":
        return "127.0.0.1"
    if host == "*":
        return "0.0.0.0"
    if is_numeric(host):
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UnknownHost(f"host {host!r} has no address ({why}); check the name, or give its number") from error
    best = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return str(best[4][0])


def dialled(told: str, origin: str, named: Collection[str] = ()) -> str:
    """The address at which to dial a node that says it is at `told`, in a message that came from the host `origin`.

    That is `told` if the cluster spec has it (`named`), or if the message came from there; else the same port at
    `origin`, so that no message makes this node dial anybody but its sender. `origin` "": this process, or unknown.
    Raises ConfigError for an address that other machines cannot have.
    """
    if not origin or told in named:
        return told
    given = parse(told)
    if given.scheme != "tcp":
        if not is_loopback(origin):
            raise ConfigError(f"got the address {told} from {origin}, wanted HOST:PORT, which other machines can reach")
        return told
    numeric = "127.0.0.1" if given.host == "localhost" else given.host
    here = is_numeric(numeric) and is_loopback(numeric) and is_loopback(origin)
    return told if here or numeric == origin else str(replace(given, host=origin))


def seen_from(place: str, told: str) -> str:
    """The address that a node at `place` was told of another one, as others reach it: 127.0.0.1 there is the host of
    `place`."""
    here, there = parse(place), parse(told)
    if (here.scheme, there.scheme) != ("tcp", "tcp") or not _is_local(there.host) or _is_local(here.host):
        return told
    return str(replace(there, host=here.host))


def _is_local(host: str) -> bool:
    return host == "localhost" or (is_numeric(host) and is_loopback(host))


def is_loopback(host: str) -> bool:
    """Whether a numeric address can be reached from this machine only."""
    if _is_ip(host, 4):
        return host.startswith("127.")
    import ipaddress  # not needed for IPv4

    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def is_numeric(host: str) -> bool:
    """Whether a host is an IPv4 or IPv6 address, not a name."""
    return _is_ip(host, 4) or _is_ip(host, 6)


def _is_ip(host: str, version: int) -> bool:
    import socket

    try:
        if version == 4:
            return bool(socket.inet_pton(socket.AF_INET, host))
        import ipaddress

        return ipaddress.ip_address(host).version == version
    except (OSError, ValueError):
        return False


def origin(source: Any) -> str:
    """The numeric address of the host that a `Delivery.source` names; "" if the message did not come over TCP."""
    try:
        host = "" if source is None else str(source.get("Peer-Address"))
    except zmq.ZMQError:  # inproc
        return ""
    host = host.removeprefix("::ffff:")  # an IPv4 peer of an IPv6 socket
    return host if is_numeric(host) else ""  # of ipc it is "localhost:UID:GID:PID"


def user(source: Any) -> str:
    """Whose key a `Delivery.source` came with (`Accepted.user`); "" if it came without one."""
    try:
        return str(source.get("User-Id"))
    except zmq.ZMQError:
        return ""


@record
class Binding:
    """The settings of a node's own address. Nothing is looked up before it listens."""

    address: str = ""
    """Where to listen: an address, a host name, an interface or a wildcard, with a port or without, and all other forms
    of `Address`. "": the interface that reaches `towards`, or a new socket in its folder."""
    advertise: str = ""
    """HOST[:PORT] that others are told; "": `address`, or for a wildcard the interface that reaches `towards`."""
    ports: str = ""
    """The ports to choose from where the port is 0, "5000-5100"; "": any that the system gives."""
    towards: str = ""
    """The address of the node that this one has to do with, the chief; "": none."""
    trusted: bool = False
    """Whether other machines may reach it, even without keys."""

    @staticmethod
    def of(bind: str | Binding) -> Binding:
        """A binding to an address, or the one that is given."""
        return Binding(bind) if isinstance(bind, str) else bind

    def asked(self) -> Address:
        """Where to listen, with a numeric host if an interface was named or none. The port may be 0. May query DNS.

        Raises ConfigError if it is malformed, and Unavailable if no interface reaches `towards`."""
        if not self.address and self.towards.startswith("ipc://"):
            from dps.transport.private_folders import neighbour

            return parse(f"ipc://{neighbour(parse(self.towards).path)}")
        if not self.address:
            host = self._facing()
            return Address("tcp", "127.0.0.1" if host is None else host)
        made = parse(_with_a_port(self.address))
        if made.scheme != "tcp" or re.fullmatch(r"[0-9.]+|\*|localhost|.*:.*", made.host):
            return made

        return replace(made, host=address_of(made.host)) if is_interface(made.host) else made

    def told(self, bound: Address) -> Address:
        """The address that others are told of one that was bound with its real port."""
        if bound.scheme != "tcp":
            return bound
        if self.advertise:
            given = advertised(self.advertise)
            return replace(given, port=given.port or bound.port)
        if bound.host not in WILDCARDS:
            return bound
        host = self._facing()
        if host is None or is_loopback(host):  # it listens for others, too, and they need another address
            host = outward(bound.host == "::" and host is not None and ":" in host)
        return replace(bound, host=host)

    def _facing(self) -> str | None:
        """The address of the interface that reaches `towards`; None without one."""
        if not self.towards or (to := parse(self.towards)).scheme != "tcp":
            return None
        host = resolve(to.host)
        if is_loopback(host):
            return "::1" if ":" in host else "127.0.0.1"

        return reaching(host)

    def range(self, asked: Address) -> list[int]:
        """The ports to try, in turn. Raises ConfigError for a malformed range."""
        ports = list(parse_ports(self.ports)) if self.ports else []
        return ports if ports and asked.scheme == "tcp" and not asked.port else [asked.port]

    def check_trusted(self, asked: Address, keyed: bool = False) -> bool:
        """Whether other machines can reach this address. May query DNS.

        Raises NotAuthenticated if they can, there are no keys (`keyed`) and `trusted` is false, and UnknownHost if this
        is neither an interface nor a host."""
        try:
            if asked.scheme != "tcp" or is_loopback(resolve(asked.host)):
                return False
        except UnknownHost as error:
            text = f"no interface of this machine is called {asked.host!r} (there are {known()}), and {error}"
            raise UnknownHost(text) from None
        if not self.trusted and not keyed:
            raise NotAuthenticated(
                f"{asked} listens beyond this machine without keys, so everybody who reaches it could read and change "
                "the run; make keys with `dps keys new DIR` and give every task --keys DIR (DPS_KEYS, keys=), or, if "
                "every machine of the network is trusted, --trusted-network (DPS_TRUSTED_NETWORK=1, "
                "trusted_network=True)"
            )
        return True


def _with_a_port(text: str) -> str:
    """The address with port 0 if it has none: "eth0", "10.0.0.1", "[::]"."""
    return f"{text}:0" if text and "://" not in text and split(text)[1] is None else text


def advertised(text: str) -> Address:
    """HOST[:PORT] as an address; without a port, port 0. Raises ConfigError if it cannot be told to others."""
    given = parse(_with_a_port(text))
    if given.scheme != "tcp" or given.host in WILDCARDS:
        raise ConfigError(f"got --advertise {text!r}; wanted HOST or HOST:PORT by which other machines reach this one")
    return given


def check_advertised(text: str) -> None:
    """Raise ConfigError for HOST[:PORT] that cannot be told to others, or whose host has no address, seen from here.
    Takes "". May query DNS."""
    if not text:
        return
    try:
        resolve(advertised(text).host)
    except Unavailable as error:
        raise ConfigError(
            f"got --advertise {text!r}; wanted HOST or HOST:PORT by which other machines reach this one: {error}"
        ) from None


_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux."""
_ELSEWHERE = {False: "192.0.2.1", True: "2001:db8::1"}
"""Addresses that belong to nobody, so a route to them is the default route."""


def is_interface(name: str) -> bool:
    """Whether this machine has an interface of this name."""
    import socket

    return any(name == known for _, known in socket.if_nameindex())


def known() -> str:
    """The interfaces of this machine for people, each with its address: "lo 127.0.0.1, eth0 10.0.0.1"."""
    import socket

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
    import socket

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
    import socket

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
    import socket

    try:
        return reaching(_ELSEWHERE[ipv6])
    except Unavailable:
        pass
    names = [name for _, name in socket.if_nameindex() if name != "lo"] if sys.platform == "linux" else []
    read = _ipv6_of if ipv6 else _ipv4_of
    return next(filter(None, map(read, names)), "::1" if ipv6 else "127.0.0.1")


def _ipv4_of(name: str) -> str:
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            got = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(got[20:24])


def _ipv6_of(name: str) -> str:
    """The first IPv6 address of an interface that is not link-local, which needs the interface's name beside it."""
    import socket

    try:
        with open("/proc/net/if_inet6") as file:
            rows = [line.split() for line in file]
    except OSError:
        return ""
    found = [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[5] == name]
    return next((address for address in found if not address.startswith("fe80:")), "")
