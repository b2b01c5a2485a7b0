"""The ROUTER socket of a node: binds its address and releases it again."""

from __future__ import annotations

import errno
import os
import socket as plain
import stat

import zmq

from dps.errors import ConfigError, Unavailable
from dps.record import replace
from dps.transport.address import Address, listening_url, parse, with_port
from dps.transport.dealer import set_stream_options
from dps.transport.inproc import Names

_CLOSED = int(zmq.Event.CLOSED | zmq.Event.CLOSE_FAILED)
_CLOSE_WAIT_MS = 1000


class Listener:
    """A bound ROUTER. Peers reach it at `address`, which has the real port and the given spelling."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], names: Names, bind: str, silence_s: float) -> None:
        asked = parse(bind)
        url = listening_url(asked)
        if asked.scheme == "ipc":
            _clear_stale(asked)
        self._names = names
        self.socket = context.socket(zmq.ROUTER)
        try:
            set_stream_options(self.socket, url, silence_s)
            self.socket.set(zmq.ROUTER_MANDATORY, 1)
            self.socket.set(zmq.ROUTER_HANDOVER, 1)
            _bind(self.socket, url, asked)
            if asked.scheme == "ipc":
                os.chmod(asked.path, 0o600)
        except BaseException:
            self.socket.close(0)
            raise
        self._monitor = _watch_closing(context, self.socket)
        self._url = self.socket.get_string(zmq.LAST_ENDPOINT)
        self._path = asked.path
        self._file = _inode(asked.path) if asked.scheme == "ipc" else None
        self.inproc = asked.scheme == "inproc"
        if asked.scheme == "tcp":
            asked = with_port(asked, int(self._url.rpartition(":")[2]))
        self.address = str(asked)
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


def _watch_closing(context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    where = f"inproc://monitor-{os.urandom(16).hex()}"
    socket.monitor(where, _CLOSED)
    monitor = context.socket(zmq.PAIR)
    monitor.set(zmq.LINGER, 0)
    monitor.connect(where)
    return monitor


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


def _taken(asked: Address) -> Unavailable:
    if asked.scheme == "tcp":
        free = replace(asked, port=0)
        return Unavailable(f"{asked} is taken by another server; stop that one, or use {free} to have a port chosen")
    return Unavailable(f"{asked} is taken by another server; stop that one, or use another name")


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
