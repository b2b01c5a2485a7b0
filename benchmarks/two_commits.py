"""Two commits on the same works, in turn, in one call: how many times as fast the second is.

    python benchmarks/two_commits.py main~5 HEAD                       # 7 pairs of everything
    python benchmarks/two_commits.py v1 v2 --works W3 --sizes small --lanes shared --pairs 11

Each commit gets a git worktree of its own. A pair runs the works once with each commit, in fresh processes; the commit
that goes first alternates. Each commit runs once before the pairs, uncounted, so that its kernels are compiled. Both
run the measuring code of this file, which uses public names of dps only. A ratio is the time of BASE over the time of
HEAD in one pair, both medians of calls. For each work the program prints the median ratio of all pairs, the lowest and
the highest, and says "faster" or "slower" where five pairs or more are all on one side of 1.

Works: W1 pull, W2 push, W3 step and W5, a synchronous step of two workers, with SGD or another --optimizer; in shared
memory also in place, with `gradients()` and `view()`, of which every value is read. W6: a loop whose worker computes
for about 1 ms before each step, which finds the ps asleep and the caches full of other things. W4 rows: 1,000,000 x 64,
8,192 distinct ones a call, Adagrad, 48 lists in turn, more than a session remembers. Lanes: shared memory, or sockets
alone.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKS, SIZES, LANES = ("W1", "W2", "W3", "W4", "W5", "W6"), ("4k", "small", "resnet"), ("shared", "socket")
SHAPES = {"4k": [(1024,)], "small": [(2560,)] * 10, "resnet": [(1_000_000,)] * 25 + [(4096,)] * 136}
"""In resnet 161 variables, 25.6 M elements, as the ResNet-50-like set has: few large ones and many small ones."""
ROWS, TAKEN, DIM, LISTS = 1_000_000, 8192, 64, 48
STEPS = {"4k": 1000, "small": 1000, "resnet": 12}
"""Synchronous steps: both workers have to make as many."""
WARM, LEAST = 3, 5
CLEAR = 5
"""Pairs on one side of 1 that count as a difference: by chance that happens to one work of 16."""
RUN_S = 600

Times = dict[str, float]
"""Median seconds of a call, by the name of the work."""


@dataclass(frozen=True)
class Chosen:
    """What is to be measured."""

    works: tuple[str, ...] = WORKS
    sizes: tuple[str, ...] = SIZES
    lanes: tuple[str, ...] = LANES
    seconds: float = 0.3
    rows: int = ROWS
    taken: int = TAKEN
    optimizer: str = "SGD"

    def groups(self) -> Iterator[tuple[str, str, str]]:
        """Kind, size and lane of each cluster that is needed."""
        for lane in self.lanes:
            for kind, works in (("dense", {"W1", "W2", "W3", "W6"}), ("sparse", {"W4"}), ("sync", {"W5"})):
                if works & set(self.works):
                    for size in ("table",) if kind == "sparse" else self.sizes:
                        yield kind, size, lane


# -- in a process of one commit -----------------------------------------------------------------------------------


def measured(chosen: Chosen, processes: bool = True) -> Times:
    """All works that are chosen, with the dps that is imported. Starts clusters; blocks."""
    import dps

    found: Times = {}
    for kind, size, lane in chosen.groups():
        with dps.LocalCluster(ps=1, workers=2 if kind == "sync" else 1, processes=processes) as local:
            run = local.run(train, kind, size, lane, asdict(chosen))
            run.wait()
            found.update(run.results[0])
    return found


def train(server: Any, kind: str, size: str, lane: str, given: dict[str, Any]) -> Times:
    """One worker: opens a session and measures each work of its kind."""
    import dps

    chosen = Chosen(**given)
    settings: dict[str, Any] = {"update": "sync" if kind == "sync" else "async", "shared_memory": lane == "shared"}
    optimizer = dps.optim.Adagrad(0.01) if kind == "sparse" else getattr(dps.optim, chosen.optimizer)(0.01)
    with dps.Session(server, _params(kind, size, chosen), optimizer=optimizer, **settings) as session:
        calls = _rows(session, chosen) if kind == "sparse" else _dense(session, size)
        names = {name for name in calls if name.startswith("W5") == (kind == "sync")}
        if lane == "socket":
            names = {name for name in names if not name.endswith("in place")}
        return {
            f"{name}, {size}, {lane}": _median_s(calls[name], chosen.seconds, STEPS[size] if kind == "sync" else None)
            for name in sorted(names)
            if name[:2] in chosen.works
        }
    raise AssertionError("a session's block does not swallow errors")


def _params(kind: str, size: str, chosen: Chosen) -> dict[str, Any]:
    import numpy as np

    import dps

    if kind == "sparse":
        return {"table": dps.Variable(np.zeros((chosen.rows, DIM), np.float32), sparse=True)}
    return {f"v{i}": np.zeros(shape, np.float32) for i, shape in enumerate(SHAPES[size])}


def _dense(session: Any, size: str) -> dict[str, Callable[[], object]]:
    import numpy as np

    grads = {name: np.ones_like(values) for name, values in _params("dense", size, Chosen()).items()}
    shared = session.gradients()
    for array in shared.values():
        array[...] = 1.0

    def read() -> None:
        with session.view() as values:
            for array in values.values():
                np.dot(array, array)

    def step_in_place() -> None:
        session.push(shared)
        read()

    images, weights = np.ones((128, 784), np.float32), np.ones((784, 128), np.float32)

    def loop() -> None:
        _ = images @ weights
        session.step(grads)

    return {
        "W6 loop": loop,
        "W1 pull": session.pull, "W1 pull in place": read,
        "W2 push": lambda: session.push(grads), "W2 push in place": lambda: session.push(shared),
        "W3 step": lambda: session.step(grads), "W3 step in place": step_in_place,
        "W5 step": lambda: session.step(grads), "W5 step in place": step_in_place,
    }  # fmt: skip


def _rows(session: Any, chosen: Chosen) -> dict[str, Callable[[], object]]:
    import numpy as np

    import dps

    draw = np.random.default_rng(0)
    lists = itertools.cycle([draw.permutation(chosen.rows)[: chosen.taken] for _ in range(LISTS)])
    values = np.ones((chosen.taken, DIM), np.float32)
    return {
        "W4 pull": lambda: session.lookup("table", next(lists)),
        "W4 push": lambda: session.push({"table": dps.Rows(next(lists), values)}),
    }


def _median_s(call: Callable[[], object], at_least_s: float, count: int | None) -> float:
    """The median of calls for a while, or of `count` of them, after some that are not counted."""
    for _ in range(WARM):
        call()
    found: list[float] = []
    end = time.perf_counter() + at_least_s
    while len(found) < (count or LEAST) or (count is None and time.perf_counter() < end):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


# -- over both commits --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def worktrees(commits: Sequence[str], root: Path = ROOT) -> Iterator[list[Path]]:
    """A folder with each commit's files; they are gone at the end. SystemExit where a commit is not known."""
    git = ["git", "-C", str(root), "worktree"]
    with tempfile.TemporaryDirectory(prefix="dps-commits-") as folder:
        made: list[Path] = []
        try:
            for number, commit in enumerate(commits):
                where = Path(folder) / f"{number}"
                done = subprocess.run(
                    [*git, "add", "--detach", str(where), commit], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    sys.exit(f"{commit}: git has no such commit here: {done.stderr.strip().splitlines()[-1]}")
                made.append(where)
            yield made
        finally:
            for where in made:
                subprocess.run([*git, "remove", "--force", str(where)], capture_output=True, check=False)


def run_of(tree: Path, chosen: Chosen) -> Times:
    """The works with one commit's dps, in fresh processes."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DPS_")}
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", json.dumps(asdict(chosen))]
    done = subprocess.run(
        command, cwd=tree, env={**environ, "PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, text=True, timeout=RUN_S,
        check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if Path(found["dps"]).resolve().parents[1] != tree.resolve():
        sys.exit(f"dps was loaded from {found['dps']}, wanted it from {tree}")
    return dict(found["times"])


def compared(
    pairs: int, run: Callable[[int], Times], tell: Callable[[str], None] = lambda _: None
) -> list[list[Times]]:
    """Times of commits 0 and 1 for each pair; which goes first alternates. A run of each before is not counted."""
    for commit in (0, 1):
        run(commit)
    found: list[list[Times]] = []
    for number in range(pairs):
        first = number % 2
        times = {commit: run(commit) for commit in (first, 1 - first)}
        found.append([times[0], times[1]])
        tell(f"pair {number + 1} of {pairs} is measured")
    return found


def ratios(pairs: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, list[float]]:
    """By work: the time of BASE over that of HEAD in each pair, rising."""
    return {work: sorted(base[work] / head[work] for base, head in pairs) for work in pairs[0][0]}


def table(found: Mapping[str, Sequence[float]]) -> str:
    """One line for each work."""
    lines = [f"{'HEAD is so many times as fast':32} {'median':>8} {'lowest':>8} {'highest':>8}"]
    for work, each in found.items():
        verdict = "faster" if each[0] > 1 else "slower" if each[-1] < 1 else ""
        clear = verdict if len(each) >= CLEAR else ""
        lines.append(f"{work:32} {statistics.median(each):8.2f} {each[0]:8.2f} {each[-1]:8.2f}  {clear}".rstrip())
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Compare two commits; returns the exit code."""
    if list(argv[:1]) == ["--measure"]:
        import dps

        given = json.loads(argv[1])
        print(json.dumps({"dps": dps.__file__, "times": measured(Chosen(**given))}))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE")
    parser.add_argument("head", metavar="HEAD")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--optimizer", default="SGD", help="of W1, W2, W3 and W5: a class of dps.optim")
    parser.add_argument("--seconds", type=float, default=0.3, help="least time that a work is sampled in a run")
    for name, known in (("works", WORKS), ("sizes", SIZES), ("lanes", LANES)):
        parser.add_argument(f"--{name}", default=",".join(known), help=f"some of {', '.join(known)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the times of all pairs")
    args = parser.parse_args(argv)
    some: dict[str, Any] = {name: tuple(getattr(args, name).split(",")) for name in ("works", "sizes", "lanes")}
    for name, known in (("works", WORKS), ("sizes", SIZES), ("lanes", LANES)):
        if unknown := [one for one in some[name] if one not in known]:
            parser.error(f"--{name} {','.join(unknown)} is not known; wanted some of {', '.join(known)}")
    if args.pairs < 1:
        parser.error(f"--pairs {args.pairs}: wanted at least 1")
    chosen = Chosen(**some, seconds=args.seconds, optimizer=args.optimizer)
    with worktrees([args.base, args.head]) as trees:
        pairs = compared(args.pairs, lambda commit: run_of(trees[commit], chosen), lambda s: print(s, file=sys.stderr))
    if args.json:
        args.json.write_text(json.dumps({"base": args.base, "head": args.head, "pairs": pairs}))
    print(table(ratios(pairs)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
