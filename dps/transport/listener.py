"""The ROUTER socket of a node: binds its address and releases it again."""

from __future__ import annotations

import errno
import os
import socket as plain
import stat

import zmq

from dps.errors import ConfigError, Unavailable
from dps.record import replace
from dps.transport.address import Address, Binding, listening_url, with_port
from dps.transport.inproc import Names
from dps.transport.sockets import Sockets

_CLOSED = int(zmq.Event.CLOSED | zmq.Event.CLOSE_FAILED)
_CLOSE_WAIT_MS = 1000


class AddressTaken(Unavailable):
    """Another process listens at an address."""


class Listener:
    """A bound ROUTER. Peers reach it at `address`, which has the real port and, unless others are told another one, the
    given spelling."""

    def __init__(self, sockets: Sockets, names: Names, binding: Binding) -> None:
        asked = binding.asked()
        self.exposed = binding.check_trusted(asked)
        url, ports = listening_url(asked), binding.range(asked)
        if asked.scheme == "ipc":
            _clear_stale(asked)
        self._names = names
        self.socket = sockets.router(url)
        try:
            _bind_one(self.socket, asked, ports, binding.ports)
            if asked.scheme == "ipc":
                os.chmod(asked.path, 0o600)
        except BaseException:
            self.socket.close(0)
            raise
        self._monitor = sockets.monitor(self.socket, _CLOSED)
        self._url = self.socket.get_string(zmq.LAST_ENDPOINT)
        self._path = asked.path
        self._file = _inode(asked.path) if asked.scheme == "ipc" else None
        self.inproc = asked.scheme == "inproc"
        if asked.scheme == "tcp":
            asked = with_port(asked, int(self._url.rpartition(":")[2]))
        self.address = str(binding.told(asked))
        if self.inproc:
            names.opened(self._url)

    def close(self, linger_s: float) -> None:
        """Close the socket. Waits until the address is free again (milliseconds), not until the messages have left.

        Does not use `unbind`, which could end a connection before its last messages have left.
        """
        if self.inproc:
            self._names.shut(self._url)
            self.socket.unbind(self._url)
        self.socket.close(round(1000 * linger_s))
        if not self.inproc:
            self._monitor.poll(_CLOSE_WAIT_MS)
        self._monitor.close(0)
        if self._file is not None and _inode(self._path) == self._file:
            os.unlink(self._path)


def _bind_one(socket: zmq.Socket[bytes], asked: Address, ports: list[int], named: str) -> None:
    """Bind the first free one of these ports. `named`: the range that they are, as it was given."""
    for port in ports:
        try:
            return _bind(socket, listening_url(replace(asked, port=port)), replace(asked, port=port))
        except AddressTaken:
            if len(ports) == 1:
                raise
    raise Unavailable(
        f"cannot listen on {asked.host}: every port of --ports {named} is taken; stop other tasks, or give more ports"
    )


def _bind(socket: zmq.Socket[bytes], url: str, asked: Address) -> None:
    try:
        socket.bind(url)
    except zmq.ZMQError as error:
        if error.errno == errno.EADDRINUSE:
            raise _taken(asked) from None
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise Unavailable(f"cannot listen on {asked}: {zmq.strerror(error.errno or 0)}; {_advice(asked)}") from error


def _advice(asked: Address) -> str:
    if asked.scheme == "ipc":
        return "look whether its folder exists and this user may write there"
    return f"try another {'port, or port 0 to have one chosen' if asked.scheme == 'tcp' else 'name'}"


def _taken(asked: Address) -> AddressTaken:
    if asked.scheme == "tcp":
        free = replace(asked, port=0)
        return AddressTaken(f"{asked} is taken by another server; stop that one, or use {free} to have a port chosen")
    return AddressTaken(f"{asked} is taken by another server; stop that one, or use another name")


def _inode(path: str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return None


def _clear_stale(asked: Address) -> None:
    """Remove a socket file whose owner died. Raises Unavailable if a process listens there.

    libzmq itself would always remove the file, and so take the address from a running server.
    """
    try:
        mode = os.lstat(asked.path).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {asked}: {asked.path!r} is a file or folder, not a socket; use another")
    with plain.socket(plain.AF_UNIX, plain.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(asked.path)
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        except OSError as error:
            raise Unavailable(f"cannot tell whether {asked} is taken: {error}; use another path") from error
        else:
            raise _taken(asked)
    try:
        os.unlink(asked.path)
    except FileNotFoundError:
        pass
