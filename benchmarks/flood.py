"""A million hostile messages at a ps: its memory, its descriptors, and the steps of the run meanwhile.

    python benchmarks/flood.py                # a plain port, and one with keys: without a key, and with a reader's
    python benchmarks/flood.py --messages 100000 --rounds 1

Chief, ps and worker are processes of this machine, and the worker makes small steps. A stranger sends garbage, first to
a ROUTER socket of a process that has nothing to do with the run, which reads and drops it, then to the ps, in turn,
until the ps has got all messages. Where his connection is ended, or takes nothing for 0.1 s, he connects again at once.
The ratio is that of the steps a second in the two cases. Meanwhile each core has work of the lowest priority: small
steps are up to half as fast on cores that rest between them, so a flood that keeps cores awake would make them faster.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, cast

import zmq

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dps.transport.keys import files as key_files  # noqa: E402
from dps.transport.keys import keyring as keys  # noqa: E402

ROUND_S, MOST_ROUNDS, BURST = 1.0, 60, 1000
PATIENCE_S = 0.1
GARBAGE = b"\x93garbage that is no message" * 4
PART = bytes([0, len(GARBAGE)]) + GARBAGE


def main(argv: Sequence[str]) -> int:
    """Measure; a line for each kind of port and peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20, help="at least so many, of 1 s each, in turn")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--drain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--awake", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.role:
        work()
    elif args.drain:
        drain()
    elif args.awake:
        keep_awake()
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = f"{folder}/keys"
            key_files.new(made)
            for what, run_keys, peer_keys in (
                ("plain port", "", ""),
                ("port with keys, peer without", made, ""),
                ("port with keys, peer with a reader's", made, made),
            ):  # fmt: skip
                print(f"{what}: {measured(run_keys, peer_keys, args.messages, args.rounds)}", flush=True)
    return 0


def measured(run_keys: str, peer_keys: str, messages: int, rounds: int) -> str:
    """What a flood does to a run of its own."""
    chief, ps, other = (f"127.0.0.1:{port}" for port in ports(3))
    task = [
        sys.executable,
        "-m",
        "dps.role",
        "--chief",
        chief,
        *(["--keys", run_keys] if run_keys else ["--trusted-network"]),
        "--job",
    ]
    program = ["worker", "--task", "0", "--program", __file__, "--", "--role", "worker"]
    started = [
        start([*task, "chief", "--bind", chief, "--workers", "1"]), start([*task, "ps", "--task", "0", "--bind", ps]),
        start([sys.executable, __file__, "--drain"], f"{other} {run_keys}"), start([*task, *program]),
        *(start([sys.executable, __file__, "--awake"]) for _ in range(os.cpu_count() or 1)),
    ]  # fmt: skip
    server, worker = started[1], started[3]
    try:
        steps(worker)
        before, sent, made, rates = held(server), 0, 0, {"ps": list[float](), "other": list[float]()}
        while (sent < messages and len(rates["ps"]) < MOST_ROUNDS) or len(rates["ps"]) < rounds:
            for name, address in (("other", other), ("ps", ps)):
                flooding = Flood(address, peer_keys)
                rate, count = during(worker, flooding)
                rates[name].append(rate)
                if name == "ps":
                    sent, made = sent + count, made + flooding.connections
        time.sleep(1.0)
        after = held(server)
        ratio = statistics.median(a / b for a, b in zip(rates["ps"], rates["other"], strict=True))
        return (
            f"{sent} messages on {made} connections, {statistics.median(rates['ps']):.0f} steps a second beside "
            f"{statistics.median(rates['other']):.0f}, ratio {ratio:.2f}; memory {before[0] >> 20} MB before and "
            f"{after[0] >> 20} MB after, descriptors {before[1]} and {after[1]}"
        )
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def ports(count: int) -> list[int]:
    """Ports that are free now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return found


def start(command: list[str], told: str = "") -> subprocess.Popen[str]:
    """A process of the benchmark."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DPS_FLOOD": told}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environ, **pipes)  # type: ignore[call-overload, no-any-return]


def held(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Resident bytes and descriptors."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE"), len(os.listdir(f"/proc/{process.pid}/fd"))


def steps(worker: subprocess.Popen[str]) -> int:
    """How many steps the worker has made."""
    print(file=cast(IO[str], worker.stdin), flush=True)
    while not (line := cast(IO[str], worker.stdout).readline()).startswith("steps"):
        if not line:
            raise RuntimeError("the worker has ended")
    return int(line.split()[1])


