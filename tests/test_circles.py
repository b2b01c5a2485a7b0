"""No modules import each other in a circle, also not for their types alone. An import within a function is apart: it
names what is loaded later, if at all."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PUBLIC = {
    ("dps.nn.callbacks", "dps.nn.model"): "`Callback.model` is a model, and `fit` takes callbacks",
    ("dps.nn.symbol", "dps.nn.layer"): "`Symbol.layer` is a layer, and calling a layer returns a symbol",
    ("dps.strategy.context", "dps.strategy.strategy"): "`ReplicaContext.strategy` is a strategy, which makes it",
    ("dps.strategy.variables", "dps.strategy.strategy"): "`Variables.strategy` is a strategy, which makes them",
    ("dps.strategy.input", "dps.strategy.strategy"): "its functions divide a strategy's batches",
    ("dps.strategy.averaged_variables", "dps.strategy.local"): "`AveragedVariables.strategy` is Local, their maker",
    ("dps.strategy.worker_variables", "dps.strategy.local"): "`WorkerVariables.strategy` may be Local, their maker",
}
"""The imports, for types alone, by which a public class names the class that makes it."""


@cache
def imports() -> dict[str, frozenset[str]]:
    """The modules of dps that each module imports, outside of functions."""
    files = {".".join(f.relative_to(ROOT).with_suffix("").parts): f for f in (ROOT / "dps").rglob("*.py")}
    nodes = {name: outside(ast.parse(file.read_text())) for name, file in files.items()}
    return {name: frozenset(m for node in nodes[name] for m in named(node, files)) for name in files}


def without(exceptions: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """All imports but these."""
    found = {module: set(others) for module, others in imports().items()}
    for module, other in exceptions:
        found[module].remove(other)
    return found


def outside(node: ast.AST) -> list[ast.AST]:
    """All nodes that are in no function."""
    found = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found += [child, *outside(child)]
    return found


def named(node: ast.AST, files: dict[str, Path]) -> set[str]:
    """The modules that an import names; folders apart, whose names are loaded when they are used."""
    if isinstance(node, ast.ImportFrom) and node.module:
        names = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    elif isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    else:
        return set()
    return names & files.keys()


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of imports; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle_but_where_a_public_class_names_its_maker() -> None:
    assert len(imports()) > 400 and circle(without(PUBLIC)) == []


@pytest.mark.parametrize("exception", PUBLIC)
def test_each_exception_is_needed(exception: tuple[str, str]) -> None:
    assert set(exception) <= set(circle(without(PUBLIC.keys() - {exception})))
