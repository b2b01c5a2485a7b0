"""The ROUTER socket of a node: binds its address and releases it again."""

from __future__ import annotations

import errno
import os
import socket as plain
import stat
import threading
from collections.abc import Callable
from typing import Protocol

import zmq

from dps.cluster.address import Address, with_port
from dps.errors import ConfigError, Unavailable
from dps.process.record import replace
from dps.transport.sockets.addresses import Binding, check_advertised, listening_url, of_url
from dps.transport.sockets.connections import ACCEPTED, DISCONNECTED, Connections
from dps.transport.sockets.options import Sockets


class Watcher(Protocol):
    """An object that watches a name. Any thread may call `rebind_name`, which must not block."""

    def rebind_name(self, url: str, bound: bool) -> None: ...


class Names:
    """The bound names of one context and their watchers. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bound: set[str] = set()
        self._watchers: dict[str, list[Watcher]] = {}

    def opened(self, url: str) -> None:
        """Note that the name is bound now."""
        with self._lock:
            self._bound.add(url)
            for watcher in self._watchers.get(url, ()):
                watcher.rebind_name(url, True)

    def shut(self, url: str) -> None:
        """Note that the name is no longer served."""
        with self._lock:
            self._bound.discard(url)
            for watcher in self._watchers.get(url, ()):
                watcher.rebind_name(url, False)

    def watch(self, url: str, watcher: Watcher) -> None:
        """Tell `watcher` about each change, and at once if the name is bound already."""
        with self._lock:
            self._watchers.setdefault(url, []).append(watcher)
            if url in self._bound:
                watcher.rebind_name(url, True)

    def forget(self, url: str, watcher: Watcher) -> None:
        """Stop telling `watcher`."""
        with self._lock:
            left = [other for other in self._watchers.get(url, ()) if other is not watcher]
            if left:
                self._watchers[url] = left
            else:
                self._watchers.pop(url, None)


_CLOSED = int(zmq.Event.CLOSED | zmq.Event.CLOSE_FAILED)
_CLOSE_WAIT_MS = 1000
_late: list[zmq.Socket[bytes]] = []
"""Monitors of sockets that libzmq has not closed yet. They stay open: its thread would block for ever where it tells an
event that nobody can receive, and no socket of this process works any more."""


class AddressTaken(Unavailable):
    """Another process listens at an address."""


class Listener:
    """A bound ROUTER. Peers reach it at `address`, which has the real port and, unless others are told another one, the
    given spelling.

    More than 12 attributes: it keeps what it listens with, to listen anew when keys are gone."""

    def __init__(self, sockets: Sockets, names: Names, binding: Binding) -> None:
        asked = binding.asked()
        self.inproc = asked.scheme == "inproc"
        self.keyed = sockets.keys is not None and not self.inproc
        self.exposed = binding.check_trusted(asked, self.keyed)
        if asked.scheme == "ipc":
            _clear_stale(asked)
        self._sockets, self._names, self._path = sockets, names, asked.path
        self.connections = Connections()
        self._bound(listening_url(asked), lambda made: _bind_one(made, asked, binding.range(asked), binding.ports))
        if asked.scheme == "tcp":
            asked = with_port(asked, of_url(self._url).port)
        self.address = str(binding.told(asked))
        if self.inproc:
            names.opened(self._url)

    def _bound(self, url: str, bind: Callable[[zmq.Socket[bytes]], None]) -> None:
        """Make the socket, and have `bind` bind it."""
        keys = self._sockets.keys
        self._used = None if keys is None or self.inproc else (keys.pairs[:1], keys.folder.keys)
        self.socket = self._sockets.router(url)
        self.monitor = self._sockets.monitor(self.socket, ACCEPTED | DISCONNECTED)
        try:
            bind(self.socket)
            if self._path and not self.inproc:
                os.chmod(self._path, 0o600)
        except BaseException:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.socket.close(0)
            raise
        self._url = self.socket.get_string(zmq.LAST_ENDPOINT)
        self._file = _inode(self._path) if self._path and not self.inproc else None
        self.connections.renew(self.monitor)

    def is_outdated(self) -> bool:
        """Whether it should use another pair, or it may have let in somebody whose key is gone."""
        keys = self._sockets.keys
        if self._used is None or keys is None:
            return False
        pair, known = self._used
        return pair != keys.pairs[:1] or (known is not keys.folder.keys and bool(known.all() - keys.folder.keys.all()))

    def renew(self) -> None:
        """End all connections and listen again, with the keys that the endpoint has now. Waits some milliseconds.

        Raises NotAuthenticated if it has none any more, and Unavailable if another process took the address."""
        self._close_socket(0.0)
        asked = of_url(self._url)
        self._bound(self._url, lambda made: _bind(made, self._url, asked))

    def close(self, linger_s: float) -> None:
        """Close the socket. Waits until the address is free again (milliseconds), not until the messages have left.

        Does not use `unbind`, which could end a connection before its last messages have left.
        """
        if self.inproc:
            self._names.shut(self._url)
            self.socket.unbind(self._url)
        self._close_socket(linger_s)

    def _close_socket(self, linger_s: float) -> None:
        """libzmq's thread, which moves the bytes of all sockets of this process, waits for ever at an event that nobody
        reads. So the monitor is replaced before it is closed, and the last one brings only the event that is awaited:
        connections end later, if they still send."""
        if self.socket.closed:  # its keys were taken away
            return
        if not self.inproc:
            before, self.monitor = self.monitor, self._sockets.monitor(self.socket, _CLOSED)
            before.close(0)
        self.socket.close(round(1000 * linger_s))
        if not self.inproc and not self.monitor.closed and not self.monitor.poll(_CLOSE_WAIT_MS):
            _late.append(self.monitor)
        else:
            self.monitor.close(0)
        if self._file is not None and _inode(self._path) == self._file:
            os.unlink(self._path)


def check_free(binding: Binding) -> None:
    """Raise what a task with this binding would raise later, when it makes its `Listener`. May query DNS."""
    asked = binding.asked()
    check_advertised(binding.advertise)
    if asked.scheme == "tcp":
        with zmq.Context() as context, context.socket(zmq.ROUTER) as probe:
            probe.set(zmq.IPV6, ":" in asked.host)
            _bind_one(probe, asked, binding.range(asked), binding.ports)


def _bind_one(socket: zmq.Socket[bytes], asked: Address, ports: list[int], named: str) -> None:
    """Bind the first free one of these ports. `named`: the range that they are, as it was given."""
    for port in ports:
        try:
            return _bind(socket, listening_url(replace(asked, port=port)), replace(asked, port=port))
        except AddressTaken:
            if ports == [asked.port]:  # no range
                raise
    raise Unavailable(
        f"cannot listen on {asked.host}: every port of --ports {named} is taken; stop other tasks, or widen it"
    )


def _bind(socket: zmq.Socket[bytes], url: str, asked: Address) -> None:
    try:
        socket.bind(url)
    except zmq.ZMQError as error:
        if error.errno == errno.EADDRINUSE:
            raise _taken(asked) from None
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        number = error.errno or 0
        raise Unavailable(f"cannot listen on {asked}: {zmq.strerror(number)}; {_advice(asked, number)}") from error


def _advice(asked: Address, number: int) -> str:
    """What to try where this address cannot be bound. `number`: the error's."""
    if asked.scheme == "ipc":
        return "look whether its folder exists and this user may write there"
    if number == errno.EADDRNOTAVAIL:
        from dps.transport.sockets.addresses import known

        everywhere = "[::]" if ":" in asked.host else "0.0.0.0"
        return (
            f"no interface of this machine has it, there are {known()}; or listen on all of them: --bind {everywhere}"
        )
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
