"""Makes the ZeroMQ sockets of endpoints: every option of a socket that carries messages is set here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import zmq

from dps.transport.sockets.addresses import is_loopback, of_url
from dps.transport.sockets.frames import MAX_FRAME_NBYTES

if TYPE_CHECKING:
    from dps.transport.keys.keyring import Credentials
    from dps.transport.sockets.handshake import Choice

BUFFERED, BUFFERED_HERE = 1 << 20, 1 << 18
"""Kernel buffer bytes of a connection, each way, and of one within this machine. There latency is low, so a small
buffer suffices, and its bytes are still in the cache when they are read."""


ANSWERS, OWN = 1000, 65536
"""The most finished messages in a queue of libzmq for a peer: answers of a listener (`backlog.py` has more of them),
and what leaves on a connection that this side opened.

Queues of what came have no mark: while one is full libzmq does not read its connection, and if the peer goes then, the
next heartbeat ends the process (4.3.5, stream_engine_base.cpp, "!_io_error"). `connections.py` bounds their bytes."""


class Sockets:
    """The sockets of one endpoint. Heartbeats are sent five times in `silence_s`, after which a connection ends.

    With `keys`, all that leave the process use CURVE."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], silence_s: float, keys: Credentials | None = None
    ) -> None:
        self._context, self._silence_s, self.keys = context, silence_s, keys

    def router(self, url: str) -> zmq.Socket[bytes]:
        """A socket that will be bound to a URL. Raises NotAuthenticated if the keys of its role were taken away."""
        pair = None if self.keys is None or url.startswith("inproc://") else self.keys.pair()
        socket = self._made(zmq.ROUTER, url)
        if self.keys is not None and pair is not None:
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.CURVE_SECRETKEY, pair.secret)
            socket.set(zmq.ZAP_DOMAIN, self.keys.accepted.domain)
        socket.set(zmq.ROUTER_MANDATORY, 1)
        return socket

    def dealer(self, url: str, keys: Choice | None = None) -> zmq.Socket[bytes]:
        """A socket that will connect to a URL. `keys`: its own, and the listener's.

        It names no ROUTING_ID: the other end gives each connection a route that ends with it, so that nobody can take
        over another's."""
        socket = self._made(zmq.DEALER, url)
        if keys is not None and not url.startswith("inproc://"):
            own, server = keys
            socket.set(zmq.CURVE_PUBLICKEY, own.public)
            socket.set(zmq.CURVE_SECRETKEY, own.secret)
            socket.set(zmq.CURVE_SERVERKEY, server)
        # Not ZMQ_IMMEDIATE: with it libzmq 4.3.5 throws unread messages away when the peer goes, and aborts the
        # process (fq.cpp, "!_more") when that comes between two frames that are being received.
        if not url.startswith("inproc://"):
            socket.set(zmq.RECONNECT_IVL, 50)
            socket.set(zmq.RECONNECT_IVL_MAX, 1000)
            socket.set(zmq.CONNECT_TIMEOUT, 5000)
        return socket

    def monitor(self, socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
        """A socket that receives the events of another one."""
        where = f"inproc://monitor-{os.urandom(16).hex()}"
        socket.monitor(where, events)
        monitor = self._context.socket(zmq.PAIR)
        monitor.set(zmq.LINGER, 0)
        monitor.set(zmq.RCVHWM, 0)  # a full queue here would block libzmq's thread
        monitor.connect(where)
        return monitor

    def _made(self, kind: int, url: str) -> zmq.Socket[bytes]:
        """A socket with the options that both kinds have: limits on counts and sizes, heartbeats, buffers."""
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, ANSWERS if kind == zmq.ROUTER else OWN)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.MAXMSGSIZE, MAX_FRAME_NBYTES)
        if url.startswith("inproc://"):
            return socket
        silence_ms = round(1000 * self._silence_s)
        socket.set(zmq.HANDSHAKE_IVL, 5000)
        socket.set(zmq.HEARTBEAT_IVL, max(1, silence_ms // 5))
        socket.set(zmq.HEARTBEAT_TIMEOUT, silence_ms)
        socket.set(zmq.HEARTBEAT_TTL, silence_ms)
        if url.startswith("tcp://"):
            nbytes = BUFFERED_HERE if is_loopback(of_url(url).host) else BUFFERED
            socket.set(zmq.SNDBUF, nbytes)
            socket.set(zmq.RCVBUF, nbytes)
            if url.startswith("tcp://["):
                socket.set(zmq.IPV6, 1)
        return socket
