"""`dps bench`: pull, push, step, sparse rows and sync steps, beside what this machine could do at best.

The ps and chief (and the second worker of a sync step) are processes of their own on ipc and tcp, and threads of
this one on inproc. Limits are measured in the same rounds. Compare ratios (`of_limit`), not seconds of two days.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dps import config, optim
from dps.errors import ConfigError
from dps.monitor import works
from dps.server import Server
from dps.session import Session
from dps.transport import limits
from dps.transport.current import runtime
from dps.update import Async, SyncReplicas

TRANSPORTS = ("inproc", "ipc", "tcp")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="dps bench", description=__doc__)
    made.add_argument("--json", action="store_true", help="one JSON object on stdout, progress on stderr")
    made.add_argument(
        "--works", default="pull,push,step,sparse,sync", help="comma-separated, of " + ", ".join(works.WORKS)
    )
    made.add_argument("--transports", default="inproc,ipc,tcp", help="comma-separated, of inproc, ipc, tcp")
    made.add_argument("--sizes", default="4k,1m,resnet", help="comma-separated, of " + ", ".join(works.SIZES))
    made.add_argument("--ps", type=int, default=1, help="number of ps (default 1)")
    made.add_argument("--rounds", type=int, default=3, help="rounds; each figure is the median of their medians")
    made.add_argument("--seconds", type=float, default=0.3, help="least time a figure is sampled in a round")
    made.add_argument("--compare", metavar="FILE", help="an earlier --json output: print ratios to it")
    return made


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; returns the exit code."""
    if list(argv[:1]) == ["--second"]:
        return _second_worker(argv[1], argv[2])
    args = parser().parse_args(argv)
    for name, known in (("works", works.WORKS), ("transports", TRANSPORTS), ("sizes", works.SIZES)):
        chosen = getattr(args, name).split(",")
        if unknown := [c for c in chosen if c not in known]:
            raise ConfigError(f"--{name} {','.join(unknown)} is not known; wanted some of {', '.join(known)}")
        setattr(args, name, chosen)
    for variable in config.THREADS:
        os.environ.setdefault(variable, "1")
    results = list(_results(args))
    found = {"machine": _machine(), "results": results}
    if args.json:
        print(json.dumps(found))
    else:
        print(_table(results))
    if args.compare:
        print(_compared(results, args.compare), file=sys.stderr if args.json else sys.stdout)
    return 0


