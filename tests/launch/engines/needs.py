"""Which engines this machine has. `make engines` runs their tests, and fails where something is missing."""

from __future__ import annotations

import os

import pytest

REQUIRED = bool(os.environ.get("DPS_ENGINES"))
"""Read here, because no test keeps variables of dps."""


def need(there: object, what: str) -> None:
    """Skip the test without `make engines`; with it, fail if something is not there."""
    if not REQUIRED:
        pytest.skip("make engines runs it: it starts daemons")
    if not there:
        pytest.fail(f"make engines needs {what}")
