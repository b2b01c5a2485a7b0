"""Pull, push and step over a slow connection between two machines: the share of the link, and bytes sent in vain.

    sudo python benchmarks/slow_link.py                      # 1 Gbit/s and 100 Mbit/s, SGD, 50 variables
    sudo python benchmarks/slow_link.py --megabits 100 --optimizers SGD,Adagrad --megabytes 25
    sudo python benchmarks/slow_link.py --trees ../before,. --congestion cubic    # two source trees in turn

Chief and ps run in one network namespace, the worker in another; `tc tbf` limits the link of the former, both ways.
Linux, as root, with iproute2. Share: bytes of values or gradients, each way, for a second, of what the
link carries; a TCP connection with frames of 1,500 bytes can have 0.95 of it. Bytes: those that the kernel counted on
the cable, both ways, for a byte of values or gradients.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.links import Machine, NoLinks, check_tools, on_the_cable, star  # noqa: E402

VARIABLES, CALLS = 50, 3


def main(argv: Sequence[str]) -> int:
    """Measure; some lines for each optimizer and each rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabits", default="1000,100", help="rates of the link, Mbit/s each way")
    parser.add_argument("--optimizers", default="SGD")
    parser.add_argument("--megabytes", type=int, default=0, help="of all values; default: what takes about 4 s")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--congestion", default="", help="of TCP: cubic, bbr, ...; default: this machine's")
    parser.add_argument("--trees", default=str(ROOT), help="folders with dps and this file, measured in turn")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--bare", action="store_true", help="bare TCP sockets instead of dps: what a step could have")
    parser.add_argument("--side", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.train:
        train(*args.train)
        return 0
    if args.side:
        move(*args.side[:2], *map(int, args.side[2:]))
        return 0
    try:
        check_tools()
        measure_all(args)
    except NoLinks as error:
        print(f"slow_link.py: {error}", file=sys.stderr)
        return 2
    return 0


def measure_all(args: argparse.Namespace) -> None:
    """Print the lines of all rates, optimizers, rounds and trees."""
    trees = [Path(tree).resolve() for tree in args.trees.split(",")]
    rates = map(int, args.megabits.split(","))
    for rate, optimizer, _ in itertools.product(rates, args.optimizers.split(","), range(args.rounds)):
        megabytes = args.megabytes or max(8, rate // 5)
        for tree in trees:
            with star({"servers": rate, "worker": 0}, args.congestion) as machines:
                if args.bare:
                    told = bare(machines, rate, megabytes, args.calls)
                else:
                    told = measured(machines, tree, rate, optimizer, megabytes, args.calls)
            print("\n".join([str(tree)] * (len(trees) > 1) + [told]), flush=True)


def measured(
    machines: Mapping[str, Machine], tree: Path, megabits: int, optimizer: str, megabytes: int, calls: int
) -> str:  # fmt: skip
    """What the worker prints, of a cluster of its own."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    chief = f"{machines['servers'].address}:2220"
    role = [sys.executable, "-m", "dps.role", "--trusted-network", "--chief", chief, "--job"]
    inside = {side: machine.enter for side, machine in machines.items()}
    quiet = {"cwd": tree, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    others = [
        subprocess.Popen([*inside["servers"], *role, *flags], **quiet)  # type: ignore[call-overload]
        for flags in (["chief", "--bind", chief, "--workers", "1"], ["ps", "--task", "0"])
    ]
    try:
        file = str(tree / "benchmarks" / "slow_link.py")
        program = ["worker", "--task", "0", "--program", file, "--", "--train"]
        asked = [optimizer, str(megabits), str(megabytes), str(calls)]
        told = subprocess.run(
            [*inside["worker"], *role, *program, *asked], cwd=tree, capture_output=True, text=True, timeout=900,
            check=False, env=environment,
        )  # fmt: skip
        return told.stdout if "share" in told.stdout else told.stdout + told.stderr
    finally:
        for process in others:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def bare(machines: Mapping[str, Machine], megabits: int, megabytes: int, calls: int) -> str:
    """What bare sockets reach where a step's bytes go both ways at once, those back a hundredth of a second later."""
    nbytes = megabytes * 1_000_000
    asked = [machines["servers"].address, *map(str, (nbytes, megabits, calls))]
    ends = [
        subprocess.Popen(
            [*machine.enter, sys.executable, __file__, "--side", side, *asked], stdout=subprocess.PIPE, text=True
        )
        for side, machine in machines.items()
    ]
    seconds = [float(each) for each in [end.communicate(timeout=900)[0] for end in ends][1].split()][1:]
    shares = sorted(nbytes / took / (megabits * 125_000) for took in seconds)
    return (
        f"{megabits} Mbit/s, bare TCP, {megabytes} MB: step: {statistics.median(seconds):.3f} s, "
        f"share {statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})\n"
    )


def move(side: str, server: str, nbytes: int, megabits: int, calls: int) -> None:
    """One end of `bare`. The worker's prints its seconds."""
    address = (server, 2221)
    if side == "servers":
        with socket.create_server(address) as listener:
            connection = listener.accept()[0]
    else:
        time.sleep(1.0)
        connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data, room = bytes(nbytes), bytearray(1 << 18)

    def receive(count: int) -> None:
        while count:
            count -= connection.recv_into(room, min(count, len(room)))

    for _ in range(calls + 1):
        began, first = time.perf_counter(), megabits * 1250 if side == "servers" else 0
        receive(first)
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        receive(nbytes - first)
        sender.join()
        if side == "worker":
            print(time.perf_counter() - began)


def train(optimizer: str, megabits: str, megabytes: str, calls: str) -> None:
    """The worker's program."""
    import numpy as np

    import dps

    nbytes = int(megabytes) * 1_000_000
    params = {f"v{i}": np.zeros(nbytes // 4 // VARIABLES, np.float32) for i in range(VARIABLES)}
    grads = {name: np.full_like(value, 0.1) for name, value in params.items()}
    chosen = getattr(dps.optim, optimizer)(0.1)
    before, began = on_the_cable(), time.perf_counter()
    with dps.Session(dps.Server.from_env(), params, optimizer=chosen, timeout=600) as session:
        took = time.perf_counter() - began
        about = f"{megabits} Mbit/s, {optimizer}, {nbytes / 1e6:.0f} MB"
        print(line(f"{about}: first values", [took], [used(before)], nbytes, int(megabits), (1, 0)), flush=True)
        works = {
            "pull": (lambda: session.pull(), (0, 1)),
            "push": (lambda: session.push(grads), (1, 0)),
            "step": (lambda: session.step(grads), (1, 1)),
        }
        for work, _ in works.values():
            work()  # type: ignore[no-untyped-call]
        for name, (work, ways) in works.items():
            seconds, counted = [], []
            for _ in range(int(calls)):
                before, began = on_the_cable(), time.perf_counter()
                work()  # type: ignore[no-untyped-call]
                seconds.append(time.perf_counter() - began)
                counted.append(used(before))
            print(line(f"{about}: {name}", seconds, counted, nbytes, int(megabits), ways), flush=True)


def used(before: tuple[int, int]) -> tuple[int, int]:
    """Bytes that have left and come since then."""
    after = on_the_cable()
    return after[0] - before[0], after[1] - before[1]


def line(
    name: str, seconds: list[float], counted: list[tuple[int, int]], nbytes: int, megabits: int, ways: tuple[int, int]
) -> str:  # fmt: skip
    """One line of the result. `ways`: how often all values go up and down."""
    took = statistics.median(seconds)
    share = nbytes / took / (megabits * 125_000)
    up, down = (statistics.median(each) / nbytes for each in zip(*counted, strict=True))
    return (
        f"{name:40} {took:7.3f} s, share {share:.2f}, bytes up {up:.3f} and down {down:.3f} "
        f"(of {ways[0]} and {ways[1]}), {(up + down) / sum(ways):.3f} for one"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
