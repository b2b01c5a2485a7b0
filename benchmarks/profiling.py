"""Where the time of one work goes: in the worker's thread, and in the ps's.

    python benchmarks/profiling.py push --size 4k
    python benchmarks/profiling.py "step in place" --size resnet --seconds 5
    python benchmarks/profiling.py sync --size small --top 40 --sort all

Runs the work between a worker (this process) and one ps (another one) over tcp: first as it is, for the CPU time of a
call on either side, then under cProfile. A profiled call takes two to three times as long, most of it in functions
that do little; so compare shares, and check every gain without the profiler.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dps import Server  # noqa: E402
from dps.monitor.beside import workers  # noqa: E402
from dps.monitor.setting import Roles, Setting  # noqa: E402
from dps.process import config  # noqa: E402
from dps.transport.current import runtime  # noqa: E402

NODE = "node "
"""What the names of nodes' threads begin with."""
SORTS: dict[str, Callable[[Function], float]] = {
    "own": lambda f: f.own_s, "all": lambda f: f.whole_s, "times": lambda f: f.calls,
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Profile; prints a table for either side."""
    if list(argv[:1]) == ["--ps"]:
        serve(argv[1], argv[2], bool(argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", help='pull, push, step, sync (or with " in place"); sparse pull or push (" repeated")')
    parser.add_argument("--size", default="small", help="as of dps bench; sparse has a table of 100,000 rows")
    parser.add_argument("--optimizer", help="sgd or adagrad (default sgd, sparse adagrad)")
    parser.add_argument("--threads", default="1", help="of the ps: a number, or auto")
    parser.add_argument("--socket", action="store_true", help="shared memory off")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each of the two passes")
    parser.add_argument("--top", type=int, default=25, help="lines of each table")
    parser.add_argument("--sort", default="own", choices=list(SORTS))
    args = parser.parse_args(argv)
    kind = args.work.split()[0] if args.work.split()[0] in ("sparse", "sync") else "dense"
    setting = Setting(
        kind, "socket" if args.socket else "tcp", "table" if kind == "sparse" else args.size,
        args.optimizer or ("adagrad" if kind == "sparse" else "sgd"),
        workers=2 if kind == "sync" else 1, table_rows=100_000,
    )  # fmt: skip
    plain = measured(setting, args.work, args.seconds, args.threads, profiled=False)
    found = measured(setting, args.work, args.seconds, args.threads, profiled=True)
    per_call = [1e6 * plain[who] / plain["calls"] for who in ("wall_s", "worker_cpu_s", "ps_cpu_s")]
    print("{}: {:.0f} us a call; CPU: worker {:.0f} us, ps {:.0f} us, all threads".format(args.work, *per_call))
    for who in ("worker", "ps"):
        print(f"\n{who}, {found['calls']} calls under cProfile")
        print(table(found[who], args.sort, args.top, found["calls"]))
    return 0


def measured(setting: Setting, work: str, seconds: float, threads: str, profiled: bool) -> dict[str, Any]:
    """Calls, seconds, CPU seconds of both processes and, with `profiled`, the functions that ran on either side."""
    with Roles() as roles, contextlib.ExitStack() as stack:
        counts = ["--ps", "1", "--workers", str(setting.workers)]
        target = roles.start(["--job", "chief", "--chief", "127.0.0.1:0", *counts, "--owned"])
        ps = stack.enter_context(Ps(target, threads, profiled))
        server = stack.enter_context(Server(None, "worker", 0, chief=target, trusted_network=True))
        others = stack.enter_context(workers(target, setting))
        with setting.session(server) as session:
            call = setting.calls(session)[work]
            for beside in others:
                beside.begin_work(work)
            for _ in range(5):
                call()
            ps.ask("begin")
            found = _repeated(call, seconds, ps.process.pid, cProfile.Profile() if profiled else None)
            found["ps"] = [Function(*fields) for fields in json.loads(ps.ask("end"))]
            session.request_stop()
    return found


def _repeated(call: Callable[[], object], seconds: float, ps: int, profile: cProfile.Profile | None) -> dict[str, Any]:
    calls, own, theirs, began = 0, time.process_time(), _cpu_s(ps), time.perf_counter()
    if profile is not None:
        profile.enable()
    while calls < 5 or time.perf_counter() < began + seconds:
        call()
        calls += 1
    if profile is not None:
        profile.disable()
    return {
        "calls": calls, "wall_s": time.perf_counter() - began, "worker_cpu_s": time.process_time() - own,
        "ps_cpu_s": _cpu_s(ps) - theirs, "worker": functions(profile) if profile is not None else [],
    }  # fmt: skip


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Ps:
    """A ps in a process of its own, whose node's thread is profiled between "begin" and "end"."""

    def __init__(self, target: str, threads: str, profiled: bool) -> None:
        command = [sys.executable, __file__, "--ps", target, threads, "profiled" if profiled else ""]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=config.environment())
        self._line()

    def ask(self, order: str) -> str:
        """Give an order; the line that answers it."""
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def __enter__(self) -> Ps:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def serve(target: str, threads: str, profiled: bool) -> None:
    """The ps. Answers "begin" with an empty line and "end" with what its node's thread has done since, as JSON."""
    profile, clock = cProfile.Profile(), runtime()
    spawn = clock.spawn

    def spawn_profiled(name: str, run: Callable[[], None]) -> Any:
        return spawn(name, (lambda: profile.runcall(run)) if name.startswith(NODE) else run)

    if profiled:
        clock.spawn = spawn_profiled  # type: ignore[assignment,method-assign]
    with Server(None, "ps", 0, chief=target, threads=threads, trusted_network=True):
        print("ready", flush=True)
        before: list[Function] = []
        for order in map(str.strip, sys.stdin):
            if order == "begin":
                before = functions(profile)
                print(flush=True)
            else:
                print(json.dumps([astuple(f) for f in since(before, functions(profile))]), flush=True)


@dataclass(frozen=True)
class Function:
    """A function in a profile: how often it was called, and its seconds, without and with what it called."""

    name: str
    calls: int
    own_s: float
    whole_s: float


def functions(profile: cProfile.Profile) -> list[Function]:
    """What a profile has seen so far; it may be running, on another thread too."""
    return [
        Function(_name(entry.code), entry.callcount, entry.inlinetime, entry.totaltime)
        for entry in profile.getstats()
    ]  # fmt: skip


def _name(code: CodeType | str) -> str:
    if isinstance(code, str):
        return code
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.name}:{code.co_firstlineno} {code.co_name}"


def since(before: Sequence[Function], now: Sequence[Function]) -> list[Function]:
    """What was done between two looks at one profile."""
    then = {function.name: function for function in before}
    nothing = Function("", 0, 0.0, 0.0)
    found = []
    for function in now:
        old = then.get(function.name, nothing)
        calls, own_s, whole_s = function.calls - old.calls, function.own_s - old.own_s, function.whole_s - old.whole_s
        if calls > 0:
            found.append(Function(function.name, calls, own_s, whole_s))
    return found


def table(found: Sequence[Function], sort: str, top: int, calls: int) -> str:
    """The functions that matter most: microseconds, and how often it was called, for one call of the work."""
    rows = sorted(found, key=SORTS[sort], reverse=True)[:top]
    lines = [f"{'us own':>9} {'us in all':>9} {'times':>7}  function"]
    for function in rows:
        own, whole = function.own_s / calls * 1e6, function.whole_s / calls * 1e6
        lines.append(f"{own:9.1f} {whole:9.1f} {function.calls / calls:7.1f}  {function.name}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
