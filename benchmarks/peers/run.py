"""dps beside the systems that a user could pick instead, on the same work, in one run: one command.

    python benchmarks/peers/run.py                 # 3 rounds of everything
    python benchmarks/peers/run.py --environments  # only make the peers' environments (a GB or two, once)

Each peer has an environment of its own under build/peers/NAME; one whose packages cannot be had is left out, and the
table says so. Systems run in turn, in an order that rotates from round to round. Before each, a raw TCP socket is
measured: a round in which that moved by over 30 % against the median of the run is dropped as a whole, and another one
follows, up to --most of them. Every line of raw output goes to a file under benchmarks/results/, and a table of ratios
is printed (again with --table FILE). Ray runs in Linux namespaces of its own where these can be had.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = {
    "torch": ["torch==2.13.0", "numpy", "psutil"],
    "ray": ["ray==2.60.0", "numpy", "numba", "psutil"],
    "tensorflow": ["tensorflow-cpu==2.21.0", "psutil"],
}
ASYNC, SYNC = "w1,w2,w3,w4", "w5"
JOB_S = 400
"""How long one system may take in one round."""
PROBE_NBYTES, PROBES, PROBE_S, MOVED = 16 << 20, 4, 0.2, 0.3
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
ALONE = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
         "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]  # fmt: skip
"""Runs a command in namespaces of its own: it meets no other cluster of this machine, and its processes end with it."""


@dataclass(frozen=True)
class Job:
    """One script with one choice of cases: `peer` is the environment that it runs in, "" this one.

    `malloc`: malloc keeps large blocks, as it does in all tasks of dps; else it is as it comes. `alone`: see ALONE.
    """

    peer: str
    script: str
    cases: str
    workers: int = 1
    variant: str = ""
    malloc: bool = False
    alone: bool = False

    @property
    def name(self) -> str:
        malloc = "malloc" if self.malloc else ""
        return " ".join(filter(None, [self.script.removesuffix("_peer.py"), self.variant, malloc, self.cases]))

    def command(self, environments: Path, out: Path) -> list[str]:
        python = str(environments / self.peer / "bin" / "python") if self.peer else sys.executable
        flags = ["--cases", self.cases, "--workers", str(self.workers), "--variant", self.variant, "--out", str(out)]
        return [*(ALONE if self.alone and not cannot_be_alone() else []), python, str(HERE / self.script), *flags]

    def environ(self, time: str, sizes: str) -> dict[str, str]:
        """What this system's environment has beside this process's: one numeric thread, and malloc as it is wanted."""
        from dps.process.config import MALLOC

        malloc = {name: str(value) for name, value in MALLOC.items()} if self.malloc else {}
        own = {"PEER_TIME": time, "PEER_SIZES": sizes, "PYTHONPATH": str(ROOT)}
        return {**own, **dict.fromkeys(THREADS, "1"), **malloc}

    def described(self, line: dict[str, Any]) -> dict[str, Any]:
        """A line that the script wrote, with this job's malloc setting; the variant names it where it was asked for."""
        variant = f"{line['variant']} malloc".strip() if self.malloc else line["variant"]
        keeps = self.malloc or not self.peer
        return {**line, "variant": variant, "malloc": "keeps large blocks" if keeps else "as it comes"}


JOBS = [
    Job("", "dps_peer.py", "limits", variant="limits"),
    Job("", "dps_peer.py", ASYNC),
    Job("torch", "torch_peer.py", ASYNC),
    Job("torch", "torch_peer.py", ASYNC, malloc=True),
    Job("ray", "ray_peer.py", ASYNC, alone=True),
    Job("tensorflow", "tf_peer.py", ASYNC),
    Job("", "dps_peer.py", ASYNC, variant="socket"),
    Job("torch", "torch_peer.py", ASYNC, variant="tcp"),
    Job("torch", "torch_peer.py", ASYNC, variant="tcp", malloc=True),
    Job("", "dps_peer.py", SYNC, 2),
    Job("torch", "torch_peer.py", SYNC, 2),
    Job("torch", "torch_peer.py", SYNC, 2, "gloo"),
    Job("ray", "ray_peer.py", SYNC, 2, alone=True),
]


