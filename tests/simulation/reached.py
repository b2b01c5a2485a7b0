"""Which lines of cargo, intake, modes and store the simulator's seeds reach: `python -m tests.simulation.reached`.

Lines that only raise do not count. What no seed can reach is in `not_reached.txt`, with the reason: an entry is one
line of source, under its file and function, and stands for one such line there. A process of its own measures them,
because the modules have to be marked before anything imports them.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.marked import Marked, statements

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

ROOT = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("not_reached.txt")
ROOMS = {
    "cargo": ["client/cargo.py", "client/loading.py", "client/assembly.py", "client/pushing.py"],
    "intake": ["ps/intake/*.py"],
    "modes": ["ps/modes/*.py"],
    "store": ["ps/store/*.py"],
}
ELSEWHERE = {
    "thread_pool.py", "device_memory.py", "exchanges.py", "making.py", "holding.py", "versions.py", "index.py",
    "counting.py",
}  # fmt: skip
"""Of the store: threads, the memory of GPUs and the index of keys, which have property tests, and first values that the
ps make, which have seeds of their own (tests/simulation/test_made.py). Of the modes: what strategies exchange in sync,
which has seeds of its own (tests/strategy/test_reduced_under_faults.py), and steps that another ps counts
(tests/simulation/test_apart.py)."""


def files() -> Iterator[tuple[str, Path]]:
    """Each file that counts, with its room."""
    for room, patterns in ROOMS.items():
        for pattern in patterns:
            for path in sorted((ROOT / "dps").glob(pattern)):
                if path.name not in ELSEWHERE | {"__init__.py"}:
                    yield room, path


def all_seeds(seeds: int) -> Iterator[tuple[Scenario, dict[str, object]]]:
    """So many seeds of each kind of scenario, with what `run` takes beside each."""
    from tests.simulation import scenario as of

    for seed in range(seeds):
        for mode in ("async", "at once", "sync", "steps", "bounded", "tokens"):
            yield of.scenario(mode, seed), {}
        for mode in ("async", "at once", "sync", "steps", "bounded", "tokens"):
            yield of.varied(mode, seed), {}
            yield of.spoilt(mode, seed), {}
        for mode in ("async", "sync", "bounded"):
            yield of.scenario(mode, seed), of.compressed(seed)
            yield of.summed(of.scenario(mode, seed)), {"keyed": True}
    few: list[Callable[[str, int], Scenario]] = [of.with_a_killed_chief, of.with_a_lost_ps, of.varied_with_kills]
    for seed in range(max(1, seeds // 5)):
        yield of.crowded(seed), {}
        for kind in few:
            for mode in ("async", "at once", "sync", "steps", "bounded"):
                yield kind(mode, seed), {}


LOOKED = 10
"""After how many seeds it is looked whether all is reached that is wanted."""
Line = tuple[str, str, str]
"""A file, a function of it such as "Store.open_draft", and a line of source of that function."""


@dataclass
class Reached:
    """Of one file: how many lines count, and those that no seed came to."""

    room: str
    path: Path
    lines: int
    missed: list[tuple[int, str, str]]
    """Number, function and source of each."""

    @property
    def name(self) -> str:
        """Its path in the repository."""
        return str(self.path.relative_to(ROOT))

    def not_in(self, known: Counter[Line]) -> list[tuple[int, str, str]]:
        """Those that are not listed."""
        left, found = known.copy(), []
        for number, function, text in self.missed:
            if left[self.name, function, text] > 0:
                left[self.name, function, text] -= 1
            else:
                found.append((number, function, text))
        return found


def reached(seeds: int, least: float) -> list[Reached]:
    """Run them in this process, which has imported none of the files, until each room has the share that is wanted.

    Raises RuntimeError if it has, AssertionError for a promise that is broken."""
    marked = Marked([path for _, path in files()])
    marked.install()
    from tests.simulation.scenario import run

    known = listed()
    for number, (chosen, more) in enumerate(all_seeds(seeds), 1):
        broken = run(chosen, **more)  # type: ignore[arg-type]
        assert not broken, "\n".join(broken)
        if least and number % LOOKED == 0 and lowest_share(found := reached_lines(marked), known) >= least:
            return found
    return reached_lines(marked)


def reached_lines(marked: Marked) -> list[Reached]:
    """What has been reached so far."""
    found = []
    for room, path in files():
        source, owners = path.read_text(), functions(path)
        tree, texts = ast.parse(source), source.splitlines()
        lines = {statement.lineno for _, statement in statements(tree)} - only_raising(path)
        missed = [(n, owners.get(n, ""), texts[n - 1].strip()) for n in sorted(lines - marked.reached[path])]
        found.append(Reached(room, path, len(lines), missed))
    return found


def only_raising(path: Path) -> set[int]:
    """The lines of blocks that end with `raise`."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[-1], ast.Raise):
                lines.update(range(block[0].lineno, (block[-1].end_lineno or block[-1].lineno) + 1))
    return lines


@cache
def functions(path: Path) -> dict[int, str]:
    """The innermost function that each line of a file is in, with its class: "Store.open_draft"."""
    found: dict[int, str] = {}

    def walk(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.ClassDef | ast.FunctionDef)
            inside = f"{owner}.{child.name}".strip(".") if isinstance(child, ast.ClassDef | ast.FunctionDef) else owner
            if named and isinstance(child, ast.FunctionDef):
                found.update(dict.fromkeys(range(child.lineno, (child.end_lineno or 0) + 1), inside))
            walk(child, inside)

    walk(ast.parse(path.read_text()), "")
    return found


def entries() -> list[tuple[Line, str]]:
    """What no seed reaches, each with its reason."""
    found: list[tuple[Line, str]] = []
    name = function = reason = ""
    for line in LISTED.read_text().splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line.startswith("    "):
            found.append(((name, function, line.strip()), reason))
        elif line.strip():
            name, _, function = line.partition("::")
    return found


def listed() -> Counter[Line]:
    """How many lines are listed, by file, function and source."""
    return Counter(line for line, _ in entries())


def main() -> int:
    """Print each file's lines that are not reached, and the rooms' shares; 1 if one is below what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=25, help="of each kind of scenario")
    parser.add_argument("--all", action="store_true", help="also those that are listed")
    parser.add_argument("--least", type=float, default=0.0, help="the share that each room wants; there the run ends")
    options = parser.parse_args()
    known = Counter[Line]() if options.all else listed()
    found = reached(options.seeds, options.least)
    for file in found:
        missed = file.not_in(known)
        print(f"{file.name}: {file.lines - len(file.missed)} of {file.lines}, {len(missed)} not listed")
        for line, function, text in missed:
            print(f"    {line} {function}: {text}")
    print(*(f"{room}: {share(found, room, listed()):.1%}" for room in ROOMS), sep="\n")
    return int(lowest_share(found, listed()) < options.least)


def lowest_share(found: list[Reached], known: Counter[Line]) -> float:
    """Of all rooms."""
    return min(share(found, room, known) for room in ROOMS)


def share(found: list[Reached], room: str, known: Counter[Line]) -> float:
    """The part of a room's lines that is reached or listed."""
    own = [file for file in found if file.room == room]
    missed = sum(len(file.not_in(known)) for file in own)
    return 1.0 - missed / sum(file.lines for file in own)


if __name__ == "__main__":
    sys.exit(main())
