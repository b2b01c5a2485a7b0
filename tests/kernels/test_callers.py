"""Every kernel of dps/kernels is called: from dps/ outside of the kernels, or from a kernel that is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

DPS = Path(__file__).parents[2] / "dps"
KERNELS = DPS / "kernels"
AVERAGES = DPS / "ps" / "store" / "slots.py"
LAYERS = DPS / "layers", DPS / "nn"

Name = tuple[str, str]
"""A module of dps/kernels, and a function of it."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def modules() -> list[Path]:
    return sorted(KERNELS.glob("*.py"))


@cache
def functions() -> dict[Name, ast.FunctionDef]:
    """All functions of dps/kernels, but for methods and those inside of others."""
    return {(p.stem, node.name): node for p in modules() for node in tree(p).body if isinstance(node, ast.FunctionDef)}


@cache
def imported(path: Path) -> dict[str, Name]:
    """What the names that a file imports from dps.kernels stand for: (module, "") for a module."""
    found: dict[str, Name] = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dps.kernels"):
            module = (node.module or "").removeprefix("dps.kernels").removeprefix(".")
            for alias in node.names:
                found[alias.asname or alias.name] = (module, alias.name) if module else (alias.name, "")
    return found


def origin(name: Name) -> Name:
    """Where a function is defined that a module may only pass on."""
    path = KERNELS / f"{name[0]}.py"
    if name in functions() or not path.exists():
        return name
    found = imported(path).get(name[1])
    return name if found is None or not found[1] else origin(found)


def used(path: Path, within: ast.AST) -> Iterator[Name]:
    """The functions of dps/kernels that a part of a file names, but for its imports."""
    known = imported(path)
    for node in ast.walk(within):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = known.get(node.value.id)
            if module is not None and not module[1]:
                yield origin((module[0], node.attr))
        elif isinstance(node, ast.Name):
            if node.id in known:
                yield origin(known[node.id])
            elif path.parent == KERNELS:
                yield path.stem, node.id


def bound() -> Iterator[Name]:
    """What `BoundOptimizer` takes from the kernels of a device; row-wise ones by names that are made of text."""
    for node in ast.walk(tree(KERNELS / "optimizers.py")):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "kernels":
            yield from (origin((module, node.attr)) for module in ("cpu", "cuda"))
    for module, name in functions():
        if name.removesuffix("_rows").endswith("_rowwise"):
            yield module, name


def of_layers() -> Iterator[Name]:
    """The kernels that layers call on the device that they compute on, as `place.kernels.NAME` or
    `computation.kernels.NAME`."""
    for path in (path for folder in LAYERS for path in folder.glob("*.py")):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and getattr(node.value, "attr", "") == "kernels":
                yield from ((module, node.attr) for module in ("layers_cpu", "layers_cuda"))


def of_averages() -> Iterator[Name]:
    """The kernels by which averages follow values, where these are, as `self._kernels.NAME`."""
    for node in ast.walk(tree(AVERAGES)):
        if isinstance(node, ast.Attribute) and getattr(node.value, "attr", "") == "_kernels":
            yield from (origin((module, node.attr)) for module in ("cpu", "cuda"))


def at_import(path: Path) -> Iterator[Name]:
    """What runs when a module is loaded, and what extends numba there."""
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef):
            if any(ast.unparse(each).startswith("overload(") for each in node.decorator_list):
                yield path.stem, node.name
            for each in node.decorator_list:
                yield from used(path, each)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            yield from used(path, node)


def reached() -> set[Name]:
    known = functions()
    others = [path for path in DPS.rglob("*.py") if path.parent != KERNELS and "kernels" in path.read_text()]
    open_ = {name for path in others for name in used(path, tree(path))}
    open_ |= {*bound(), *of_layers(), *of_averages(), *(name for path in modules() for name in at_import(path))}
    found: set[Name] = set()
    while open_:
        name = open_.pop()
        if name in known and name not in found:
            found.add(name)
            open_ |= set(used(KERNELS / f"{name[0]}.py", known[name]))
    return found


def test_every_kernel_has_a_caller_in_dps() -> None:
    uncalled = sorted(functions().keys() - reached())
    places = [f"dps/kernels/{module}.py:{functions()[module, name].lineno} {name}" for module, name in uncalled]
    assert not places, "nothing in dps/ calls these; call or delete them:\n" + "\n".join(places)
