"""dps beside the systems that a user could pick instead, on the same work, in one run: one command.

    python benchmarks/peers/run.py                 # 3 rounds of everything; about 10 minutes on 2 cores
    python benchmarks/peers/run.py --environments  # only make the peers' environments (a GB or two, once)

Each peer has an environment of its own under build/peers/NAME; one whose packages cannot be had is left out, and the
table says so. Systems run in turn, round after round. Before each, a raw TCP socket is measured: where that moved by
over 30 % against the median of the run, the figures are dropped. Every line of raw output goes to a file under
benchmarks/results/, and a table of ratios is printed (again with --table FILE).
"""

from __future__ import annotations

import argparse
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
PROBE_NBYTES, PROBE_S, MOVED = 16 << 20, 0.15, 0.3


@dataclass(frozen=True)
class Job:
    """One script with one choice of cases: `peer` is the environment that it runs in, "" this one."""

    peer: str
    script: str
    cases: str
    workers: int = 1
    variant: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, [self.script.removesuffix("_peer.py"), self.variant, self.cases]))

    def command(self, environments: Path, out: Path) -> list[str]:
        python = str(environments / self.peer / "bin" / "python") if self.peer else sys.executable
        flags = ["--cases", self.cases, "--workers", str(self.workers), "--variant", self.variant, "--out", str(out)]
        return [python, str(HERE / self.script), *flags]


JOBS = [
    Job("", "dps_peer.py", "limits", variant="limits"),
    Job("", "dps_peer.py", ASYNC),
    Job("torch", "torch_peer.py", ASYNC),
    Job("ray", "ray_peer.py", ASYNC),
    Job("tensorflow", "tf_peer.py", ASYNC),
    Job("", "dps_peer.py", ASYNC, variant="socket"),
    Job("torch", "torch_peer.py", ASYNC, variant="tcp"),
    Job("", "dps_peer.py", SYNC, 2),
    Job("torch", "torch_peer.py", SYNC, 2),
    Job("torch", "torch_peer.py", SYNC, 2, "gloo"),
    Job("ray", "ray_peer.py", SYNC, 2),
]


@dataclass(frozen=True)
class Ratio:
    """A goal: how many times as fast as a peer. Systems are "NAME" or "NAME variant"."""

    work: str
    key: str
    ours: str
    peer: str
    wanted: float


COPIED, PLACE, SOCKET = "dps", "dps inplace", "dps socket"
STEP = [("torch", 3.5, 8.0), ("tf", 6.0, 15.0), ("ray", 1.6, 4.0)]
RATIOS = [
    *(Ratio("W3 resnet, same host, copied", "w3_sgd", COPIED, peer, copied) for peer, copied, _ in STEP),
    *(Ratio("W3 resnet, same host, in place", "w3_sgd", PLACE, peer, place) for peer, _, place in STEP),
    *(Ratio("W3 resnet, tcp", "w3_sgd", SOCKET, p, w) for p, w in (("torch tcp", 1.6), ("tf", 2.5))),
    *(Ratio("W2 resnet, same host, copied", "w2_sgd_resnet", COPIED, peer, 1.8) for peer in ("torch", "ray")),
    *(Ratio("W2 resnet, same host, in place", "w2_sgd_resnet", PLACE, peer, 3.0) for peer in ("torch", "ray")),
    *(Ratio("W1 4 KB, tcp", "w1_4k", SOCKET, p, w) for p, w in (("torch", 3.0), ("ray", 5.0), ("tf", 8.0))),
    *(Ratio("W4 pull, tcp", "w4_pull", SOCKET, p, 2.0) for p in ("torch", "torch tcp")),
    *(Ratio("W4 push, tcp", "w4_push", SOCKET, p, 5.0) for p in ("torch", "torch tcp")),
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
    """Median seconds of 16 MB over a raw TCP socket."""
    from dps.transport.limits import raw_tcp, seconds

    with raw_tcp(PROBE_NBYTES) as call:
        return statistics.median(seconds(call, PROBE_S))


def run(job: Job, number: int, args: argparse.Namespace, out: Path) -> None:
    """One system in one round; its lines, with round and probe, go to the end of `out`."""
    own = {"PEER_TIME": str(args.time), "PEER_SIZES": args.sizes, "PYTHONPATH": str(ROOT)}
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
            file.write(json.dumps({"round": number, "probe_s": moved, **json.loads(line)}) + "\n")
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
    middle = statistics.median(line["probe_s"] for line in figures)
    found: dict[tuple[str, str], list[float]] = {}
    for line in figures:
        system = f"{line['system']} {line['variant']}".strip()
        if abs(line["probe_s"] / middle - 1) > MOVED:
            notes.append(f"round {line['round']}: {system} dropped, raw TCP had moved by over 30 %")
            continue
        for key, figure in line["results"].items():
            if isinstance(figure, dict) and "median_s" in figure:
                found.setdefault((system, key), []).append(figure["median_s"])
    return {which: statistics.median(times) for which, times in found.items()}, notes


def table(path: Path) -> str:
    """Ratios against goals, then all figures."""
    seconds, notes = read(path)
    return "\n".join([*_ratios(seconds), "", *_figures(seconds), "", *notes])


def _ratios(seconds: dict[tuple[str, str], float]) -> Iterator[str]:
    yield f"{'work':32} {'against':12} {'times':>7} {'wanted':>7}"
    for ratio in RATIOS:
        ours, theirs = seconds.get((ratio.ours, ratio.key)), seconds.get((ratio.peer, ratio.key))
        if ours is None or theirs is None:
            missing = ratio.ours if ours is None else ratio.peer
            yield f"{ratio.work:32} {ratio.peer:12} {'-':>7} {ratio.wanted:>7.1f}  no figure of {missing}"
            continue
        times = theirs / ours
        verdict = "holds" if times >= ratio.wanted else f"short by {1 - times / ratio.wanted:.0%}"
        yield f"{ratio.work:32} {ratio.peer:12} {times:>7.2f} {ratio.wanted:>7.1f}  {verdict}"


def _figures(seconds: dict[tuple[str, str], float]) -> Iterator[str]:
    systems = list(dict.fromkeys(system for system, _ in seconds if not system.startswith("limits")))
    yield "milliseconds, median"
    yield f"{'':22}" + "".join(f"{system:>13}" for system in systems)
    for key in dict.fromkeys(key for system, key in seconds if not system.startswith("limits")):
        cells = [seconds.get((system, key)) for system in systems]
        yield f"{key:22}" + "".join(f"{'-' if c is None else f'{c * 1e3:.3f}':>13}" for c in cells)
    for (system, key), value in seconds.items():
        if system.startswith("limits"):
            yield f"limit {key:28} {value * 1e3:.3f}"


def main(argv: Sequence[str]) -> int:
    """Run, or print the table of an earlier run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
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
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    settings = {"rounds": args.rounds, "time": args.time, "sizes": args.sizes}
    out.write_text("".join(json.dumps(line) + "\n" for line in [{**about, **settings}, *({"note": n} for n in notes)]))
    jobs = [job for job in JOBS if not job.peer or (job.peer in wanted and not problems[job.peer])]
    for number in range(1, args.rounds + 1):
        for job in jobs:
            run(job, number, args, out)
    print(table(out))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
