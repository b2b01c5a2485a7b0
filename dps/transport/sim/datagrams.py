"""The datagram sockets of a simulated machine. They follow the rules of the real ones (`sockets.datagrams`).

A datagram is in its receiver's queue at once, or its sender learns that there is no room or no receiver. It needs no
connection, partitions do not stop it, and it has no order relative to messages on connections. It waits while the
receiver is stopped, and is lost when the receiver ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf, nextafter
from random import Random

from dps.transport.endpoint import Delivery, Route
from dps.transport.sim.connection import Port
from dps.transport.sim.network import Network
from dps.transport.sim.scheduler import Scheduler
from dps.transport.sim.trace import Trace
from dps.transport.sockets.datagrams import DatagramPeers, fits

ROOM = (1, 10, 512)
"""Sizes of a world's queues, of which one is chosen: the system's usual limits, and one that is often reached."""


class SimulatedSockets:
    """All datagram sockets of one world, by name. There are none if `on` is false."""

    def __init__(self, seed: int | str, on: bool, network: Network, scheduler: Scheduler, trace: Trace) -> None:
        self.on, self.network, self.scheduler, self.trace = on, network, scheduler, trace
        draw = Random(f"{seed}/datagrams")
        self.room = draw.choice(ROOM)
        self.draw, self._names = draw.random, draw.randbytes
        self._open: dict[bytes, Datagrams] = {}

    def open(self, made: Datagrams) -> bytes:
        """Register a new socket; returns its name."""
        name = self._names(16)
        self._open[name] = made
        return name

    def close(self, name: bytes) -> None:
        self._open.pop(name, None)

    def is_open(self, name: bytes) -> bool:
        """Whether a process has a socket of this name."""
        return name in self._open

    def find(self, name: bytes) -> Datagrams | None:
        return self._open.get(name)


class Datagrams:
    """The socket of one endpoint; `name` is b"" if the machine has no such sockets."""

    def __init__(self, sockets: SimulatedSockets, port: Port) -> None:
        self._sockets, self._port = sockets, port
        self.peers = DatagramPeers[bytes](sockets.is_open)
        self._queue: deque[tuple[float, bytes, bytes, list[memoryview]]] = deque()
        """For each datagram: when it can be read, the sender's name, header and frames."""
        self.name = sockets.open(self) if sockets.on else b""

    def pair(self, route: Route, name: bytes, hears: bool) -> bool:
        """As Endpoint.pair."""
        return bool(self.name and name) and self.peers.pair(route, name, hears)

    def send(self, route: Route, header: bytes, views: Sequence[memoryview]) -> bool:
        """Put a message into its receiver's queue; False if it must go through a connection."""
        name = self.peers.written.get(route)
        if name is None or not fits(len(header) + sum(view.nbytes for view in views), 1 + len(views)):
            return False
        target = self._sockets.find(name)
        if target is None:
            self.peers.gone(route)
            return False
        return target._queue_datagram(self, header, views)

    def _queue_datagram(self, source: Datagrams, header: bytes, views: Sequence[memoryview]) -> bool:
        sockets, queue = self._sockets, self._queue
        if len(queue) >= sockets.room:
            return False
        network, here = sockets.network, source._port.owner is self._port.owner
        delay_s = 1e-6 if here else network.latency_s * (1.0 + network.jitter * sockets.draw())
        at = sockets.scheduler.now + delay_s
        if queue and at <= queue[-1][0]:
            at = nextafter(queue[-1][0], inf)
        queue.append((at, source.name, header, [memoryview(bytearray(view)) for view in views]))
        sockets.scheduler.push(at, self._ready, None)
        return True

    def _ready(self, _: None) -> None:
        if self._port.receiver is not None:
            self._port.rouse(self._port.receiver)

    @property
    def ready(self) -> bool:
        """Whether there is a datagram to read."""
        return bool(self._queue) and self._queue[0][0] <= self._sockets.scheduler.now

    def receive(self) -> Delivery | None:
        """The next message of a known peer; messages of others are dropped."""
        sockets = self._sockets
        while self.ready:
            _, name, header, frames = self._queue.popleft()
            route = self.peers.heard(name)
            if route is not None:
                if sockets.trace.deliveries:
                    self._record_event("datagram", len(header), frames)
                return Delivery(route, header, frames)
            self._record_event("unheard", len(header), frames)
        return None

    def _record_event(self, what: str, nbytes: int, frames: Sequence[memoryview]) -> None:
        nbytes += sum(frame.nbytes for frame in frames)
        self._sockets.trace.add(self._sockets.scheduler.now, self._port.owner.name, what, {"nbytes": nbytes})

    def close(self) -> None:
        """Close the socket: unread datagrams are lost, and later senders learn that the name does not exist."""
        self._sockets.close(self.name)
        self._queue.clear()
        self.peers.clear()
