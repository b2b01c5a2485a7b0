"""Mixed use for a long time: nothing may grow.

    python benchmarks/soak.py --minutes 30

2 ps, 2 workers, a table and dense variables of 20 MB. Each worker draws what it does next: pull, push, step, view, look
rows up, push rows, push without waiting, save. Every 10 s a line tells memory, shared memory, descriptors and calls per
second. Fails (exit code 1) when a process holds more in the last quarter than in the second one: over 3 % and 4 MB more
memory, any more shared memory, or over 4 more descriptors. A rate that fell by a third is said, and is no failure:
others may have taken the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

import dps  # noqa: E402
from benchmarks.processes import MB, Held, held  # noqa: E402
from dps.monitor.setting import Roles  # noqa: E402
from dps.process import config  # noqa: E402

PS, WORKERS, DIM = 2, 2, 16
REPORT_S = 1.0
BEGIN_S = 60
"""How long the workers may take to their first calls."""


@dataclass(frozen=True)
class Look:
    """What all processes held at one moment, by name, and the calls per second of all workers since the last."""

    at_s: float
    held: dict[str, Held]
    per_s: float

    def __str__(self) -> str:
        parts = [
            f"{name} {one.private / MB:.1f}+{one.owned / MB:.0f} MB {one.descriptors} fd"
            for name, one in self.held.items()
        ]
        return f"{self.at_s:7.0f} s  {self.per_s:8.1f} calls/s  " + "  ".join(parts)


def main(argv: Sequence[str]) -> int:
    """Run; 0 when nothing grew."""
    if list(argv[:1]) == ["--worker"]:
        work(argv[1], int(argv[2]), argv[3], int(argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="between two looks")
    parser.add_argument(
        "--rows", type=int, default=100_000, help="of the table, 16 float32 each; the rest is thrice that"
    )
    parser.add_argument("--out", type=Path, help="append one JSON line with all looks")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="dps-soak-") as folder:
        looks = soak(args.minutes * 60, args.every, args.rows, folder)
    problems = grown(looks)
    if args.out:
        line = {"minutes": args.minutes, "looks": [_plain(look) for look in looks], "problems": problems}
        with args.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
    print("\n".join(problems) if problems else "nothing grew")
    return 1 if any(not problem.startswith("note") for problem in problems) else 0


def soak(seconds: float, every_s: float, rows: int, folder: str) -> list[Look]:
    """Run the cluster; what was seen, look by look."""
    looks: list[Look] = []
    with Roles() as roles:
        counts = ["--ps", str(PS), "--workers", str(WORKERS), "--owned"]
        target = roles.start(["--job", "chief", "--chief", "127.0.0.1:0", "--checkpoint-root", folder, *counts])
        for task in range(PS):
            roles.start(["--job", "ps", "--task", str(task), "--chief", target, "--bind", "127.0.0.1:0"])
        started = [Told(target, task, folder, rows) for task in range(WORKERS)]
        named = {"chief": roles.processes[0], "ps0": roles.processes[1], "ps1": roles.processes[2]}
        named |= {f"w{task}": told.process for task, told in enumerate(started)}
        try:
            _wait_for_calls(started)
            began = last = time.monotonic()
            calls = sum(told.calls for told in started)
            for number in range(1, round(seconds / every_s) + 1):
                time.sleep(max(0.0, began + number * every_s - time.monotonic()))
                found = {name: held(process.pid) for name, process in named.items()}
                gone = [name for name, process in named.items() if process.poll() is not None]
                if gone:
                    raise RuntimeError(f"{', '.join(gone)} ended; the error is above")
                now, done = time.monotonic(), sum(told.calls for told in started)
                looks.append(Look(now - began, {n: h for n, h in found.items() if h}, (done - calls) / (now - last)))
                last, calls = now, done
                print(looks[-1], flush=True)
        finally:
            for told in started:
                told.process.communicate("end\n")
    return looks


def _wait_for_calls(started: list[Told]) -> None:
    """Until every worker works: where nothing was compiled before, that takes a while."""
    deadline = time.monotonic() + BEGIN_S
    while silent := [f"w{task}" for task, told in enumerate(started) if not told.calls]:
        if time.monotonic() > deadline or any(told.process.poll() is not None for told in started):
            raise RuntimeError(f"{', '.join(silent)} made no call in {BEGIN_S} s, or ended; the error is above")
        time.sleep(0.1)


class Told:
    """A worker process, and how many calls it says it has made."""

    def __init__(self, target: str, task: int, folder: str, rows: int) -> None:
        self.calls = 0
        command = [sys.executable, __file__, "--worker", target, str(task), folder, str(rows)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=config.environment()
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.calls = int(line)


def work(target: str, task: int, folder: str, rows: int) -> None:
    """One worker: whatever it draws next, until a line comes on stdin. Says every second how much it has done."""
    over = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    draw = random.Random(task)
    params = {
        "table": dps.Variable(np.zeros((rows, DIM), np.float32), sparse=True),
        "dense": [np.zeros((rows, DIM), np.float32), np.zeros((2 * rows, DIM), np.float32)],
        "small": {f"b{i}": np.zeros(64, np.float32) for i in range(20)},
    }
    with (
        dps.Server(None, "worker", task, chief=target, trusted_network=True) as server,
        dps.Session(
            server, params, optimizer=dps.optim.Adagrad(0.01), checkpoint_dir=folder, keep_checkpoints=2,
            placement=dps.placement.Greedy(PS),
            hooks=[dps.CheckpointSaver(steps=10**9)],
        ) as session,
    ):  # fmt: skip
        uses = mixed(session, task, rows, draw)
        names, weights = list(uses), [1 if name == "save" else 100 for name in uses]
        calls, told = 0, time.monotonic()
        while not over.is_set():
            uses[draw.choices(names, weights)[0]]()
            calls += 1
            if time.monotonic() > told + REPORT_S:
                told = time.monotonic()
                print(calls, flush=True)


def mixed(session: dps.Session, task: int, rows: int, draw: random.Random) -> dict[str, Callable[[], Any]]:
    """What a worker may do, by name."""
    numbers = np.random.default_rng(task)
    own = {"dense": [np.ones((rows, DIM), np.float32), None], "small": {"b3": np.ones(64, np.float32)}}
    shared = session.gradients()
    for _, gradient in dps_leaves(shared):
        gradient[...] = 1e-3

    def pushed_rows() -> dps.Rows:
        taken = numbers.integers(0, rows, 1000)
        return dps.Rows(taken, np.ones((1000, DIM), np.float32))

    def view() -> None:
        with session.view() as params:
            float(params["dense"][0][0, 0])

    def without_waiting() -> None:
        replies = [session.push_async({"table": pushed_rows()}) for _ in range(draw.randrange(1, 6))]
        for reply in replies:
            reply.result(60)

    return {
        "pull": session.pull,
        "pull some": lambda: session.pull(names=["small/b1"]),
        "pull if newer": lambda: session.pull(if_newer_than=session.version),
        "push": lambda: session.push(own),
        "push in place": lambda: session.push(shared),
        "step": lambda: session.step(own),
        "view": view,
        "lookup": lambda: session.lookup("table", numbers.integers(0, rows, 1000)),
        "push rows": lambda: session.push({"table": pushed_rows()}),
        "push without waiting": without_waiting,
        "save": session.save,
    }


def dps_leaves(tree: Any) -> list[tuple[str, Any]]:
    from dps.variables.tree import leaves

    return list(leaves(tree))


def grown(looks: Sequence[Look]) -> list[str]:
    """What grew from the second quarter of the looks to the last, a line each; "note: ..." is no failure."""
    if len(looks) < 8:
        return [f"{len(looks)} looks tell nothing; wanted 8 or more: more --minutes, or a shorter --every"]
    quarter = len(looks) // 4
    early, late = looks[quarter : 2 * quarter], looks[-quarter:]
    found = []
    for name in looks[0].held:
        before, after = (_middle([look.held[name] for look in part]) for part in (early, late))
        if after.private > before.private * 1.03 + 4e6:
            found.append(f"{name}: memory grew from {before.private / MB:.1f} to {after.private / MB:.1f} MB")
        if after.owned > before.owned:
            found.append(f"{name}: shared memory grew from {before.owned / MB:.1f} to {after.owned / MB:.1f} MB")
        if after.descriptors > before.descriptors + 4:
            found.append(f"{name}: descriptors grew from {before.descriptors} to {after.descriptors}")
    rates = [statistics.median(look.per_s for look in part) for part in (early, late)]
    if rates[1] < rates[0] * 2 / 3:
        found.append(f"note: the rate fell from {rates[0]:.0f} to {rates[1]:.0f} calls/s")
    return found


def _middle(many: Sequence[Held]) -> Held:
    return Held(*(int(statistics.median(values)) for values in zip(*(one.fields for one in many), strict=True)))


def _plain(look: Look) -> dict[str, Any]:
    return {"at_s": look.at_s, "per_s": look.per_s, "held": {n: h.fields for n, h in look.held.items()}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
