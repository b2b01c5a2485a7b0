"""Push and pull against step over a connection of so many bytes a second each way, between real processes.

    sudo python benchmarks/slow_link.py                      # 125 and 600 MB/s, SGD and Adagrad, the ResNet set's bytes

Chief and ps run in one network namespace, the worker in another; what they send each other passes a forwarder that lets
through so many bytes a second in each direction. Linux, as root.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SPACES = {"servers": "dps-link-a", "worker": "dps-link-b"}
PORTS = {2220: "worker", 2222: "worker", 2230: "servers"}
"""Of chief, ps and worker: which side connects to it."""
CLUSTER = {"chief": ["127.0.0.1:2220"], "ps": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2230"]}
NEW_NET = 0x40000000
NBYTES, VARIABLES, CALLS = 102_228_128, 50, 5


def main(argv: Sequence[str]) -> int:
    """Measure; a line for each optimizer and each rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="125e6,600e6", help="bytes a second, comma-separated")
    parser.add_argument("--optimizers", default="SGD,Adagrad")
    parser.add_argument("--forward", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.train:
        train(args.train)
    elif args.forward:
        forward(args.forward)
    elif os.geteuid() != 0 or shutil.which("ip") is None:
        print(
            "slow_link.py makes network namespaces: run it as root, where there is `ip` (of iproute2)", file=sys.stderr
        )
        return 2
    else:
        with spaces():
            for rate in map(float, args.rates.split(",")):
                for optimizer in args.optimizers.split(","):
                    print(f"{rate / 1e6:.0f} MB/s, {optimizer}: {measured(rate, optimizer)}", flush=True)
    return 0


@contextlib.contextmanager
def spaces() -> Iterator[None]:
    """The two network namespaces."""
    try:
        for name in SPACES.values():
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield
    finally:
        for name in SPACES.values():
            subprocess.run(["ip", "netns", "del", name], check=False)


def measured(rate: float, optimizer: str) -> str:
    """What the worker prints, of a cluster of its own."""
    me = [sys.executable, __file__]
    role = [
        sys.executable,
        "-m",
        "dps.role",
        "--cluster",
        json.dumps(CLUSTER),
        "--task",
        "0",
        "--trusted-network",
        "--job",
    ]
    inside = {side: ["ip", "netns", "exec", name] for side, name in SPACES.items()}
    quiet = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    others = [
        subprocess.Popen([*me, "--forward", str(rate)]),
        *(subprocess.Popen([*inside["servers"], *role, job], **quiet) for job in ("chief", "ps")),  # type: ignore[call-overload]
    ]
    try:
        program = ["worker", "--program", __file__, "--", "--train", optimizer]
        told = subprocess.run(
            [*inside["worker"], *role, *program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
        return next((line for line in told.stdout.splitlines() if "step" in line and " s" in line), told.stderr)
    finally:
        for process in others:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def train(optimizer: str) -> None:
    """The worker's program."""
    import numpy as np

    import dps

    params = {f"v{i}": np.zeros(NBYTES // 4 // VARIABLES, np.float32) for i in range(VARIABLES)}
    grads = {name: np.full_like(value, 0.1) for name, value in params.items()}
    chosen = getattr(dps.optim, optimizer)(0.1)
    with dps.Session(dps.Server.from_env(), params, optimizer=chosen, timeout=100, shared_memory=False) as session:
        session.step(grads)
        apart, together = [], []
        for _ in range(CALLS):
            began = time.perf_counter()
            session.push(grads)
            session.pull()
            middle = time.perf_counter()
            session.step(grads)
            apart.append(middle - began)
            together.append(time.perf_counter() - middle)
        print(f"push and pull {statistics.median(apart):.3f} s, step {statistics.median(together):.3f} s", flush=True)


class Gate:
    """Lets so many bytes a second through."""

    def __init__(self, rate: float) -> None:
        self._rate, self._lock, self._free_at = rate, threading.Lock(), 0.0

    def take(self, nbytes: int) -> None:
        """Wait for the turn of these bytes."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 0.002) + nbytes / self._rate
            wait_s = self._free_at - now
        if wait_s > 0:
            time.sleep(wait_s)


def forward(rate: float) -> None:
    """Carry what each side sends to the other's ports, until the process is told to end."""
    gates = {side: Gate(rate) for side in SPACES}
    for port, side in PORTS.items():
        threading.Thread(target=_serve, args=(port, side, gates), daemon=True).start()
    signal.pause()


def _serve(port: int, side: str, gates: dict[str, Gate]) -> None:
    _enter(side)
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            near, _ = listener.accept()
            threading.Thread(target=_link, args=(near, port, side, gates), daemon=True).start()


def _link(near: socket.socket, port: int, side: str, gates: dict[str, Gate]) -> None:
    other = next(each for each in SPACES if each != side)
    _enter(other)
    for _ in range(100):
        try:
            far = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            time.sleep(0.1)
    else:
        near.close()
        return
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=_pump, args=(near, far, gates[side]), daemon=True).start()
    _pump(far, near, gates[other])


def _pump(source: socket.socket, target: socket.socket, gate: Gate) -> None:
    buffer = memoryview(bytearray(1 << 17))
    with contextlib.suppress(OSError):
        while count := source.recv_into(buffer):
            gate.take(count)
            target.sendall(buffer[:count])
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _enter(side: str) -> None:
    """This thread's sockets are of that namespace from here on."""
    descriptor = os.open(f"/var/run/netns/{SPACES[side]}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, NEW_NET):
            raise OSError(ctypes.get_errno(), f"no way into the network namespace {SPACES[side]}")
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
