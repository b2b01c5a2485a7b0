"""Sends small messages between two processes of one machine as datagrams that bypass ZeroMQ.

A message through ZeroMQ wakes an I/O thread in each of the two processes; a datagram wakes only the receiver. Datagrams
are used if both ends are paired and the receiver's queue has room; else ZeroMQ carries the message. Only ZeroMQ makes
connections and reports their state. The layers above do not rely on any order between the two ways. Datagrams in flight
survive when the connection breaks and comes back, as it does when a process was stopped for some seconds. `peers.py`
decides which peers are heard and written to.

The sockets are files in folders that only their user can enter. So another account can neither write to a socket, nor
take the name of one whose process has ended (decision 76). An endpoint writes to each peer through a socket that is
connected to the peer's, so that the system looks up its path once and not for each datagram; the sender's own name is
in the datagram.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from dps.errors import ConfigError
from dps.process.telemetry import log
from dps.transport.endpoint import Buffer, Delivery, Route
from dps.transport.private_folders import is_private, private_folder, remove

LONGEST_NBYTES = 80 * 1024
"""Longer messages go through ZeroMQ. The system's own limit is some 200 KB. 8,192 row numbers need 32 KB, as
many codes of a keyed table 64 KB."""
PEERS = 4096
"""The most peers that an endpoint knows at one time."""
Name = TypeVar("Name", bytes, str)
"""The name of a datagram socket, of the type in which the endpoint's system tells it with each datagram."""


def fits(nbytes: int, parts: int) -> bool:
    """Whether a message of this size and number of parts (the header and the frames) may be sent as a datagram."""
    return nbytes + 4 * parts + _COUNT.size <= LONGEST_NBYTES


class DatagramPeers(Generic[Name]):
    """The peers of one endpoint, by route and by name. `is_open(name)` tells whether the socket of a name exists."""

    def __init__(self, is_open: Callable[[Name], bool], dropped: Callable[[Name], None] | None = None) -> None:
        """`dropped` is called with each name that is forgotten, but not by `clear`."""
        self._is_open: Callable[[Name], bool] = is_open
        self._dropped: Callable[[Name], None] | None = dropped
        self._paired: dict[Route, Name] = {}
        """The name of every paired peer, by route."""
        self._routes: dict[Name, Route] = {}
        """The same by name: the peers that are heard."""
        self.written: dict[Route, Name] = {}
        """The names of those that may be written to, by route. Only this class changes it."""

    def pair(self, route: Route, name: Name, hears: bool) -> bool:
        """Note that the peer at a route has this name, which replaces any other. `hears`: it knows this endpoint's
        name; otherwise it is written to only once it has written. False if there is no room; then it is not heard.

        If the name was paired at another route, the peer has a new connection, and is written to as before."""
        moved = self._routes.get(name)
        if moved is not None and moved != route:
            hears = hears or moved in self.written
            self.gone(moved)
        before = self._paired.get(route)
        if before != name:
            self.gone(route)
            if not self._has_room():
                return False
        self._paired[route] = name
        self._routes[name] = route
        if hears:
            self.written[route] = name
        return True

    def _has_room(self) -> bool:
        """Whether there is room for one more peer. Only peers whose sockets are closed are dropped to make room."""
        if len(self._paired) >= PEERS:
            for route, name in list(self._paired.items()):
                if not self._is_open(name):
                    self.gone(route)
        return len(self._paired) < PEERS

    def route(self, name: Name) -> Route | None:
        """The route of the peer of this name."""
        return self._routes.get(name)

    def heard(self, name: Name) -> Route | None:
        """Note a datagram from this name; returns the route of its peer, which may be written to from now on, or None
        for an unknown name."""
        route = self._routes.get(name)
        if route is not None and route not in self.written:
            self.written[route] = name
        return route

    def disconnected(self, route: Route) -> None:
        """Note that the connection to a route broke. Do not write to the peer until it writes, because another process
        may be there now. Hear it as before, because it may not know of the break."""
        self.written.pop(route, None)

    def gone(self, route: Route) -> None:
        """Note that the socket of the peer at a route is closed or replaced: drop its name."""
        self.written.pop(route, None)
        name = self._paired.pop(route, None)
        if name is not None and self._routes.get(name) == route:
            del self._routes[name]
            if self._dropped is not None:
                self._dropped(name)

    def clear(self) -> None:
        """Forget everybody."""
        self._paired.clear()
        self._routes.clear()
        self.written.clear()


