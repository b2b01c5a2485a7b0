"""The seeds of a checker in the simulator, in chunks: a third with `make test`, the others with `make examples`."""

from __future__ import annotations

import os
from typing import Any

import pytest

CHUNK = 50


def chunks(seeds: int = 300) -> list[Any]:
    """Ranges of so many seeds, or of as many as DPS_SEEDS says, each for one test; `slow` after the first third."""
    given = os.environ.get("DPS_SEEDS")
    seeds, quick = (seeds, seeds // 3) if given is None else (int(given), int(given))
    return [
        pytest.param(
            range(first, min(first + CHUNK, seeds)), id=str(first), marks=[pytest.mark.slow] if first >= quick else []
        )
        for first in range(0, seeds, CHUNK)
    ]  # fmt: skip
