"""Waits for ZeroMQ sockets and plain descriptors with few system calls.

ZeroMQ's own poll queries each of its sockets before and after every wait. The descriptor of such a socket is readable
while it has an event that was not yet queried. So only those sockets must be queried that were used since their last
query, or whose descriptor is readable.
"""

from __future__ import annotations

import math
import select

import zmq

Socket = zmq.Socket[bytes]


class Poller:
    """Waits until something can be read. Belongs to one thread at a time."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.rounds = 0
        """How often there was a wait; after each an endpoint reads at most one message of each socket."""
        self._sockets: dict[int, Socket] = {}
        self._used: dict[Socket, None] = {}
        """The sockets that must be queried before a wait."""

    def register_fd(self, fd: int) -> None:
        """Add a plain descriptor."""
        self._poll.register(fd, select.POLLIN)

    def register(self, socket: Socket) -> None:
        """Add a socket."""
        fd = int(socket.get(zmq.FD))
        self._sockets[fd] = socket
        self._used[socket] = None
        self._poll.register(fd, select.POLLIN)

    def unregister(self, socket: Socket) -> None:
        """Remove a socket. Call this before it is closed."""
        fd = int(socket.get(zmq.FD))
        self._poll.unregister(fd)
        del self._sockets[fd]
        self._used.pop(socket, None)

    def used(self, socket: Socket) -> None:
        """Note that a socket is about to be read or written, after which its descriptor alone is not reliable. Call
        this before the access, because Ctrl-C may come in between."""
        self._used[socket] = None

    def wait(self, wait_s: float) -> tuple[list[int], list[Socket]]:
        """The descriptors and sockets that can be read. Blocks up to `wait_s` seconds; may return none earlier."""
        self.rounds += 1
        sockets, fds = list[Socket](), list[int]()
        if self._used:
            sockets = [socket for socket in self._used if _readable(socket)]
            self._used = dict.fromkeys(sockets)
        for fd, _ in self._poll.poll(math.ceil(1000 * wait_s) if wait_s > 0 and not sockets else 0):
            socket = self._sockets.get(fd)
            if socket is None:
                fds.append(fd)
            elif socket not in self._used:
                self._used[socket] = None
                if _readable(socket):
                    sockets.append(socket)
        return fds, sockets


def _readable(socket: Socket) -> bool:
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)