_SENDER_NBYTES = 8
_COUNT = struct.Struct(f"<{_SENDER_NBYTES}xH")
_ALONE = struct.Struct(f"<{_SENDER_NBYTES}sHI")
"""Precedes a header without frames: the sender's mark (the file name of its socket, as bytes), the number 1 and the
header's length."""
ALONE_AT = _ALONE.size
_LONGEST_ALONE = LONGEST_NBYTES - ALONE_AT
_delivery = partial(tuple.__new__, Delivery)
"""Makes a delivery of a tuple of all fields, in less time than its constructor."""
_lock = threading.Lock()
_folders: dict[int, str] = {}
"""The folder of this process's datagram sockets, by its pid: a forked child gets its own."""


class Direct:
    """An endpoint's datagram socket. Peers reach it by `name`, which is b"" on systems without such sockets.

    Linux has them. Only peers that were paired by `pair` are heard and written to.
    """

    def __init__(self) -> None:
        self.name = b""
        self.fd = -1
        self._socket: socket.socket | None = None
        self._mark = b""
        self._lines: dict[str, socket.socket] = {}
        """A socket for each peer that was written to, connected to the peer's, by its name."""
        self._names: dict[bytes, str] = {}
        """The names of all paired peers, by mark."""
        self._usual: dict[bytes, Route] = {}
        """The routes of peers that have sent datagrams, by mark, until something changes among the peers."""
        self._ready: dict[Route, socket.socket] = {}
        """The sockets of `_lines` for peers that were written to, by route, until something changes."""
        self.peers = DatagramPeers[str](_is_open, self._drop_peer)
        self._buffer = memoryview(bytearray(LONGEST_NBYTES + 1))
        if sys.platform == "linux":
            self._open()

    def _open(self) -> None:
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:
            return
        try:
            made.setblocking(False)
            name = _bind(made)
        except (OSError, ConfigError) as error:
            log.debug("no datagrams, small messages go through ZeroMQ: %s", error)
            made.close()
            return
        self.name, self.fd, self._socket, self._mark = name, made.fileno(), made, _mark_of(name)

    def pair(self, route: Route, name: bytes, hears: bool) -> bool:
        """Note the name of the peer at a route. `hears`: the peer knows this endpoint's name; otherwise it is written
        to only once it has written. Returns whether it is heard from now on. Refused are a name outside a folder
        that only this user can enter, one that no endpoint gave its socket, and one with the mark of another peer."""
        mark, text = _mark_of(name), os.fsdecode(name)
        if self._socket is None or not mark or not os.path.isabs(name) or not is_private(os.path.dirname(name)):
            return False
        self._forget_usual()
        if self._names.get(mark, text) != text or not self.peers.pair(route, text, hears):
            return False
        self._names[mark] = text
        return True

    def _drop_peer(self, name: str) -> None:
        """The peer of this name is forgotten."""
        self._forget_usual()
        self._names.pop(_mark_of(os.fsencode(name)), None)
        if (line := self._lines.pop(name, None)) is not None:
            line.close()

    def _line_to(self, route: Route) -> socket.socket:
        """The socket that writes to a peer. Raises OSError."""
        name = self.peers.written[route]
        line = self._ready[route] = self._lines.get(name) or self._open_line(name)
        return line

    def _open_line(self, name: str) -> socket.socket:
        """A new socket that writes to the peer of this name. Raises OSError."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            line.setblocking(False)
            line.connect(name)
        except BaseException:
            line.close()
            raise
        self._lines[name] = line
        return line

    def paired(self, name: bytes) -> Route | None:
        """See `Endpoint.paired`."""
        return self.peers.route(os.fsdecode(name))

    def disconnected(self, route: Route) -> None:
        """Note that ZeroMQ's connection to a route broke: use ZeroMQ for it until the peer sends a datagram again."""
        self._forget_usual()
        self.peers.disconnected(route)

    def _forget_usual(self) -> None:
        self._usual.clear()
        self._ready.clear()

    def send(self, route: Route, header: bytes, frames: Sequence[Buffer]) -> bool:
        """Hand a message over; False if it must go through ZeroMQ, as to a peer that gets no datagrams. Never
        blocks."""
        line, nbytes = self._ready.get(route), len(header)
        if line is None and route not in self.peers.written:
            return False
        if frames or nbytes > _LONGEST_ALONE:
            data = _joined(self._mark, header, frames)
            if not data:
                return False
        else:
            data = _ALONE.pack(self._mark, 1, nbytes) + header
        try:
            (line or self._line_to(route)).send(data)
        except (ConnectionRefusedError, FileNotFoundError):  # that socket is closed
            self._forget_usual()
            self.peers.gone(route)
            return False
        except OSError:  # the queue or the system's memory is full: only this time
            return False
        return True

    def receive(self) -> Delivery | None:
        """The next message of a known peer; None if there is none. Malformed ones are dropped."""
        buffer, own = self._buffer, self._socket
        while own is not None:
            try:
                nbytes = own.recv_into(buffer)
            except BlockingIOError:
                return None
            except OSError:
                if self._socket is not own:  # it was closed meanwhile, by a handler of a signal
                    return None
                continue
            mark, count, length = _ALONE.unpack_from(buffer)  # of a shorter datagram it is what was there before
            route = self._usual.get(mark)
            if nbytes <= ALONE_AT or (route is None and (route := self._heard_from(mark)) is None):
                continue
            if count == 1 and length == nbytes - ALONE_AT:
                return _delivery((route, bytes(buffer[ALONE_AT:nbytes]), [], None))
            parts = _parts(buffer, nbytes)
            if parts is not None:
                return Delivery(route, parts[0], [memoryview(part) for part in parts[1:]])
        return None

    def _heard_from(self, mark: bytes) -> Route | None:
        """The route of the peer with this mark, which has sent a datagram; None for a stranger."""
        name = self._names.get(mark)
        route = None if name is None else self.peers.heard(name)
        if route is not None:
            self._usual[mark] = route
        return route

    def close(self) -> None:
        self._forget_usual()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with contextlib.suppress(OSError):
                os.unlink(self.name)
            for line in self._lines.values():
                line.close()
            self._lines.clear()
            self._names.clear()
        self.peers.clear()


