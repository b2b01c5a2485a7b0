"""Which engines this machine has. `make engines` runs their tests, and fails where something is missing."""

from __future__ import annotations

import os

import pytest

REQUIRED = bool(os.environ.get("DPS_ENGINES"))
"""Read here, because no test keeps variables of dps."""


def need(missing: str) -> None:
    """Skip the test without `make engines`; with it, fail if something is missing, "" if nothing is."""
    if REQUIRED and missing:
        pytest.fail(f"make engines needs {missing}")
    if not REQUIRED:
        pytest.skip(f"it needs {missing}" if missing else "make engines runs it: it starts daemons")