class Flood:
    """A stranger's messages to one address, in bursts. Where nothing is taken for PATIENCE_S, it connects again."""

    def __init__(self, address: str, key_folder: str) -> None:
        self._host, port = address.split(":")
        self._port, self._key_folder = int(port), key_folder
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self._connection: socket.socket | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self.connections = 0
        self.burst: Callable[[], int] = self._keyed if key_folder else self._raw

    def _raw(self) -> int:
        """A burst without keys, and how many of its messages arrived. libzmq itself would wait before it connects."""
        if self._connection is None:
            return self._connect()
        before = acknowledged(self._connection)
        try:
            self._connection.sendall(PART * BURST)
            return (acknowledged(self._connection) - before) // len(PART)
        except OSError:
            count = max(0, acknowledged(self._connection) - before) // len(PART)
            self._connection.close()
            self._connection = None
            return count

    def _connect(self) -> int:
        """Returns 1 where the listener wants keys: it ends the connection at the greeting."""
        self.connections += 1
        made = socket.create_connection((self._host, self._port))
        made.settimeout(PATIENCE_S)
        ready = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
        try:
            made.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            made.sendall(bytes([4, len(ready)]) + ready)
            left = 65
            while left > 0 and (got := made.recv(left)):
                left -= len(got)
        except OSError:
            left = 1
        if left:
            made.close()
            return 1
        self._connection = made
        return 0

    def _dealer(self) -> zmq.Socket[bytes]:
        self.connections += 1
        folder = keys.read(self._key_folder)
        made, own = self._context.socket(zmq.DEALER), folder.pairs["reader"][0]
        for option, value in (
            (zmq.LINGER, 0), (zmq.SNDHWM, BURST), (zmq.RECONNECT_IVL, 1), (zmq.CURVE_PUBLICKEY, own.public),
            (zmq.CURVE_SECRETKEY, own.secret), (zmq.CURVE_SERVERKEY, folder.public["ps"][0]),
            (zmq.SNDTIMEO, round(1000 * PATIENCE_S)),
        ):  # fmt: skip
            made.set(option, value)
        made.connect(f"tcp://{self._host}:{self._port}")
        return made

    def _keyed(self) -> int:
        """A burst of a reader, and how many of its messages libzmq took."""
        if self._socket is None:
            self._socket = self._dealer()
        for count in range(BURST):
            try:
                self._socket.send(GARBAGE)
            except zmq.Again:
                self._socket.close(0)
                self._socket = None
                return count
        return BURST

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._context.destroy(0)


def acknowledged(connection: socket.socket) -> int:
    """How many bytes the other end of a connection has taken."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    return int(struct.unpack_from("=Q", info, 120)[0])


def during(worker: subprocess.Popen[str], flooding: Flood) -> tuple[float, int]:
    """Steps a second while a flood lasts, and how many messages it had."""
    before, began, count = steps(worker), time.perf_counter(), 0
    while (took := time.perf_counter() - began) < ROUND_S:
        count += flooding.burst()
    made = steps(worker) - before
    flooding.close()
    return made / took, count


def work() -> None:
    """The worker's program: steps, and how many there were, for each line that is read."""
    import threading

    import numpy as np

    import dps

    asked = threading.Semaphore(0)

    def read() -> None:
        for _ in sys.stdin:
            asked.release()

    threading.Thread(target=read, daemon=True).start()
    values = {"a": np.zeros(1000, np.float32)}
    with dps.Session(dps.Server.from_env(), values, optimizer=dps.optim.SGD(0.1)) as session:
        made = 0
        while True:
            session.step(values)
            made += 1
            if asked.acquire(blocking=False):
                print("steps", made, flush=True)


def keep_awake() -> None:
    """Work of the lowest priority, for ever."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass


def drain() -> None:
    """A socket that reads and drops, at the address that DPS_FLOOD names, with the keys of a ps if it names some."""
    address, _, key_folder = os.environ["DPS_FLOOD"].partition(" ")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        if key_folder:
            router.set(zmq.CURVE_SERVER, 1)
            router.set(zmq.CURVE_SECRETKEY, keys.read(key_folder).pairs["ps"][0].secret)
        router.bind(f"tcp://{address}")
        while True:
            router.recv_multipart(copy=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
