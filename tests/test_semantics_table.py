"""The table of which test proves which sentence names only tests that exist, and leaves no sentence without one."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.rules

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "semantics-coverage.md"
SECTIONS = [
    "Cluster", "Device strings", "Placement", "Partitioned variables", "Asynchronous updates", "Synchronous updates",
    "Bounded staleness", "Local updates", "Optimizers", "Session", "Names, versions, readers",
    "Keyed tables", "TF_CONFIG and resolvers", "Coordinator",
]  # fmt: skip


def rows() -> list[tuple[str, str, list[str]]]:
    """Section, sentence and test ids of every row."""
    found, section = [], ""
    for line in TABLE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| ") and not line.startswith(("| sentence", "| ---")):
            sentence, _, tests = line.strip("| ").rpartition(" | ")
            found.append((section, sentence, re.findall(r"`([^`]+)`", tests)))
    return found


@functools.cache
def functions_of(path: Path) -> set[str]:
    """Names of the test functions of a file, those of its classes too."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_section_has_rows() -> None:
    assert list(dict.fromkeys(section for section, _, _ in rows())) == SECTIONS


@pytest.mark.parametrize("section", SECTIONS)
def test_every_sentence_has_tests_and_they_exist(section: str) -> None:
    missing = []
    for _, sentence, tests in (row for row in rows() if row[0] == section):
        assert tests, f"no test is named for: {sentence}"
        for test in tests:
            file, _, name = test.partition("::")
            path = ROOT / "tests" / file
            if not path.is_file() or name not in functions_of(path):
                missing.append(test)
    assert not missing, f"there are no such tests: {missing}"