@functools.cache
def cannot_be_alone() -> str:
    """Why a command cannot have namespaces of its own here; "" where it can."""
    try:
        done = subprocess.run([*ALONE, "true"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as a peer, and how many are wanted, where there is a goal. Systems are "NAME" or "NAME
    variant"."""

    work: str
    key: str
    ours: str
    peer: str
    wanted: float | None = None


COPIED, PLACE, SOCKET = "dps", "dps inplace", "dps socket"
TORCH_TCP = ("torch tcp", "torch tcp malloc")
STEP = [("torch", 3.5, 8.0), ("tf", 6.0, 15.0), ("ray", 1.6, 4.0)]
RATIOS = [
    *(Ratio("W3 resnet, same host, copied", "w3_sgd", COPIED, peer, copied) for peer, copied, _ in STEP),
    *(Ratio("W3 resnet, same host, in place", "w3_sgd", PLACE, peer, place) for peer, _, place in STEP),
    *(Ratio("W3 resnet, sockets", "w3_sgd", SOCKET, p, w) for p, w in (*((t, 1.6) for t in TORCH_TCP), ("tf", 2.5))),
    *(Ratio(f"W2 resnet, {opt}, sockets, applied", f"w2_{opt}_resnet", "dps socket applied", p)
      for opt in ("sgd", "adagrad") for p in TORCH_TCP),
    *(Ratio("W2 resnet, same host, copied", "w2_sgd_resnet", COPIED, peer, 1.8) for peer in ("torch", "ray")),
    *(Ratio("W2 resnet, same host, in place", "w2_sgd_resnet", PLACE, peer, 3.0) for peer in ("torch", "ray")),
    *(Ratio("W1 4 KB, sockets", "w1_4k", SOCKET, p, w) for p, w in (("torch tcp", 3.0), ("ray", 5.0), ("tf", 8.0))),
    *(Ratio("W1 4 KB, same host", "w1_4k", COPIED, p) for p in ("torch", "ray")),
    *(Ratio("W4 pull, fresh lists, sockets", "w4_fresh_pull", SOCKET, p, 2.0) for p in TORCH_TCP),
    *(Ratio("W4 push, fresh lists, sockets", "w4_fresh_push", SOCKET, p, 4.0) for p in TORCH_TCP),
    *(Ratio("W4 pull, fresh lists, same host", "w4_fresh_pull", COPIED, p) for p in ("torch", "ray")),
    *(Ratio("W4 push, fresh lists, same host", "w4_fresh_push", COPIED, p) for p in ("torch", "ray")),
    *(Ratio("W4 pull, repeated lists, sockets", "w4_repeated_pull", SOCKET, p) for p in TORCH_TCP),
    *(Ratio("W4 push, repeated lists, sockets", "w4_repeated_push", SOCKET, p) for p in TORCH_TCP),
    *(Ratio("W5 small, same host", "w5_small", COPIED, p, w)
      for p, w in (("torch gloo", 2.0), ("torch", 12.0), ("ray", 25.0))),
    *(Ratio("W5 resnet, same host, copied", "w5_resnet", COPIED, p, 2.5) for p in ("torch gloo", "torch", "ray")),
    *(Ratio("W5 resnet, same host, in place", "w5_resnet", PLACE, p, 2.5) for p in ("torch gloo", "torch", "ray")),
]  # fmt: skip


def environment(peer: str, environments: Path) -> str:
    """Make a peer's environment where there is none; why there is none, or "" when it is there."""
    where = environments / peer
    if (where / "ready").exists():
        return ""
    print(f"== an environment for {peer} in {where} ...", file=sys.stderr, flush=True)
    for command in (
        [sys.executable, "-m", "venv", str(where)],
        [str(where / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[peer]],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    (where / "ready").touch()
    return ""


def probe() -> float:
    """Median seconds of 16 MB over a raw TCP socket, of the fastest of a few. On quiet cores, too, some take two to
    three times as long as others from first to last byte, so one alone says little of the machine."""
    from dps.transport.limits import raw_tcp, seconds

    found = []
    for _ in range(PROBES):
        with raw_tcp(PROBE_NBYTES) as call:
            found.append(statistics.median(seconds(call, PROBE_S)))
    return min(found)


def run(job: Job, number: int, args: argparse.Namespace, out: Path) -> None:
    """One system in one round; its lines, with round and probe, go to the end of `out`."""
    own = job.environ(str(args.time), args.sizes)
    part, began = out.with_suffix(".part"), time.monotonic()
    part.unlink(missing_ok=True)
    moved = probe()
    error = ""
    try:
        done = subprocess.run(
            job.command(args.environments_at, part), env={**os.environ, **own}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=JOB_S, check=False,
        )  # fmt: skip
        if done.returncode or not part.exists():
            error = (done.stdout.strip().splitlines() or [""])[-1] or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        error = f"took over {JOB_S} s"
    lines = part.read_text().splitlines() if part.exists() else []
    part.unlink(missing_ok=True)
    with out.open("a") as file:
        for line in lines:
            file.write(json.dumps({"round": number, "probe_s": moved, **job.described(json.loads(line))}) + "\n")
        if error:
            file.write(json.dumps({"round": number, "job": job.name, "error": error}) + "\n")
    said = f"FAILED: {error}" if error else f"{time.monotonic() - began:.0f} s"
    print(f"round {number}: {job.name:28} {said}", file=sys.stderr, flush=True)


def read(path: Path) -> tuple[dict[tuple[str, str], float], list[str]]:
    """Median seconds by (system, key) over the rounds that count, and what is to be said about the run."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    notes = [line["note"] for line in lines if "note" in line]
    notes += [f"round {line['round']}: {line['job']} failed: {line['error']}" for line in lines if "error" in line]
    figures = [line for line in lines if "results" in line]
    moved = movements(figures)
    counting = [number for number, by in moved.items() if by <= MOVED]
    if counting or not moved:
        notes += [f"round {n} dropped: raw TCP had moved by {by:.0%}" for n, by in moved.items() if by > MOVED]
    else:
        counting = list(moved)
        notes.append("raw TCP moved by over 30 % in each round, so none counts; shown are the medians of all")
    found: dict[tuple[str, str], list[float]] = {}
    for line in figures:
        system = f"{line['system']} {line['variant']}".strip()
        if line["round"] not in counting:
            continue
        for key, figure in line["results"].items():
            if isinstance(figure, dict) and "median_s" in figure:
                found.setdefault((system, key), []).append(figure["median_s"])
    return {which: statistics.median(times) for which, times in found.items()}, notes


def movements(figures: Sequence[dict[str, Any]]) -> dict[int, float]:
    """By round: how far one of its raw TCP probes was from the median of all, at most."""
    middle = statistics.median(line["probe_s"] for line in figures) if figures else 1.0
    found: dict[int, float] = {}
    for line in figures:
        found[line["round"]] = max(found.get(line["round"], 0.0), abs(line["probe_s"] / middle - 1))
    return found


def steady(path: Path) -> int:
    """How many rounds of a file count."""
    figures = [line for line in map(json.loads, path.read_text().splitlines()) if "results" in line]
    return sum(by <= MOVED for by in movements(figures).values())


ABOUT = """Same host: "dps" copies, "dps inplace" reads every value where the ps wrote it (Ray's views are not read).
Large pushes of "dps socket" are answered before the pass that applies them (decision 19); "dps socket applied" waits
for the pass. "malloc": malloc keeps large blocks, as in all tasks of dps. w4_repeated: dps sends row numbers once, the
peers send them each time."""


def table(path: Path) -> str:
    """Ratios against goals, then all figures."""
    seconds, notes = read(path)
    return "\n".join([*_ratios(seconds), "", *_figures(seconds), "", ABOUT, *notes])


def _ratios(seconds: dict[tuple[str, str], float]) -> Iterator[str]:
    yield f"{'work':36} {'against':16} {'times':>7} {'wanted':>7}"
    for ratio in RATIOS:
        ours, theirs = seconds.get((ratio.ours, ratio.key)), seconds.get((ratio.peer, ratio.key))
        wanted = "-" if ratio.wanted is None else f"{ratio.wanted:.1f}"
        line = f"{ratio.work:36} {ratio.peer:16}"
        if ours is None or theirs is None:
            missing = ratio.ours if ours is None else ratio.peer
            yield f"{line} {'-':>7} {wanted:>7}  no figure of {missing}"
            continue
        times, verdict = theirs / ours, ""
        if ratio.wanted is not None:
            verdict = "holds" if times >= ratio.wanted else f"short by {1 - times / ratio.wanted:.0%}"
        yield f"{line} {times:>7.2f} {wanted:>7}  {verdict}".rstrip()


def _figures(seconds: dict[tuple[str, str], float]) -> Iterator[str]:
    systems = list(dict.fromkeys(system for system, _ in seconds if not system.startswith("limits")))
    yield "milliseconds, median"
    yield f"{'':22}" + "".join(f"{system:>19}" for system in systems)
    for key in dict.fromkeys(key for system, key in seconds if not system.startswith("limits")):
        cells = [seconds.get((system, key)) for system in systems]
        yield f"{key:22}" + "".join(f"{'-' if c is None else f'{c * 1e3:.3f}':>19}" for c in cells)
    for (system, key), value in seconds.items():
        if system.startswith("limits"):
            yield f"limit {key:28} {value * 1e3:.3f}"


def in_turn(jobs: Sequence[Job], number: int, rounds: int) -> list[Job]:
    """The jobs of a round: each begins a share of the list later than the one before."""
    first = (number - 1) * len(jobs) // rounds % len(jobs)
    return [*jobs[first:], *jobs[:first]]


def main(argv: Sequence[str]) -> int:
    """Run, or print the table of an earlier run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (default %(default)s)")
    parser.add_argument("--most", type=int, help="rounds in all, dropped ones too (default: two more than --rounds)")
    parser.add_argument("--time", type=float, default=0.1, help="how long is sampled, in parts of a few seconds each")
    parser.add_argument("--sizes", default="4k,1m,resnet", help="of W1 and W2: 4k, 1m, 64m, 256m, resnet")
    parser.add_argument("--peers", default=",".join(PACKAGES), help="comma-separated; empty: dps alone")
    parser.add_argument("--environments", action="store_true", help="make the environments, measure nothing")
    parser.add_argument("--environments-at", type=Path, default=ROOT / "build" / "peers", help="where they are")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/peers-DATE.jsonl; must not exist")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of an earlier run's file")
    args = parser.parse_args(argv)
    if args.table:
        print(table(args.table))
        return 0
    wanted = [peer for peer in args.peers.split(",") if peer]
    problems = {peer: environment(peer, args.environments_at.resolve()) for peer in wanted}
    notes = [f"{peer} is left out: {problem}" for peer, problem in problems.items() if problem]
    print("\n".join(notes), end="\n" if notes else "", file=sys.stderr)
    if args.environments:
        return 0
    out = args.out or HERE.parent / "results" / time.strftime("peers-%Y-%m-%d-%H%M.jsonl")
    if out.exists():
        print(f"{out} is there already; name another with --out", file=sys.stderr)
        return 2
    if "ray" in wanted and cannot_be_alone():
        notes.append(f"ray has no namespaces of its own: {cannot_be_alone()}")
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    settings = {"rounds": args.rounds, "time": args.time, "sizes": args.sizes}
    out.write_text("".join(json.dumps(line) + "\n" for line in [{**about, **settings}, *({"note": n} for n in notes)]))
    jobs = [job for job in JOBS if not job.peer or (job.peer in wanted and not problems[job.peer])]
    most = args.rounds + 2 if args.most is None else args.most
    number = 0
    while number < most and (number < args.rounds or steady(out) < args.rounds):
        number += 1
        for job in in_turn(jobs, number, args.rounds):
            run(job, number, args, out)
    print(table(out))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
