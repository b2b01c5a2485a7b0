"""The signals that an endpoint gets beside its messages: events of its sockets, and calls of other threads."""

from __future__ import annotations

import math
import os
import select
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import zmq

from dps.process.backoff import Backoff


class Wake:
    """An eventfd where the system has one (Linux), else a pair of sockets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pair: tuple[socket.socket, socket.socket] | None = None
        if hasattr(os, "eventfd"):
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._write_fd = self.fd
        else:
            self._pair = socket.socketpair()
            for end in self._pair:
                end.setblocking(False)
            self.fd, self._write_fd = self._pair[0].fileno(), self._pair[1].fileno()

    def set(self) -> None:
        """Make the descriptor readable. Any thread may call it. Never blocks; does nothing once it is closed."""
        with self._lock:  # a closed descriptor's number may already belong to another file
            if self._write_fd < 0:
                return
            try:
                os.write(self._write_fd, (1).to_bytes(8, sys.byteorder))
            except BlockingIOError:
                pass

    def clear(self) -> None:
        """Make it unreadable again. Only the owner may call it."""
        try:
            while os.read(self.fd, 4096) and self._pair is not None:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        with self._lock:
            self._write_fd = -1
        if self._pair is None:
            os.close(self.fd)
            return
        for end in self._pair:
            end.close()


class Signals:
    """The wake descriptor and all monitors, behind one descriptor. Only `call` and `wake` may be used by any thread."""

    def __init__(self) -> None:
        self.woken = False
        """Whether a `wake` has not been heeded yet."""
        self._wake = Wake()
        self._calls: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake.fd, selectors.EVENT_READ, self._wake.clear)
        self.fd = int(cast(Any, self._selector).fileno())  # epoll and kqueue have one

    def watch(self, monitor: zmq.Socket[bytes], attend: Callable[[], None]) -> None:
        """Call `attend` when a monitor has events, and now: the descriptor reports new ones only after all are read."""
        self._selector.register(monitor.fileno(), selectors.EVENT_READ, attend)
        attend()

    def unwatch(self, monitor: zmq.Socket[bytes]) -> None:
        """Stop watching a monitor. Call this before it is closed."""
        self._selector.unregister(monitor.fileno())

    def attend(self, wait_s: float = 0.0) -> None:
        """Handle what there is. Blocks up to `wait_s` seconds."""
        for key, _ in self._selector.select(wait_s):
            key.data()
        while self._calls:
            self._calls.popleft()()

    def call(self, call: Callable[[], None]) -> None:
        """Have the owner call something in its next `attend`."""
        self._calls.append(call)
        self._wake.set()

    def wake(self) -> None:
        """Make the owner's wait end."""
        self.woken = True
        self._wake.set()

    def close(self) -> None:
        self._selector.close()
        self._wake.close()


Socket = zmq.Socket[bytes]


class Poller:
    """Waits until something can be read. Belongs to one thread at a time."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.rounds = 0
        """How often there was a wait; after each an endpoint reads at most one message of each socket."""
        self._sockets: dict[int, Socket] = {}
        self.poll: Callable[[float], list[tuple[int, int]]] = self._poll.poll
        """Returns the descriptors that can be read, also those of sockets, each with `select.POLLIN`. Blocks up to so
        many milliseconds. Only while there are no `used_sockets`."""
        self.used_sockets: dict[Socket, None] = {}
        """The sockets that must be queried before a wait."""

    def register_fd(self, fd: int) -> None:
        """Add a plain descriptor."""
        self._poll.register(fd, select.POLLIN)

    def register(self, socket: Socket) -> None:
        """Add a socket."""
        fd = int(socket.get(zmq.FD))
        self._sockets[fd] = socket
        self.used_sockets[socket] = None
        self._poll.register(fd, select.POLLIN)

    def unregister(self, socket: Socket) -> None:
        """Remove a socket. Call this before it is closed."""
        fd = int(socket.get(zmq.FD))
        self._poll.unregister(fd)
        del self._sockets[fd]
        self.used_sockets.pop(socket, None)

    def used(self, socket: Socket) -> None:
        """Note that a socket is about to be read or written, after which its descriptor alone is not reliable. Call
        this before the access, because Ctrl-C may come in between."""
        self.used_sockets[socket] = None

    def wait(self, wait_s: float) -> tuple[list[int], list[Socket]]:
        """The descriptors and sockets that can be read. Blocks up to `wait_s` seconds; may return none earlier."""
        self.rounds += 1
        sockets: list[Socket] = []
        fds: list[int] = []
        if self.used_sockets:
            sockets = [socket for socket in self.used_sockets if _readable(socket)]
            self.used_sockets = dict.fromkeys(sockets)
        for fd, _ in self._poll.poll(math.ceil(1000 * wait_s) if wait_s > 0 and not sockets else 0):
            socket = self._sockets.get(fd)
            if socket is None:
                fds.append(fd)
            elif socket not in self.used_sockets:
                self.used_sockets[socket] = None
                if _readable(socket):
                    sockets.append(socket)
        return fds, sockets


LOOKED_S = 1e-3
"""The longest time that a thread looks before it sleeps, s. One that sleeps runs again some 40 us after it is woken,
with colder caches."""
DISTURBED_S = 5e-5
"""A look that took longer shows that another thread wanted the core, or the interpreter's lock, s; most take 2 us."""
MOST_SLEPT = 1023
"""After looks in vain at most so many waits sleep at once."""


class Lookout:
    """Waits like `Poller.poll`, but looks again and again for a moment before the thread sleeps. Belongs to one thread.

    Looks are in vain if nothing came in time, or if somebody else wants the core: between two looks the thread offers
    it to others, and a look that took long shows that somebody had it. Then this wait and the next ones sleep."""

    def __init__(self, poll: Callable[[float], list[tuple[int, int]]]) -> None:
        self._poll, self._looks = poll, Backoff(MOST_SLEPT)

    def wait(self, wait_s: float) -> list[tuple[int, int]]:
        """What `Poller.poll` returns. Blocks up to `wait_s` seconds."""
        return self._poll_awake(wait_s) if self._looks.may_try() else self._poll(1000 * wait_s)

    def _poll_awake(self, wait_s: float) -> list[tuple[int, int]]:
        """Look for a while, and then sleep."""
        poll, now = self._poll, time.monotonic
        before = began = now()
        until = before + (wait_s if wait_s < LOOKED_S else LOOKED_S)
        while before < until:
            if ready := poll(0):
                self._looks.record_try(True)
                return ready
            os.sched_yield()
            looked = now()
            if looked - before > DISTURBED_S:
                break
            before = looked
        self._looks.record_try(False)
        return poll(1000 * max(0.0, wait_s - (now() - began)))


def _readable(socket: Socket) -> bool:
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)
