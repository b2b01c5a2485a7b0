"""Peak memory of a ps and its workers on the 102 MB set with Adagrad, beside the goals.

    python benchmarks/memory.py                    # 1 and 8 workers, copied, in place, and over sockets alone
    python benchmarks/memory.py --workers 1 --size small --json

A ps may hold its base (a ps with next to no values, measured in the same run) and so many times the values: 3 copied
(values, accumulator, one push on its way), 4 with in-place readers, one more for a second worker's push under credit.
Shared memory is counted once, with the process that made it: values with the ps, gradient buffers with their worker.
Memory is sampled every 20 ms, so peaks of less are missed; VmHWM is the kernel's own peak, which counts the shared
memory of others, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.processes import MB, Held, Watch, proportional  # noqa: E402
from dps import (  # noqa: E402
    Server,
    Session,
    optim,
)
from dps.monitor import works  # noqa: E402
from dps.monitor.setting import Roles  # noqa: E402
from dps.process import config  # noqa: E402

FORMS = ("copied", "in place", "socket")
TIMES = {"copied": 3, "in place": 4, "socket": 3}
BASE = "4k"
SLACK = 0.05
"""How far over a goal counts as holding it: samples and page rounding."""


def main(argv: Sequence[str]) -> int:
    """Measure; 0 when all goals hold, 1 when not."""
    if list(argv[:1]) == ["--worker"]:
        work(argv[1], int(argv[2]), argv[3], argv[4], int(argv[5]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,8", help="comma-separated counts")
    parser.add_argument("--forms", default=",".join(FORMS), help="comma-separated, of " + ", ".join(FORMS))
    parser.add_argument("--size", default="resnet", choices=list(works.SIZES))
    parser.add_argument("--loops", type=int, default=30, help="pulls and pushes of each worker")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    base = measured(1, "copied", BASE, args.loops)
    rows = [
        judged(measured(workers, form, args.size, args.loops), base, works.nbytes(args.size))
        for form in args.forms.split(",")
        for workers in map(int, args.workers.split(","))
    ]
    print(json.dumps({"base": base, "rows": rows}) if args.json else table(base, rows))
    return 0 if all(row["holds"] for row in rows) else 1


def measured(workers: int, form: str, size: str, loops: int) -> dict[str, Any]:
    """Peaks (bytes) of one run: of the ps, and the most of any worker."""
    print(f"{size}, {form}, {workers} workers ...", file=sys.stderr, flush=True)
    with Roles() as roles:
        chief = ["--job", "chief", "--chief", "127.0.0.1:0", "--ps", "1", "--workers", str(workers), "--owned"]
        target = roles.start(chief)
        roles.start(["--job", "ps", "--task", "0", "--chief", target, "--bind", "127.0.0.1:0"])
        ps = roles.processes[1].pid
        started = [_start(target, task, form, size, loops) for task in range(workers)]
        watch = Watch([ps, *(process.pid for process in started)])
        try:
            for process in started:
                _expect(process, "done")
            divided = proportional(ps)
            most = watch.stop()
        finally:
            watch.stop()
            for process in started:
                process.communicate("end\n")
    apart = [most[process.pid] for process in started]
    return {"workers": workers, "form": form, "ps": _told(most[ps]) | divided, "worker": _told(_most(apart))}


def _start(target: str, task: int, form: str, size: str, loops: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--worker", target, str(task), form, size, str(loops)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=config.environment())


def _expect(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != wanted:
        raise RuntimeError(f"a worker said {line!r}, wanted {wanted!r}; its error is above")


def _most(apart: list[Held]) -> Held:
    found = Held()
    for one in apart:
        found = found.most(one)
    return found


def _told(held: Held) -> dict[str, int]:
    return {"private": held.private, "owned": held.owned, "attached": held.attached, "peak": held.peak}


def work(target: str, task: int, form: str, size: str, loops: int) -> None:
    """One worker: pulls and pushes, says "done", and stays until it is told to end."""
    with Server(None, "worker", task, chief=target, trusted_network=True) as server:
        params = works.params(size)
        with Session(
            server, params, optimizer=optim.Adagrad(0.01), update="async", shared_memory=form != "socket"
        ) as session:
            grads = session.gradients() if form == "in place" else params  # zeros, of the right shapes
            for _ in range(loops):
                if form == "in place":
                    with session.view():
                        pass
                else:
                    session.pull()
                session.push(grads)
            print("done", flush=True)
            sys.stdin.readline()


def judged(row: dict[str, Any], base: dict[str, Any], nbytes: int) -> dict[str, Any]:
    """A row with how many times the values its ps held over its base, and what it may."""
    own = row["ps"]["private"] + row["ps"]["owned"] - base["ps"]["private"] - base["ps"]["owned"]
    wanted = TIMES[row["form"]] + (row["workers"] > 1)
    return {**row, "times": own / nbytes, "wanted": wanted, "holds": own / nbytes <= wanted * (1 + SLACK)}


def table(base: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """MB of each process, the most at any time; shared: what it made, counted once; all: VmHWM."""
    form = "{:9} {:>7} | {:>10} {:>9} {:>8} {:>7} {:>7} | {:>10} {:>9} {:>8}  {}"
    head = ("", "workers", "ps private", "ps shared", "ps VmHWM", "x vals", "wanted", "w. private", "w. shared",
            "w. VmHWM", "")  # fmt: skip
    lines = [form.format(*head)]
    for row in [base, *rows]:
        ps, worker = (
            [f"{row[who][part] / MB:.0f}" for part in ("private", "owned", "peak")] for who in ("ps", "worker")
        )
        if row is base:
            lines.append(form.format("base", 1, *ps, "", "", *worker, "next to no values"))
            continue
        verdict = "holds" if row["holds"] else "over"
        times = [f"{row['times']:.2f}", row["wanted"]]
        lines.append(form.format(row["form"], row["workers"], *ps, *times, *worker, verdict))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
