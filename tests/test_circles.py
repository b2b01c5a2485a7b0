"""No modules import each other in a circle. Imports within functions count; those for types alone do not."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.rules

ROOT = Path(__file__).parent.parent


def imports() -> dict[str, set[str]]:
    """The modules of dps that each module imports when it runs; folders apart, whose names are loaded when used."""
    files = {".".join(f.relative_to(ROOT).with_suffix("").parts): f for f in (ROOT / "dps").rglob("*.py")}
    return {
        name: {module for node in at_runtime(ast.parse(file.read_text()).body) for module in named(node) & files.keys()}
        for name, file in files.items()
    }


def at_runtime(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`."""
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from at_runtime(node.orelse)
        else:
            yield node
            yield from at_runtime(ast.iter_child_nodes(node))


def named(node: ast.AST) -> set[str]:
    """The modules that an import names."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of imports; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = imports()
    assert len(found) > 250
    assert circle(found) == []


def test_a_circle_is_found_where_one_is() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
