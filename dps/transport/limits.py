"""Measures what this machine can do at best: memory, a raw TCP socket, raw ZeroMQ. `dps bench` shows it.

The other end of a socket is a separate process, as a ps is, because a thread would share this one's interpreter lock.
Each limit is a function to call repeatedly, or a context manager that yields such a function.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import zmq

from dps.process.config import environment
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array

BUFFERS = (256 << 10, 1 << 20)
"""Sizes of socket buffers (bytes, each way) with which raw TCP is measured. The faster one is the limit."""
LINGER = 0


def seconds(work: Callable[[], object], at_least_s: float = 0.2, at_least: int = 5) -> list[float]:
    """Seconds of each of several calls, after a first call that is not counted."""
    work()
    found: list[float] = []
    end = time.perf_counter() + at_least_s
    while len(found) < at_least or time.perf_counter() < end:
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return found


def memcpy(nbytes: int) -> Callable[[], object]:
    """One copy of `nbytes` between two buffers that are reused."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    return lambda: np.copyto(target, source)


def shared_copy(runtime: Runtime, nbytes: int) -> Callable[[], object]:
    """One copy of `nbytes` into shared memory, and one out of it. Raises Unavailable if there is none."""
    shared = runtime.share(nbytes)
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)

    def both() -> None:
        np.copyto(shared.array, source)
        np.copyto(target, shared.array)

    return both


def read(values: Array) -> float:
    """Read every value of a float32 array once: the sum of their squares, by the BLAS, as fast as memory allows."""
    flat = values.reshape(-1)
    return float(np.dot(flat, flat))


def reading(nbytes: int) -> Callable[[], object]:
    """Read every value of a float32 array of `nbytes` that is reused."""
    values = np.ones(nbytes // 4, np.float32)
    return lambda: read(values)


@contextmanager
def raw_tcp(send: int, back: int = 1, buffer: int = BUFFERS[0]) -> Iterator[Callable[[], object]]:
    """Send `send` bytes over loopback with `sendall`, then read `back` bytes with `recv_into`, one after the other.

    `buffer`: bytes of each socket's send and receive buffer. The better size depends on the machine.
    """
    with _peer("tcp", str(send), str(back), str(buffer)) as lines:
        client = socket.socket()
        _tune(client, buffer)
        client.connect(("127.0.0.1", int(next(lines))))
        data, into = np.ones(send, np.uint8), np.empty(back, np.uint8)

        def once() -> None:
            client.sendall(data.data)
            _read(client, into.data)

        try:
            yield once
        finally:
            client.close()


@contextmanager
def raw_zmq(nbytes: int, transport: str = "tcp") -> Iterator[Callable[[], object]]:
    """A DEALER asks a ROUTER in another process (a small message) and gets `nbytes` back."""
    with _folder() as folder, _peer("zmq", transport, folder, str(nbytes)) as lines, _dealer(next(lines)) as dealer:

        def once() -> None:
            dealer.send(b"pull")
            dealer.recv(copy=nbytes < 1 << 16)

        yield once


@contextmanager
def raw_barrier(nbytes: int, workers: int = 2, transport: str = "tcp") -> Iterator[Callable[[], object]]:
    """`workers` DEALERs send `nbytes` each; a ROUTER waits for all of them, then answers each with as many bytes.

    This process is one worker; ROUTER and the other workers are processes of their own.
    """
    with (
        _folder() as folder,
        _peer("barrier", transport, folder, str(nbytes), str(workers)) as lines,
        _others(address := next(lines), nbytes, workers - 1),
        _dealer(address) as dealer,
    ):
        data = bytes(nbytes)

        def once() -> None:
            dealer.send(data, copy=False)
            dealer.recv(copy=False)

        yield once


# -- this end -----------------------------------------------------------------------------------------------------


@contextmanager
def _peer(*arguments: str) -> Iterator[Iterator[str]]:
    """Start a serving process; yields the lines that it prints. The first one is its address."""
    command = [sys.executable, "-m", "dps.transport.limits", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            yield (line.strip() for line in process.stdout)
        finally:
            process.kill()


@contextmanager
def _others(address: str, nbytes: int, count: int) -> Iterator[None]:
    if count == 0:
        yield
        return
    with _peer("worker", address, str(nbytes)) as lines, _others(address, nbytes, count - 1):
        next(lines)
        yield


@contextmanager
def _dealer(address: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = LINGER
        dealer.connect(address)
        yield dealer


@contextmanager
def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="dps-bench-") as folder:
        yield folder


# -- the other end ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    """`tcp SEND BACK BUFFER`, `zmq TRANSPORT FOLDER NBYTES`, `barrier TRANSPORT FOLDER NBYTES WORKERS`, `worker ADDRESS
    NBYTES`: serve until killed, or until the other end is gone."""
    kind, *rest = arguments
    if kind == "tcp":
        _serve_tcp(*map(int, rest))
    elif kind == "worker":
        with _dealer(rest[0]) as dealer:
            print("ready", flush=True)
            data = bytes(int(rest[1]))
            while True:
                dealer.send(data, copy=False)
                dealer.recv(copy=False)
    else:
        transport, folder, nbytes, *workers = rest
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.bind("tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{folder}/limit")
            print(bytes(router.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode(), flush=True)
            _serve_zmq(router, bytes(int(nbytes)), int(workers[0]) if workers else 1)


def _serve_zmq(router: zmq.Socket[bytes], data: bytes, workers: int) -> None:
    """Answer when `workers` messages have arrived: a round trip with one, a barrier with more."""
    while True:
        waiting: list[bytes] = []
        while len(waiting) < workers:
            waiting.append(router.recv())
            router.recv(copy=False)
        for worker in waiting:
            router.send(worker, zmq.SNDMORE)
            router.send(data, copy=False)


def _serve_tcp(receive: int, back: int, buffer: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            listener.setsockopt(socket.SOL_SOCKET, option, buffer)
        print(listener.getsockname()[1], flush=True)
        server, _ = listener.accept()
    _tune(server, buffer)
    into, data = np.empty(receive, np.uint8), np.ones(back, np.uint8)
    while _read(server, into.data):
        server.sendall(data.data)


def _tune(end: socket.socket, buffer: int) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        end.setsockopt(socket.SOL_SOCKET, option, buffer)


def _read(end: socket.socket, into: memoryview) -> bool:
    """Fill `into`; False when the other end is gone."""
    place = 0
    while place < len(into):
        got = end.recv_into(into[place:])
        if not got:
            return False
        place += got
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