def _results(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for work in args.works:
        sizes = {"sparse": ["table"], "sync": [s for s in args.sizes if s != "256m"]}.get(work, args.sizes)
        for transport in args.transports:
            for size in sizes:
                print(f"{work} {size} over {transport} ...", file=sys.stderr, flush=True)
                yield from _measured(work, transport, size, args)


def _measured(work: str, transport: str, size: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rounds of the work and its limit in turn."""
    names = ["sparse pull", "sparse push"] if work == "sparse" else [work]
    with _cluster(transport, args.ps, 2 if work == "sync" else 1) as server, contextlib.ExitStack() as stack:
        tree = works.table() if work == "sparse" else works.params(size)
        mode = SyncReplicas() if work == "sync" else Async()
        if work == "sync":
            stack.enter_context(_other_worker(server.target, size))
        session = stack.enter_context(Session(server, tree, optimizer=optim.SGD(0.01), update=mode, timeout=60))
        nbytes = works.ROWS * works.DIM * 4 if work == "sparse" else session._connection.plan.nbytes
        moved = nbytes * (2 if work in ("step", "sync") else 1)
        raw = stack.enter_context(_limit(transport, moved))
        for name in names:
            call = works.sparse(name.split()[-1], session) if work == "sparse" else works.dense(work, session, size)
            ours, best = [], []
            for _ in range(args.rounds):
                best.append(statistics.median(limits.seconds(raw, args.seconds / 2)))
                ours.append(limits.seconds(call, args.seconds))
            yield _row(name, transport, moved, len(session._connection.plan.variables), args.ps, ours, best, work)
        session.request_stop()


def _row(
    name: str,
    transport: str,
    moved: int,
    variables: int,
    ps: int,
    ours: list[list[float]],
    best: list[float],
    work: str,
) -> dict[str, Any]:
    median = statistics.median(statistics.median(r) for r in ours)
    samples = sorted(s for r in ours for s in r)
    limit = moved / statistics.median(best) / 1e9
    return {
        "work": name, "transport": transport, "nbytes": moved, "variables": variables, "ps": ps,
        "workers": 2 if work == "sync" else 1, "per_s": 1 / median, "gb_per_s": moved / median / 1e9,
        "p50_us": median * 1e6, "p99_us": samples[min(len(samples) - 1, int(len(samples) * 0.99))] * 1e6,
        "limit_gb_per_s": limit, "of_limit": moved / median / 1e9 / limit,
    }  # fmt: skip


def _limit(transport: str, nbytes: int) -> contextlib.AbstractContextManager[Callable[[], object]]:
    """Within a machine memory is the limit, over tcp the socket; small messages are held against raw ZeroMQ."""
    if nbytes <= 1 << 16:
        return limits.raw_zmq(nbytes)
    return limits.raw_tcp(nbytes) if transport == "tcp" else contextlib.nullcontext(limits.memcpy(nbytes))


@contextlib.contextmanager
def _cluster(transport: str, ps: int, workers: int) -> Iterator[Server]:
    """A worker's server of a new cluster; its chief and ps are threads on inproc, else processes."""
    with contextlib.ExitStack() as stack:
        if transport == "inproc":
            name = f"inproc://dps-bench-{os.getpid()}-{runtime().random.getrandbits(48):x}"
            chief = Server(None, "chief", 0, bind=f"{name}-chief", ps=ps, workers=workers, owned=True)
            stack.callback(chief.stop)
            for task in range(ps):
                stack.callback(Server(None, "ps", task, chief=chief.address, bind=f"{name}-{task}").stop)
            target, bind = chief.address, f"{name}-worker"
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dps-bench-"))
            binds = [f"ipc://{folder}/{n}" if transport == "ipc" else "127.0.0.1:0" for n in range(ps + 2)]
            flags = ["--job", "chief", "--chief", binds[0], "--ps", str(ps), "--workers", str(workers), "--owned"]
            target = stack.enter_context(_role(flags))
            for task in range(ps):
                stack.enter_context(
                    _role(["--job", "ps", "--task", str(task), "--chief", target, "--bind", binds[1 + task]])
                )
            bind = binds[-1]
        worker = Server(None, "worker", 0, chief=target, bind=bind)
        stack.callback(worker.stop)
        yield worker


@contextlib.contextmanager
def _role(flags: list[str]) -> Iterator[str]:
    """A task as a process; yields its address."""
    command = [sys.executable, "-m", "dps.role", "--log-level", "WARNING", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=config.environment()) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


@contextlib.contextmanager
def _other_worker(target: str, size: str) -> Iterator[None]:
    """The second worker of a sync step: a process that steps until the first has left."""
    if target.startswith("inproc"):
        bind = f"{target}-second"
        task = runtime().spawn(
            "second worker", lambda: _steps(Server(None, "worker", 1, chief=target, bind=bind), size)
        )
        yield
        task.join(10.0)
        return
    command = [sys.executable, "-m", "dps.monitor.bench", "--second", target, size]
    with subprocess.Popen(command, env=config.environment()) as process:
        try:
            yield
            process.wait(10.0)
        finally:
            process.kill()


def _second_worker(target: str, size: str) -> int:
    with Server(None, "worker", 1, chief=target) as server:
        _steps(server, size)
    return 0


def _steps(server: Server, size: str) -> None:
    with Session(server, works.params(size), optimizer=optim.SGD(0.01), update=SyncReplicas(), timeout=60) as session:
        call = works.dense("sync", session, size)
        while len(session.stats()["chief"]["live"]) == 2:
            for _ in range(20):
                call()


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(), "processor": platform.processor() or platform.machine(),
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
    }  # fmt: skip


HEAD = ("work", "transport", "MB", "vars", "per s", "GB/s", "p50 us", "p99 us", "of limit")


def _table(results: list[dict[str, Any]]) -> str:
    form = "{:12} {:9} {:>8} {:>5} {:>9} {:>6} {:>9} {:>9} {:>8}"
    rows = [
        form.format(
            r["work"], r["transport"], f"{r['nbytes'] / 1e6:.3f}", r["variables"], f"{r['per_s']:.1f}",
            f"{r['gb_per_s']:.2f}", f"{r['p50_us']:.0f}", f"{r['p99_us']:.0f}", f"{r['of_limit']:.2f}",
        )
        for r in results
    ]  # fmt: skip
    note = "limit: memcpy within a machine, a raw TCP socket over tcp, raw ZeroMQ (there and back) up to 64 KiB"
    return "\n".join([form.format(*HEAD), *rows, note])


def _compared(results: list[dict[str, Any]], path: str) -> str:
    with open(path) as file:
        before = {_key(r): r for r in json.load(file)["results"]}
    lines = [f"against {path}: rate now / then"]
    for row in results:
        then = before.get(_key(row))
        if then is not None:
            lines.append(f"{' '.join(map(str, _key(row))):40} {row['per_s'] / then['per_s']:6.2f}")
    return "\n".join(lines)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["work"], row["transport"], row["nbytes"], row["variables"], row["ps"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
