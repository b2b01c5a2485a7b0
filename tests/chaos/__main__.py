"""A campaign of kills, pauses and full disks against real processes: `make chaos`, or

    python -m tests.chaos --minutes 3 --seed 7
    python -m tests.chaos --run "SIGKILL ps" async 7004        # one run again

Exit code 0 when every run kept dps's promises. What a failed run wrote stays under build/chaos.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cases import FILL, KINDS, MODES, Case, draw, order
from tests.chaos.disk import why_none
from tests.chaos.driver import Run
from tests.chaos.judge import judge
from tests.chaos.table import Table

FOLDER = Path("build/chaos")


@dataclass(frozen=True)
class Result:
    """`complaints`: what was wrong; empty for a run that passed."""

    case: Case
    complaints: list[str]
    recovery_s: float | None
    code: int | None
    took_s: float
    folder: Path


def main(argv: Sequence[str]) -> int:
    """Run a campaign, or one run again."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the runs of now are ended in order
    args = parser().parse_args(argv)
    if args.run:
        kind, mode, seed = args.run
        if kind not in KINDS or mode not in MODES or not seed.isdecimal():
            print(f"--run {kind!r} {mode!r} {seed!r}: wanted KIND MODE SEED; the kinds are {', '.join(KINDS)}")
            return 2
        result = one(draw(kind, mode, int(seed)))
        tell(result, 1)
        print("\n".join(result.complaints))
        return 1 if result.complaints else 0
    if not any(args.only in kind for kind in KINDS):
        print(f"--only {args.only!r} fits no kind of fault; they are {', '.join(KINDS)}")
        return 2
    seed = args.seed if args.seed is not None else time.time_ns() // 1_000_000 % 100_000
    table = campaign(args.minutes * 60, seed, args.jobs, args.only)
    print(table.text())
    return 1 if table.failed else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--minutes", type=float, default=3.0, help="no run is begun later (default 3)")
    made.add_argument("--seed", type=int, help="draws the order and all runs; by default another one each time")
    made.add_argument("--jobs", type=int, default=2, help="runs at one time (default 2)")
    made.add_argument("--only", default="", metavar="TEXT", help="only kinds with this text in their name")
    made.add_argument("--run", nargs=3, metavar=("KIND", "MODE", "SEED"), help="one run again")
    return made


def campaign(seconds: float, seed: int, jobs: int, only: str = "") -> Table:
    """Runs of all kinds and modes, one after the other in each of `jobs` threads, until the time is over."""
    table, writing, over = Table(), threading.Lock(), threading.Event()
    deadline = time.monotonic() + seconds
    print(
        f"chaos: seed {seed}, {seconds / 60:g} minutes, {jobs} runs at a time; logs of failed runs in {FOLDER}",
        flush=True,
    )
    kinds = _possible(table, [kind for kind in KINDS if only in kind])
    cases = _cases(seed, kinds)

    def work() -> None:
        while kinds and time.monotonic() < deadline and not over.is_set():
            with writing:
                case = next(cases)
            result = one(case)
            with writing:
                table.cell(case.kind, case.mode).add(bool(result.complaints), result.recovery_s)
                tell(result, table.runs)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        over.set()
        print("stopping after the runs of now", flush=True)
        for thread in threads:
            thread.join()
    return table


def _possible(table: Table, kinds: list[str]) -> list[str]:
    """Those that can be run here; the table tells which cannot be, and why."""
    no_disk = why_none()
    skipped = [kind for kind in kinds if no_disk and FILL in kind]
    for kind in skipped:
        for mode in MODES:
            table.cell(kind, mode).skipped = f"{FILL}: {no_disk}"
    return [kind for kind in kinds if kind not in skipped]


def _cases(seed: int, kinds: list[str]) -> Iterator[Case]:
    """Every kind in every mode in an order of the seed's, again and again with other details."""
    number = seed * 1000
    while True:
        for kind, mode in order(number):
            if kind in kinds:
                number += 1
                yield draw(kind, mode, number)


def one(case: Case) -> Result:
    """One run, judged. Its folder is deleted when it passed."""
    name = f"{case.seed}-{case.mode}-{case.kind.lower().replace(' ', '-').replace(',', '')}"
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    run = Run(case, folder, f"{os.getpid()}-{name}")
    try:
        complaints = judge(run.go())
    except Exception as error:  # the table tells it, and the other runs go on
        traceback.print_exc()
        complaints = [f"the campaign itself failed: {type(error).__name__}: {error}"]
    evidence = run.evidence
    took_s = time.monotonic() - began
    if complaints:
        told = {"case": str(case), "command": command(case), "code": evidence.code, "complaints": complaints}
        (folder / "verdict.json").write_text(json.dumps(told, indent=1) + "\n")
    else:
        shutil.rmtree(folder)
    return Result(case, complaints, evidence.recovery_s, evidence.code, took_s, folder)


def command(case: Case) -> str:
    """What does this run again."""
    return f"{Path(sys.executable).name} -m tests.chaos --run {shlex.quote(case.kind)} {case.mode} {case.seed}"


def tell(result: Result, number: int) -> None:
    """A line for a run, and more for one that failed."""
    how = "FAILED" if result.complaints else "passed"
    late = "stalled" if result.recovery_s is None else f"recovered in {result.recovery_s:.1f} s"
    print(f"{number:4} {how}  {result.case}: exit code {result.code}, {late}, {result.took_s:.0f} s", flush=True)
    if result.complaints:
        lines = [*result.complaints, f"logs: {result.folder}", f"again: {command(result.case)}"]
        print("\n".join(f"             {line}" for line in lines), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
