"""Counts lines of code, without comments, docstrings and blank lines, and tokens of code outside imports.

`benchmarks/lines.py dps/client dps/ps` counts these folders; without arguments three of dps/, and dps/ itself.
"""

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


def import_lines(tree: ast.Module) -> set[int]:
    """The lines of imports, within functions too."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return {line for node in imports for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def count(path: Path) -> tuple[int, int]:
    """How many lines of a file hold code, and how many tokens of code it has outside imports."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in NO_CODE]
    tree = ast.parse(path.read_text())
    docstrings = docstring_lines(tree)
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    left_out = docstrings | import_lines(tree)
    return len(lines - docstrings), sum(token.start[0] not in left_out for token in tokens)


def files(paths: list[str]) -> Iterator[Path]:
    """Every Python file of these files and folders."""
    for path in map(Path, paths):
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main() -> None:
    """Print a line for each folder that is named, and their sum, or all of dps/ if none is named."""
    named = sys.argv[1:]
    rows = {
        path: files([path]) for path in named or [str(ROOT / "dps" / name) for name in ("client", "ps", "variables")]
    }
    rows |= {"all": files(named)} if named else {str(ROOT / "dps"): files([str(ROOT / "dps")])}
    print("  lines   tokens outside imports")
    for name, listed in rows.items():
        lines, tokens = map(sum, zip(*map(count, listed), strict=True))
        print(f"{lines:7,d} {tokens:8,d}  {name}")


if __name__ == "__main__":
    main()
