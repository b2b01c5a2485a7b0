"""What keys cost: the same works in a run with keys and in one without, in turn, over sockets and with shared memory.

    python benchmarks/keys.py            # 5 rounds of everything
    python benchmarks/keys.py --rounds 9 --json

Both runs are there all the time, each with a chief and a ps as processes, and this process is the worker of
both. A round measures every work in each of them, and the one that goes first alternates. The ratio of a work is the
median time with keys over the median time without, round by round; the program prints the median and the range.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

import dps
from dps.process.config import environment
from dps.transport.keys import files as key_files

SIZES = {"4 KB": 1024, "64 MB": 16 << 20}
"""Elements of the one variable, by the name of its size."""
WORKS = ("pull", "push", "step")
SECONDS, LEAST = 0.4, 5
"""How long a work is measured in a round, and how many calls there are at least."""
CHIEF_S = 30.0
SETTLED = 3
"""Calls that are not counted."""


@contextlib.contextmanager
def run(keys: str) -> Iterator[str]:
    """A chief and a ps as processes; yields the chief's address. `keys`: their folder, or ""."""
    flags = ["--keys", keys] if keys else ["--trusted-network"]
    with contextlib.ExitStack() as stack:
        chief = started(stack, "--job", "chief", "--bind", "127.0.0.1:0", "--ps", "1", "--owned", *flags)
        assert chief.stdout is not None
        line = chief.stdout.readline()
        assert line.startswith("dps chief at "), line
        address = line.removeprefix("dps chief at ").strip()
        started(stack, "--job", "ps", "--task", "0", "--chief", address, *flags)
        yield address


def started(stack: contextlib.ExitStack, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dps.role", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def works(session: dps.Session, elements: int) -> dict[str, Callable[[], object]]:
    """The calls that are measured, by name."""
    gradient = {"w": np.ones(elements, np.float32)}
    out = {"w": np.empty(elements, np.float32)}
    return {
        "pull": lambda: session.pull(out=out),
        "push": lambda: session.push(gradient),
        "step": lambda: session.step(gradient),
    }


def median_s(call: Callable[[], object]) -> float:
    found: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(found) < LEAST or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def measure(size: str, shared: bool, keys: str, rounds: int) -> list[dict[str, object]]:
    """One line for each work."""
    elements = SIZES[size]
    times: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        calls = {}
        for mode, folder in (("plain", ""), ("keys", keys)):
            chief = stack.enter_context(run(folder))
            start = {"w": np.zeros(elements, np.float32)}
            settings = {"shared_memory": shared, "keys": folder or None, "timeout": CHIEF_S}
            session = dps.Session(chief, start, optimizer=dps.optim.SGD(0.1), **settings)  # type: ignore[arg-type]
            calls[mode] = works(stack.enter_context(session), elements)
        for call in itertools.chain.from_iterable(made.values() for made in calls.values()):
            for _ in range(SETTLED):
                call()
        for number in range(rounds):
            for work in WORKS:
                for mode in sorted(calls, reverse=bool(number % 2)):
                    times.setdefault((work, mode), []).append(median_s(calls[mode][work]))
    return [line(work, size, shared, times[work, "plain"], times[work, "keys"]) for work in WORKS]


def line(work: str, size: str, shared: bool, plain: list[float], keyed: list[float]) -> dict[str, object]:
    ratios = [with_keys / without for with_keys, without in zip(keyed, plain, strict=True)]
    return {
        "work": work, "size": size, "lane": "shared memory" if shared else "socket",
        "plain_us": round(1e6 * statistics.median(plain)), "keys_us": round(1e6 * statistics.median(keyed)),
        "ratio": round(statistics.median(ratios), 2), "from": round(min(ratios), 2), "to": round(max(ratios), 2),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    lines: list[dict[str, object]] = []
    os.environ["DPS_TRUSTED_NETWORK"] = "1"  # for the sessions without keys
    with tempfile.TemporaryDirectory() as folder:
        keys = str(Path(folder) / "keys")
        key_files.new(keys)
        for size, shared in itertools.product(SIZES, (False, True)):
            lines += measure(size, shared, keys, args.rounds)
    if args.json:
        print(json.dumps(lines, indent=1))
        return
    print("| work | size | lane | without keys, us | with keys, us | ratio | from | to |\n" + "| --- " * 8 + "|")
    for found in lines:
        print("| " + " | ".join(map(str, found.values())) + " |")


if __name__ == "__main__":
    main()
