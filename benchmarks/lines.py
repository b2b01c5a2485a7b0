"""Counts lines of code, without comments, docstrings and blank lines: `benchmarks/lines.py dps/client dps/ps`."""

from __future__ import annotations

import ast
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_CODE = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
)  # fmt: skip


def docstring_lines(tree: ast.Module) -> set[int]:
    """The lines of strings that stand alone: docstrings of modules, classes, functions and attributes."""
    lines = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def code_lines(path: Path) -> int:
    """How many lines of a file hold code."""
    with path.open("rb") as file:
        lines = {
            line
            for token in tokenize.tokenize(file.readline)
            if token.type not in NO_CODE
            for line in range(token.start[0], token.end[0] + 1)
        }
    return len(lines - docstring_lines(ast.parse(path.read_text())))


def files(paths: list[str]) -> Iterator[Path]:
    """Every Python file of these files and folders."""
    for path in map(Path, paths):
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main() -> None:
    """Print a line for each folder that is named, and their sum."""
    paths = sys.argv[1:] or [str(ROOT / "dps" / name) for name in ("client", "ps", "variables")]
    total = 0
    for path in paths:
        count = sum(code_lines(file) for file in files([path]))
        total += count
        print(f"{count:7,d}  {path}")
    print(f"{total:7,d}  all")


if __name__ == "__main__":
    main()
