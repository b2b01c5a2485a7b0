"""The processes of scale_out.py, each in the namespace of its machine: workers of dps, and both ends of raw TCP.

    scale_out_sides.py dps    {"task": 0, "chief": "10.78.0.1:2220", "keys": "...", "work": "dense", ...}
    scale_out_sides.py raw-ps {"workers": 4, ...}
    scale_out_sides.py raw    {"ps": ["10.78.0.2"], ...}

A worker says `ready`. For each number of calls that it reads from its standard input, it makes as many and writes a
line of JSON: when it began and when each call ended (seconds of the machine's monotonic clock, which all processes
share), and how many bytes left and came on its cable. It ends with its standard input.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.links import on_the_cable  # noqa: E402

VARIABLES = 100
TABLE_ROWS, DIM = 1_000_000, 64
ROW_NBYTES, NUMBER_NBYTES = 4 * DIM, 4
LISTS = 48
"""How many lists of rows a worker uses in turn: more than a session remembers."""
PORT = 2221
BLOCK = 1 << 18
AT_ONCE, AFTER, TOGETHER = range(3)
"""When a raw ps answers: as the request comes; when all of it is here; when that of every worker is here."""
HEADER = struct.Struct("!QQB")
"""Of a raw request: its bytes, those of the answer, and when it is answered."""


def main(argv: Sequence[str]) -> int:
    """Run one side."""
    side, about = argv[0], json.loads(argv[1])
    if side == "raw-ps":
        serve(about["workers"])
    elif side == "raw":
        with RawCalls(about) as call:
            answer_orders(call)
    else:
        train(about)
    return 0


def answer_orders(call: Callable[[], object]) -> None:
    """Make calls as the standard input says, until it ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        before, times = on_the_cable(), [time.monotonic()]
        for _ in range(int(line)):
            call()
            times.append(time.monotonic())
        moved = sum(on_the_cable()) - sum(before)
        print(json.dumps({"times": times, "nbytes": moved}), flush=True)


def row_lists(task: int, taken: int, count: int = LISTS) -> Iterator[Any]:
    """Lists of distinct rows in turn, drawn evenly: each ps has as many of them as any other, but for chance."""
    import numpy as np

    draw = np.random.default_rng(task)
    made = [draw.permutation(np.unique(draw.integers(0, TABLE_ROWS, 2 * taken)))[:taken] for _ in range(count)]
    return itertools.cycle(made)


# -- dps --------------------------------------------------------------------------------------------------------


def train(about: dict[str, Any]) -> None:
    """A worker of dps."""
    import numpy as np

    import dps

    dense, taken = about["work"] != "rows", about["rows"]
    params: dict[str, Any]
    if dense:
        shape = (about["nbytes"] // 4 // VARIABLES,)
        params = {f"v{i}": dps.Variable(shape=shape, init=dps.init.Zeros()) for i in range(VARIABLES)}
        gradients = {name: np.full(shape, 0.1, np.float32) for name in params}
    else:
        params = {"table": dps.Variable(shape=(TABLE_ROWS, DIM), init=dps.init.Zeros(), sparse=True)}
        values, lists = np.ones((taken, DIM), np.float32), row_lists(about["task"], taken)
    server = dps.Server(None, "worker", about["task"], chief=about["chief"], keys=about["keys"])
    settings = {"update": about["update"], "partitioner": None if dense else dps.partition.Fixed(about["ps"])}
    with dps.Session(server, params, optimizer=dps.optim.SGD(0.01), timeout=600, **settings) as session:

        def rows() -> None:
            chosen = next(lists)
            session.lookup("table", chosen)
            session.push({"table": dps.Rows(chosen, values)})

        works: dict[str, Callable[[], object]] = {
            "rows": rows, "push": lambda: session.push(gradients), "pull": lambda: session.pull(),
            "step": lambda: session.step(gradients),
        }  # fmt: skip
        answer_orders(works[about["work"]])
    server.stop()


# -- raw TCP ----------------------------------------------------------------------------------------------------


def requests_of(work: str, update: str, nbytes: int, rows: int) -> list[tuple[int, int, int]]:
    """The requests of one call, in turn: bytes up, bytes down, and when they are answered. Of all ps together.

    The least that a call needs: a synchronous step sends its values when all gradients are here.
    """
    pushed = TOGETHER if update == "sync" else AFTER
    if work == "rows":
        numbers = NUMBER_NBYTES * rows
        return [(numbers, rows * ROW_NBYTES, AFTER), (numbers + rows * ROW_NBYTES, 0, pushed)]
    return {
        "pull": [(0, nbytes, AFTER)],
        "push": [(nbytes, 0, pushed)],
        "step": [(nbytes, nbytes, TOGETHER if update == "sync" else AT_ONCE)],
    }[work]


class RawCalls:
    """A context: the call of a worker of raw TCP, with a connection to each ps. Each gets as many of the bytes."""

    def __init__(self, about: dict[str, Any]) -> None:
        self._connections = [connected(address) for address in about["ps"]]
        count = len(self._connections)
        self._requests = [
            (-(-up // count), -(-down // count), when)
            for up, down, when in requests_of(about["work"], about["update"], about["nbytes"], about["rows"])
        ]
        self._threads = ThreadPoolExecutor(2 * count)
        self._data = memoryview(bytes(max(up for up, _, _ in self._requests)))

    def __enter__(self) -> Callable[[], object]:
        return self._call

    def __exit__(self, *error: object) -> None:
        for connection in self._connections:
            connection.close()
        self._threads.shutdown()

    def _call(self) -> None:
        for up, down, when in self._requests:
            header = HEADER.pack(up, down, when)
            sent = [self._threads.submit(send, each, header, self._data[:up]) for each in self._connections]
            received = [self._threads.submit(receive, each, down + 1) for each in self._connections]
            for each in (*sent, *received):
                each.result()


def serve(workers: int) -> None:
    """A ps of raw TCP, until all its workers have gone."""
    together = threading.Barrier(workers)
    with socket.create_server(("0.0.0.0", PORT), backlog=workers) as listener:
        threads = [threading.Thread(target=answer, args=(listener.accept()[0], together)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def answer(connection: socket.socket, together: threading.Barrier) -> None:
    """Answer the requests of one worker: their bytes, and one more as a result."""
    prepare(connection)
    data = b""
    while header := connection.recv(HEADER.size, socket.MSG_WAITALL):
        up, down, when = HEADER.unpack(header)
        if len(data) != down:
            data = bytes(down)
        sender = threading.Thread(target=send, args=(connection, data))
        if when == AT_ONCE:
            sender.start()
        receive(connection, up)
        if when == TOGETHER:
            together.wait()
        if when != AT_ONCE:
            sender.start()
        sender.join()
        connection.sendall(b"1")


def connected(address: str, within_s: float = 20.0) -> socket.socket:
    """A connection to a ps, which may not listen yet."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return prepare(socket.create_connection((address, PORT), timeout=within_s))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def prepare(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def send(connection: socket.socket, *parts: bytes | memoryview) -> None:
    for part in parts:
        connection.sendall(part)


def receive(connection: socket.socket, count: int) -> None:
    """Read so many bytes. Raises ConnectionError at an early end."""
    room = bytearray(min(count, BLOCK))
    while count:
        got = connection.recv_into(room, min(count, BLOCK))
        if not got:
            raise ConnectionError(f"the other side has ended, {count} bytes before the end")
        count -= got


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
