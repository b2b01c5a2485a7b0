"""Waits for ZeroMQ sockets and plain descriptors with few system calls.

ZeroMQ's own poll asks each of its sockets before and after every wait. The descriptor of such a socket is readable
while something has happened there that nobody has looked at; so only those need to be asked that were used since they
were last asked, or whose descriptor says so.
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
        self._sockets: dict[int, Socket] = {}
        self._used: dict[Socket, None] = {}
        """Those that have to be asked before a wait."""

    def register_fd(self, fd: int) -> None:
        """Wait on a plain descriptor, too."""
        self._poll.register(fd, select.POLLIN)

    def register(self, socket: Socket) -> None:
        """Wait on a socket, too."""
        fd = int(socket.get(zmq.FD))
        self._sockets[fd] = socket
        self._used[socket] = None
        self._poll.register(fd, select.POLLIN)

    def unregister(self, socket: Socket) -> None:
        """Wait on it no longer; before it is closed."""
        fd = int(socket.get(zmq.FD))
        self._poll.unregister(fd)
        del self._sockets[fd]
        self._used.pop(socket, None)

    def used(self, socket: Socket) -> None:
        """It is read from or written to now: its descriptor alone says nothing any more. To be told before, for Ctrl-C
        may come in between."""
        self._used[socket] = None

    def wait(self, wait_s: float) -> tuple[list[int], list[Socket]]:
        """The plain descriptors and the sockets that can be read; none after `wait_s` seconds, and now and then before.
        Blocks."""
        sockets = [socket for socket in self._used if _readable(socket)]
        self._used = dict.fromkeys(sockets)
        fds = []
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