def _bind(made: socket.socket) -> bytes:
    """Bind a socket in this process's folder; returns its name. Raises OSError, and ConfigError if there is no folder.

    A socket's owner must be able to tell strangers from peers. The name alone does not: any account may bind a name
    without a file (an abstract one) when its owner has died, and then read and write in the place of the dead."""
    for known in (True, False):  # a cleaner of TMPDIR may have removed the folder
        with _lock:
            folder = _folders.get(os.getpid()) if known else None
            if folder is None:
                folder = _folders[os.getpid()] = private_folder()
                atexit.register(_remove_folder, os.getpid(), folder)
        name = os.fsencode(os.path.join(folder, os.urandom(_SENDER_NBYTES).hex()))
        try:
            made.bind(name)
            return name
        except FileNotFoundError:
            if not known:
                raise
    raise AssertionError("unreachable")


def _mark_of(name: bytes) -> bytes:
    """The mark of the socket of this name; b"" if no endpoint gave it this name."""
    try:
        mark = bytes.fromhex(os.path.basename(name).decode())
    except ValueError:
        return b""
    return mark if len(mark) == _SENDER_NBYTES else b""


def _remove_folder(pid: int, folder: str) -> None:
    """Remove the folder of the process of this number at its end, not at that of a forked child."""
    if pid == os.getpid():
        remove(folder)


def _joined(mark: bytes, header: bytes, frames: Sequence[Buffer]) -> bytes:
    """A datagram of a header and frames; b"" if it is too long, or a frame is not contiguous."""
    parts: list[Buffer] = [header]
    lengths = [len(header)]
    for frame in frames:
        view = memoryview(frame)
        if not view.c_contiguous:
            return b""
        lengths.append(view.nbytes)
        parts.append(view.cast("B") if view.nbytes else b"")
    if not fits(sum(lengths), len(parts)):
        return b""
    return b"".join((mark, struct.pack(f"<H{len(parts)}I", len(parts), *lengths), *parts))


def _is_open(name: str) -> bool:
    """Whether a process has a socket of this name; its owner does not notice the check."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(name)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        pass
    return True


def _parts(buffer: memoryview, nbytes: int) -> list[bytes] | None:
    """Header and frames of a datagram, copied; None if it is truncated or malformed."""
    try:
        (count,) = _COUNT.unpack_from(buffer)
        lengths = struct.unpack_from(f"<{count}I", buffer, _COUNT.size)
    except struct.error:
        return None
    at = _COUNT.size + 4 * count
    if not count or not lengths[0] or at + sum(lengths) != nbytes:
        return None
    parts = []
    for length in lengths:
        parts.append(bytes(buffer[at : at + length]))
        at += length
    return parts
