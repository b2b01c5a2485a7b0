"""Code above the transport is the same in the simulator: it does not ask where it runs, except for real memory."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.rules

ROOT = Path(__file__).parents[1]

REAL_MEMORY = {
    "dps/client/reports.py": "gives the process's own memory back to the system, which no simulated process has",
    "dps/adapters/jax.py": "refuses the simulator, whose tasks would share the stack of JAX's compiled code",
}
"""Files above the transport that ask `runtime.simulated`, and why. Anything else that differs in the simulator is a
field or method of `dps.transport.endpoint.Runtime`, or a value in `runtime.tuning`."""


def asks(path: Path) -> bool:
    """Whether a file reads an attribute `simulated`."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return any(isinstance(node, ast.Attribute) and node.attr == "simulated" for node in nodes)


def test_nothing_above_the_transport_asks_whether_it_is_simulated_except_for_real_memory() -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "dps").rglob("*.py") if asks(path)}
    assert {file for file in files if not file.startswith("dps/transport/")} == REAL_MEMORY.keys()


def test_where_it_is_asked_the_reason_stands_beside_it() -> None:
    for file in REAL_MEMORY:
        lines = (ROOT / file).read_text().splitlines()
        for number, line in enumerate(lines):
            if ".simulated" in line:
                assert "# Not in the simulator: " in lines[number - 1], f"{file}:{number + 1}: no reason above it"
