"""Writes the list of modules in docs/architecture.md, with their first lines: `python docs/building/modules.py`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
HEAD = "The first line of each file says what it is for; here they are by package.\n"


def listed() -> str:
    """The packages in order, each with its modules and their first lines."""
    packages: dict[str, list[str]] = {}
    for path in sorted((ROOT / "dps").rglob("*.py")):
        said = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
        if path.name != "__init__.py":
            first = " ".join(said.split()).removesuffix(".")
            packages.setdefault(f"{path.parent.relative_to(ROOT)}/", []).append(f"- `{path.name}`: {first}")
    return "".join(f"\n**`{package}`**\n\n" + "\n".join(lines) + "\n" for package, lines in sorted(packages.items()))


def main() -> None:
    """Rewrite what follows the head of the list, to the end of the page."""
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(HEAD) + len(HEAD)] + listed())


if __name__ == "__main__":
    main()
