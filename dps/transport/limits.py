"""What this machine could do at best: memory, a raw TCP socket, raw ZeroMQ. Measured beside dps by `dps bench`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import zmq

CHUNK = 1 << 20


def seconds(work: Callable[[], object], at_least_s: float = 0.2, at_least: int = 5) -> list[float]:
    """Seconds of each of several calls, after one that is not counted."""
    work()
    found: list[float] = []
    end = time.perf_counter() + at_least_s
    while len(found) < at_least or time.perf_counter() < end:
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return found


def memcpy(nbytes: int) -> Callable[[], object]:
    """One copy of `nbytes` between two buffers that stay."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    return lambda: np.copyto(target, source)


@contextmanager
def raw_tcp(nbytes: int) -> Iterator[Callable[[], object]]:
    """Send `nbytes` to a thread of this process over loopback, which reads them all and answers one byte."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    listener.close()
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data, into = np.ones(nbytes, np.uint8), np.zeros(min(nbytes, 16 * CHUNK), np.uint8)

    def read(end: socket.socket, n: int) -> bool:
        while n:
            got = end.recv_into(into.data[: min(n, into.nbytes)])
            if not got:
                return False
            n -= got
        return True

    def serve() -> None:
        while read(server, nbytes):
            server.sendall(b"x")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def once() -> None:
        client.sendall(data.data)
        client.recv(1)

    try:
        yield once
    finally:
        client.close()
        thread.join(2.0)
        server.close()


@contextmanager
def raw_zmq(nbytes: int) -> Iterator[Callable[[], object]]:
    """A DEALER sends `nbytes` to a ROUTER on a thread of this process over tcp and gets as many back."""
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    dealer.connect(f"tcp://127.0.0.1:{port}")
    data = bytes(nbytes)

    def serve() -> None:
        while True:
            frames = router.recv_multipart(copy=False)
            if len(frames[1].buffer) != nbytes:
                return
            router.send_multipart(frames, copy=False)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def once() -> None:
        dealer.send(data, copy=False)
        dealer.recv(copy=False)

    try:
        yield once
    finally:
        dealer.send(b"")
        thread.join(2.0)
        router.close(0)
        dealer.close(0)
        context.term()
