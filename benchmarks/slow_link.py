"""Pull, push and step over a slow connection between two machines: the share of the link, and bytes sent in vain.

    sudo python benchmarks/slow_link.py                      # 1 Gbit/s and 100 Mbit/s, SGD, 50 variables
    sudo python benchmarks/slow_link.py --megabits 100 --optimizers SGD,Adagrad --megabytes 25

Chief and ps run in one network namespace, the worker in another; a cable (veth) connects them, and `tc tbf` limits what
leaves each end. Linux, as root, with iproute2. Share: bytes of values or gradients, each way, for a second, of what the
link carries; a TCP connection with frames of 1,500 bytes can have 0.95 of it. Bytes: those that the kernel counted on
the cable, both ways, for a byte of values or gradients.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SPACES = {"servers": "dps-link-a", "worker": "dps-link-b"}
ADDRESSES = {"servers": "10.78.0.1", "worker": "10.78.0.2"}
CHIEF = "10.78.0.1:2220"
VARIABLES, CALLS = 50, 3


def main(argv: Sequence[str]) -> int:
    """Measure; some lines for each optimizer and each rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabits", default="1000,100", help="rates of the link, Mbit/s each way")
    parser.add_argument("--optimizers", default="SGD")
    parser.add_argument("--megabytes", type=int, default=0, help="of all values; default: what takes about 4 s")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.train:
        train(*args.train)
    elif os.geteuid() != 0 or shutil.which("tc") is None:
        print("slow_link.py makes network namespaces: run it as root, with iproute2 (ip, tc)", file=sys.stderr)
        return 2
    else:
        for rate in map(int, args.megabits.split(",")):
            megabytes = args.megabytes or max(8, rate // 5)
            for optimizer in args.optimizers.split(","):
                with spaces(rate):
                    print(measured(rate, optimizer, megabytes, args.calls), flush=True)
    return 0


@contextlib.contextmanager
def spaces(megabits: int) -> Iterator[None]:
    """The two namespaces and the cable between them."""
    one, two = SPACES.values()
    try:
        for name in SPACES.values():
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "cable", "netns", one, "type", "veth", "peer", "name", "cable", "netns", two)
        for side, name in SPACES.items():
            run("ip", "-n", name, "address", "add", f"{ADDRESSES[side]}/24", "dev", "cable")
            for link in ("lo", "cable"):
                run("ip", "-n", name, "link", "set", link, "up")
            limit = ["rate", f"{megabits}mbit", "burst", "128kb", "latency", "100ms"]
            run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "cable", "root", "tbf", *limit)
        yield
    finally:
        for name in SPACES.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def run(*command: str) -> None:
    """Run a command that has to succeed."""
    subprocess.run(command, check=True, capture_output=True)


def measured(megabits: int, optimizer: str, megabytes: int, calls: int) -> str:
    """What the worker prints, of a cluster of its own."""
    role = [sys.executable, "-m", "dps.role", "--trusted-network", "--chief", CHIEF, "--job"]
    inside = {side: ["ip", "netns", "exec", name] for side, name in SPACES.items()}
    quiet = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment()}
    others = [
        subprocess.Popen([*inside["servers"], *role, *flags], **quiet)  # type: ignore[call-overload]
        for flags in (["chief", "--bind", CHIEF, "--workers", "1"], ["ps", "--task", "0"])
    ]
    try:
        program = ["worker", "--task", "0", "--program", __file__, "--", "--train"]
        asked = [optimizer, str(megabits), str(megabytes), str(calls)]
        told = subprocess.run(
            [*inside["worker"], *role, *program, *asked], cwd=ROOT, capture_output=True, text=True, timeout=900,
            check=False, env=environment(),
        )  # fmt: skip
        return told.stdout if "share" in told.stdout else told.stdout + told.stderr
    finally:
        for process in others:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def on_the_cable() -> tuple[int, int]:
    """Bytes that left this namespace, and that came."""
    folder = Path("/sys/class/net/cable/statistics")
    with contextlib.suppress(OSError):
        return int((folder / "tx_bytes").read_text()), int((folder / "rx_bytes").read_text())
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "cable":
            fields = counts.split()
            return int(fields[8]), int(fields[0])
    raise OSError("there is no cable")


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
