"""The connections that peers opened to a listener: bounds on what libzmq does not bound, and their ends.

libzmq bounds the finished messages of a connection and the length of each frame. It bounds neither how many connections
there are, nor the frames of a message that is never finished. So the listener's monitor tells which descriptors are
connections, and the kernel how many bytes each has received (Linux). A connection that received too many bytes since it
last finished a message is ended; so is one that brought too many messages that were refused.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import zmq

from dps.process.config import trim_memory
from dps.process.descriptors import most_connections
from dps.process.telemetry import log
from dps.transport.endpoint import Route
from dps.transport.sockets.frames import MAX_FRAME_NBYTES

ACCEPTED, DISCONNECTED = int(zmq.Event.ACCEPTED), int(zmq.Event.DISCONNECTED)
STRIKES, STRIKES_ADMITTED = 32, 256
"""After so many refused messages a connection is ended. A process of another version of dps gets its answers before."""
LOOK_S = 0.5
"""How often the received bytes are looked at."""
LEAD_NBYTES, STRANGERS_NBYTES = 64 << 20, 256 << 20
"""The most bytes that a connection may bring without finishing a message, and all of those together that belong to
processes which nobody has admitted. An admitted one gets its credit on top."""
ENDED, KNOWN = 4096, 8192
"""The most routes that are remembered because they were ended, and because they brought messages."""
_RECEIVED, _NBYTES = 128, 136
"""Where `tcp_info` of Linux has the received bytes, and how much of it is read."""
_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux."""


class _Connection:
    __slots__ = ("base", "fd", "lead", "rounds", "route", "strikes")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.route: Route = b""
        """b"" until its first message has been read."""
        self.base = self.lead = self.strikes = 0
        """The bytes received when it was last known to have finished a message; those since; its refused messages."""
        self.rounds = -1
        """How often the listener had been read when its lead was first too large; -1: it is not."""


class Connections:
    """The connections of one listener. It belongs to the thread of its endpoint."""

    def __init__(self, monitor: zmq.Socket[bytes] | None = None) -> None:
        """`monitor`: brings the listener's ACCEPTED and DISCONNECTED events; None: nobody connects from outside."""
        self.heard: dict[Route, bool] = {}
        """The routes that have brought messages, and whether one has since the last look. `ZmqEndpoint` sets it."""
        self.admitted: Callable[[Route], bool] = lambda route: True
        """Whether the process at a route was admitted."""
        self.serves_strangers = False
        """Whether connections that were not admitted get credit, too: at a worker that runs calls."""
        self.ended: dict[Route, None] = {}
        """Routes whose connection was ended; their messages that are still to be read are dropped."""
        self._gone: dict[Route, None] = {}
        """Routes whose connection is gone. What they brought may still be read when their descriptor is another's."""
        self._credit = MAX_FRAME_NBYTES
        self._monitor = monitor
        self._open: dict[int, _Connection] = {}
        """The open connections, by descriptor."""
        self._at: dict[Route, _Connection] = {}
        """The connections whose route is known, by route."""
        self._told: set[tuple[str, str]] = set()
        self._ends = self._ends_before = 0
        """How many were ended since memory was last returned to the system; the same at the last look."""

    def renew(self, monitor: zmq.Socket[bytes]) -> None:
        """The listener was bound anew: all connections are gone."""
        self._monitor = monitor
        for known in (self._open, self._at, self.heard, self.ended, self._gone):
            known.clear()

    def __len__(self) -> int:
        return len(self._open)

    # -- events -------------------------------------------------------------------------------------------------

    def read_monitor(self) -> bool:
        """Read the monitor. If there are too many connections, shut those that are least needed. Returns whether any
        came or went."""
        changed = self._read_events()
        while self._open and len(self._open) > (most := most_connections()):
            strangers = (each for each in self._open.values() if not self.admitted(each.route))
            worst = next(strangers, None) or next(reversed(self._open.values()))
            self._end_connection(worst, f"there are more than {most}, half of the descriptors of this process")
        return changed

    def _read_events(self) -> bool:
        found = False
        while self._monitor is not None and not self._monitor.closed:
            try:
                event = self._monitor.recv(zmq.NOBLOCK)
                self._monitor.recv(zmq.NOBLOCK)  # the listener's address
            except zmq.Again:
                break
            found = True
            number, fd = struct.unpack_from("=HI", event)
            if number == ACCEPTED:
                self._open[fd] = _Connection(fd)
            elif number == DISCONNECTED and fd in self._open:
                gone = self._open.pop(fd)
                self._forget(gone)
                self._gone[gone.route] = None
                if len(self._gone) > ENDED:
                    del self._gone[next(iter(self._gone))]
        return found

    def _forget(self, connection: _Connection) -> None:
        """Messages of its route are no longer those of this connection."""
        if self._at.pop(connection.route, None) is not None:
            self.heard.pop(connection.route, None)

    def map_route(self, route: Route, source: Any) -> None:
        """A message has been read at a route that may not be in `heard`."""
        if route in self._at or route in self._gone:
            return
        self.read_monitor()
        try:
            connection = self._open.get(int(source.get(zmq.SRCFD)))
        except zmq.ZMQError:  # inproc
            return
        if connection is not None and route not in self.ended and _is_newer(route, connection.route):
            self._forget(connection)
            connection.route, connection.strikes = route, 0
            self._at[route] = connection
        if len(self.heard) > KNOWN + len(self._open):  # what was read after its connection was gone
            for other in self.heard.keys() - self._at.keys():
                del self.heard[other]

    def allow(self, nbytes: int) -> None:
        """An admitted process may send so many bytes as one message, or as messages that wait to be read;
        MAX_FRAME_NBYTES in any case."""
        self._credit = max(nbytes, MAX_FRAME_NBYTES)

    # -- ends ---------------------------------------------------------------------------------------------------

    def blame(self, route: Route, strikes: int = 1) -> None:
        """A message from a route was refused; too many end its connection."""
        connection = self._at.get(route)
        if connection is not None:
            connection.strikes += strikes
            if connection.strikes >= (STRIKES_ADMITTED if self.admitted(route) else STRIKES):
                why = "it brought too many messages that make no sense or that it may not send"
                self._end_connection(connection, why, deaf=True)

    def end_stalled(self, readable: bool, rounds: int) -> None:
        """End the connections that bring bytes and finish no message. `readable`: whether finished messages wait.
        `rounds`: rises each time that the listener is read, which reads one message."""
        self.read_monitor()
        strangers: list[_Connection] = []
        for each in list(self._open.values()):
            trusted = self.serves_strangers or self.admitted(each.route)
            if self._is_leading(each, LEAD_NBYTES + self._credit * trusted, readable, rounds):
                self._end_connection(each, f"it brought {each.lead >> 20} MB and finished no message")
            elif not trusted:
                strangers.append(each)
        strangers.sort(key=lambda each: each.lead)
        while not readable and sum(each.lead for each in strangers) > STRANGERS_NBYTES:
            self._end_connection(
                strangers.pop(), f"strangers brought {STRANGERS_NBYTES >> 20} MB and finished no message"
            )
        if self._ends and self._ends == self._ends_before:  # what they brought was read, or dropped
            self._ends = 0
            trim_memory()
        self._ends_before = self._ends

    def _is_leading(self, each: _Connection, most: int, readable: bool, rounds: int) -> bool:
        """Whether a connection has brought more than `most` bytes since it last finished a message.

        Where messages wait to be read, one of its own may be among them. libzmq reads connections in turn, so after
        some rounds that is known."""
        nbytes = received(each.fd)
        if self.heard.get(each.route):
            self.heard[each.route], each.base = False, nbytes
        each.lead = nbytes - each.base
        if each.lead <= most:
            each.rounds = -1
            return False
        if each.rounds < 0:
            each.rounds = rounds
        return not readable or rounds > each.rounds + 2 * len(self._open)

    def _end_connection(self, connection: _Connection, why: str, deaf: bool = False) -> None:
        """End a connection; what is left of its messages is dropped. `deaf`: the kernel takes nothing more that it
        brings, and libzmq closes it when it misses its heartbeats: until then its peer waits, and does not connect
        again at once. Otherwise it is shut, and its memory is free at once."""
        self._ends += 1
        if connection.route:
            self.ended[connection.route] = None
            if len(self.ended) > ENDED:
                del self.ended[next(iter(self.ended))]
        self._forget(connection)
        if not self._close(connection, why, deaf) and self._open.get(connection.fd) is connection:
            del self._open[connection.fd]

    def _close(self, connection: _Connection, why: str, deaf: bool) -> bool:
        """Returns whether it is open, but deaf. libzmq announces a descriptor's end before it closes it. So the copy
        that is made before the monitor is read is this connection's, or the monitor knows of its end."""
        try:
            with _copied(connection.fd) as copy:
                self._read_events()
                if self._open.get(connection.fd) is not connection:
                    return False
                self._log_ended(host_of(connection.fd), why)
                if deaf and deafen(copy):
                    return True
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, at once
                copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        return False

    def _log_ended(self, host: str, why: str) -> None:
        """Log the first of each host."""
        if (host, why[:16]) not in self._told and len(self._told) < ENDED:
            self._told.add((host, why[:16]))
            log.warning("ended a connection from %s: %s; further ones are not logged", host, why)


