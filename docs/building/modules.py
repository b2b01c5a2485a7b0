"""Writes docs/files.md, the list of modules with their first lines: `python docs/building/modules.py`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "files.md"
HEAD = """# Files

Every module of `dps/`, by package, with its first line, which says what the file is for. How they work together:
[architecture](architecture.md). `python docs/building/modules.py` writes this page.
"""


def listed() -> str:
    """The packages in order, each with its modules and their first lines."""
    packages: dict[str, list[str]] = {}
    for path in sorted((ROOT / "dps").rglob("*.py")):
        lines = packages.setdefault(f"{path.parent.relative_to(ROOT)}/", [])
        if path.name != "__init__.py":
            lines.append(f"- `{path.relative_to(ROOT)}`: {_first(path).removesuffix('.')}")
    return "".join(
        f"\n## `{package}`\n\n{_about(ROOT / package)}" + "\n".join(lines) + "\n"
        for package, lines in sorted(packages.items())
        if lines
    )


def _about(folder: Path) -> str:
    """What a package says of itself, as a paragraph."""
    said = _first(folder / "__init__.py") if (folder / "__init__.py").exists() else ""
    return f"{said}\n\n" if said else ""


def _first(path: Path) -> str:
    """The first paragraph of a module's docstring, as one line."""
    return " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(HEAD + listed())
