"""Sizes of the code: files up to 500 lines and few below 40, functions up to 9 parameters, classes up to 12 attributes.

What is larger says why, in a comment or docstring beside it that begins with `More than 9 parameters:` or `More than 12
attributes:` (CONTRIBUTING.md). A file over 500 lines is split; `LONG` has the exceptions, whose docstrings say
`More than 500 lines:`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.rules

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "dps").rglob("*.py"))
LINES, PARAMETERS, ATTRIBUTES = 500, 9, 12
SMALL, MOST_SMALL = 40, 19
"""How many modules, `__init__` apart, may have fewer than 40 lines."""
LONG = {"dps/client/session.py", "dps/messages/runs.py", "dps/training/optimizers.py"}
"""Public classes and messages whose documentation alone is half of a file or more; without docstrings they are in the
limit, too."""


@cache
def source(path: Path) -> str:
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(source(path))


def parameters(function: ast.FunctionDef) -> int:
    """How many a function has, without self."""
    own = function.args
    named = [arg.arg for arg in (*own.posonlyargs, *own.args)]
    return len(named[named[:1] in (["self"], ["cls"]) :]) + len(own.kwonlyargs) + bool(own.vararg) + bool(own.kwarg)


def attributes(cls: ast.ClassDef) -> set[str]:
    """Those that a class declares, and those that its methods set."""
    declared = (node for node in cls.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name))
    found = {ast.unparse(node.target) for node in declared if "ClassVar" not in ast.unparse(node.annotation)}
    stored = (n for n in ast.walk(cls) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return found | {node.attr for node in stored if ast.unparse(node.value) == "self"}


def documented(path: Path) -> int:
    """How many lines of docstrings a file has."""
    texts = [
        node.value
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return sum((text.end_lineno or 0) - text.lineno + 1 for text in texts)


def has_reason(path: Path, node: ast.FunctionDef | ast.ClassDef, words: str) -> bool:
    """Whether the code of a function or class, or the comment before it, says why it is larger.

    In the kernels one sentence at the head of a file may speak for all of its functions.
    """
    lines = source(path).splitlines()
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    text = "\n".join(lines[max(0, first - 3) : node.end_lineno])
    if path.parent.name == "kernels" and isinstance(node, ast.FunctionDef):
        text += ast.get_docstring(tree(path)) or ""
    return re.search(rf"{words}:\s+\S+", text) is not None


def too_large(path: Path) -> Iterator[str]:
    """What of a file is above a limit, where and how."""
    name = str(path.relative_to(ROOT))
    lines = source(path).count("\n")
    if name in LONG and re.search(rf"More than {LINES} lines:\s+\S+", ast.get_docstring(tree(path)) or ""):
        lines -= documented(path)
    if lines > LINES:
        yield f"{name}: {lines} lines, at most {LINES}; split it by noun"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            count, most, what = parameters(node), PARAMETERS, "parameters"
        elif isinstance(node, ast.ClassDef):
            count, most, what = len(attributes(node)), ATTRIBUTES, "attributes"
        else:
            continue
        if count > most and not has_reason(path, node, f"More than {most} {what}"):
            yield f"{name}:{node.lineno}: {node.name} has {count} {what}, at most {most} without a reason beside it"


def test_nothing_is_larger_than_it_may_be() -> None:
    larger = [text for path in FILES for text in too_large(path)]
    assert not larger, "\n".join(larger)


def test_few_modules_are_fragments() -> None:
    small = {str(f.relative_to(ROOT)): source(f).count("\n") for f in FILES if f.name != "__init__.py"}
    small = {name: lines for name, lines in small.items() if lines < SMALL}
    assert len(small) <= MOST_SMALL, f"{len(small)} modules have fewer than {SMALL} lines; fold some: {sorted(small)}"


def test_an_exception_for_a_long_file_is_needed() -> None:
    long = {str(path.relative_to(ROOT)) for path in FILES if source(path).count("\n") > LINES}
    says = {str(path.relative_to(ROOT)) for path in FILES if f"More than {LINES} lines:" in source(path)}
    assert long == says == LONG


REASON = re.compile(r"More than (\d+) (parameters|attributes):")


def test_a_reason_stands_only_where_it_is_needed() -> None:
    for path in FILES:
        wanted = {str(PARAMETERS), str(ATTRIBUTES)}
        numbers = {count for count, _ in REASON.findall(source(path))}
        assert numbers <= wanted, f"{path.relative_to(ROOT)}: a reason names another limit than {wanted}"
