"""Addresses of nodes: "HOST:PORT" (tcp), "tcp://HOST:PORT", "ipc://PATH" and "inproc://NAME"; and where a node listens.

Parsing never uses the network. `url` and `listening_url` resolve a host name, which may query DNS and so block.
Numeric hosts and `localhost` (always 127.0.0.1) never do.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from typing import Any

import zmq

from dps.errors import ConfigError, NotAuthenticated, Unavailable
from dps.record import record, replace

_HOST = re.compile(r"\*|[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
MAX_PORT = 65535
_PORTS = re.compile(r"([0-9]+)(?:-([0-9]+))?")
WILDCARDS = ("0.0.0.0", "::", "*")
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
    if not (port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
        raise ConfigError(f"address {text!r} has port {port!r}; a port is a number from 0 to {MAX_PORT}")
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
    """The URL that libzmq binds to. May query DNS."""
    return str(replace(address, host=resolve(address.host), prefix="tcp://") if address.scheme == "tcp" else address)


def with_port(address: Address, port: int) -> Address:
    """The address in the same spelling, with the port that was really bound."""
    return replace(address, port=port)


def resolve(host: str) -> str:
    """The numeric address of a host, IPv4 before IPv6. Raises Unavailable if it has none. May query DNS."""
    if host == "localhost":
        return "127.0.0.1"
    if host == "*":
        return "0.0.0.0"
    if is_numeric(host):
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"host {host!r} has no address ({error}); check the name, or give its number") from error
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
    return told if here or numeric == origin else str(replace(given, host=origin, prefix=""))


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
    """What a node is told about its own address. Nothing is looked up before it listens."""

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
            from dps.transport.private import neighbour

            return parse(f"ipc://{neighbour(parse(self.towards).path)}")
        if not self.address:
            host = self._facing()
            return Address("tcp", "127.0.0.1" if host is None else host)
        made = parse(_with_a_port(self.address))
        if made.scheme != "tcp" or re.fullmatch(r"[0-9.]+|\*|localhost|.*:.*", made.host):
            return made
        from dps.transport.interfaces import address_of, is_interface

        return replace(made, host=address_of(made.host)) if is_interface(made.host) else made

    def told(self, bound: Address) -> Address:
        """What others are told of an address that was bound with its real port."""
        if bound.scheme != "tcp":
            return bound
        if self.advertise:
            given = advertised(self.advertise)
            return replace(given, port=given.port or bound.port)
        if bound.host not in WILDCARDS:
            return bound
        host = self._facing()
        if host is None or is_loopback(host):  # it listens for others, too, and they need another address
            from dps.transport.interfaces import outward

            host = outward(bound.host == "::" and host is not None and ":" in host)
        return replace(bound, host=host)

    def _facing(self) -> str | None:
        """The address of the interface that reaches `towards`; None without one."""
        if not self.towards or (to := parse(self.towards)).scheme != "tcp":
            return None
        host = resolve(to.host)
        if is_loopback(host):
            return "::1" if ":" in host else "127.0.0.1"
        from dps.transport.interfaces import reaching

        return reaching(host)

    def range(self, asked: Address) -> list[int]:
        """The ports to try, in turn. Raises ConfigError for a malformed range."""
        ports = list(parse_ports(self.ports)) if self.ports else []
        return ports if ports and asked.scheme == "tcp" and not asked.port else [asked.port]

    def check_trusted(self, asked: Address, keyed: bool = False) -> bool:
        """Whether other machines can reach this address. May query DNS.

        Raises NotAuthenticated if they can, there are no keys (`keyed`) and `trusted` is false."""
        if asked.scheme != "tcp" or is_loopback(resolve(asked.host)):
            return False
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
    return f"{text}:0" if "://" not in text and text and (":" not in text or text.endswith("]")) else text


def advertised(text: str) -> Address:
    """HOST[:PORT] as an address; without a port, port 0. Raises ConfigError if it cannot be told to others."""
    given = parse(_with_a_port(text))
    if given.scheme != "tcp" or given.host in WILDCARDS:
        raise ConfigError(f"got --advertise {text!r}; wanted HOST or HOST:PORT by which other machines reach this one")
    return given


def parse_ports(text: str) -> range:
    """The ports of "5000-5100", or of one number. Raises ConfigError for anything else."""
    found = _PORTS.fullmatch(text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= MAX_PORT:
        raise ConfigError(f"got --ports {text!r}; wanted FIRST-LAST, two ports from 1 to {MAX_PORT}, such as 5000-5100")
    return range(first, last + 1)