def _is_newer(route: Route, other: Route) -> bool:
    """Whether a route was given to a later connection than another one: libzmq counts them in 32 bits. The older of two
    that name one descriptor is that of a connection that is gone."""
    if not isinstance(route, bytes) or not isinstance(other, bytes) or not other:
        return True
    return (int.from_bytes(route[-4:], "big") - int.from_bytes(other[-4:], "big")) % (1 << 32) < 1 << 31


def received(fd: int) -> int:
    """How many bytes a TCP connection has received; 0 if that is not known."""
    if sys.platform != "linux":
        return 0
    try:
        with _copied(fd) as copy:
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _NBYTES)
    except OSError:  # ipc, or it is gone
        return 0
    return int(struct.unpack_from("=Q", info, _RECEIVED)[0]) if len(info) == _NBYTES else 0


def host_of(fd: int) -> str:
    """The other end of a connection; "this machine" if it has no address."""
    try:
        with _copied(fd) as copy:
            peer = copy.getpeername()
    except OSError:
        return "this machine"
    return str(peer[0]) if isinstance(peer, tuple) else "this machine"


def deafen(connection: socket.socket) -> bool:
    """Have the kernel cut all that a TCP connection brings to its headers, so that nothing of it is taken or
    acknowledged, and drop what it has not handed on; False if the system cannot do that."""
    if sys.platform != "linux" or connection.family == socket.AF_UNIX:
        return False
    import ctypes  # here: hardly a connection is ended so

    keep_one_byte = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 1))  # the kernel keeps headers anyway
    connection.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(keep_one_byte)))
    with suppress(BlockingIOError):
        while connection.recv(1 << 20, socket.MSG_DONTWAIT | socket.MSG_TRUNC):
            pass
    return True


@contextmanager
def _copied(fd: int) -> Iterator[socket.socket]:
    """A descriptor of libzmq as a socket. Raises OSError if it is gone."""
    copy = os.dup(fd)
    try:
        made = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with made:
        yield made
