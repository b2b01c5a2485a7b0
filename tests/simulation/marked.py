"""Loads chosen modules with a mark before each statement of their functions, which notes that it was reached.

A tracer, such as that of a coverage tool, is called for every line of every module and makes the simulator five times
as slow; marks cost nothing elsewhere.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

MARK = "__reached__"


class Marked(importlib.abc.MetaPathFinder):
    """Marks the modules of these files; to be installed before any of them is imported."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.reached: dict[Path, set[int]] = {path: set() for path in files}
        """Of each file the first lines of the statements that were reached."""

    def install(self) -> None:
        """Mark what is imported from now on. Raises RuntimeError if one of the files is imported already."""
        there = [m for m in sys.modules.values() if Path(getattr(m, "__file__", None) or ".") in self.reached]
        if there:
            raise RuntimeError(f"{there[0].__name__} is imported already; its statements cannot be marked any more")
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or Path(spec.origin) not in self.reached:
            return None
        spec.loader = _Loader(name, spec.origin, self.reached[Path(spec.origin)])
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, reached: set[int]) -> None:
        super().__init__(name, path)
        self._reached = reached

    def get_code(self, fullname: str) -> CodeType:
        """Always of the source: what is cached has no marks."""
        path = self.get_filename(fullname)
        code: CodeType = compile(_marked(ast.parse(self.get_data(path))), path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, MARK, self._reached.add)
        super().exec_module(module)


def statements(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
    """Each statement of each function, with the block that it is in; docstrings and `...` are none."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            yield from _inside(function.body)


def _inside(block: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
    for statement in block:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        yield block, statement
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):  # those are found by themselves
            for inner in _blocks(statement):
                yield from _inside(inner)


def _blocks(node: Any) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, [])
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _marked(tree: ast.Module) -> ast.Module:
    for block, statement in list(statements(tree)):
        mark = ast.parse(f"{MARK}({statement.lineno})").body[0]
        for node in ast.walk(mark):
            ast.copy_location(node, statement)
        block.insert(next(i for i, other in enumerate(block) if other is statement), mark)
    return tree
