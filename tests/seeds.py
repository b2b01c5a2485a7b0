"""The seeds of tests in the simulator, in chunks: a quarter of them with `make test`, the others with `make examples`.
`make nightly` runs 300.

DPS_SEEDS says how many instead, all with `make test`, and DPS_FIRST_SEED which is the first.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

FIRST = int(os.environ.get("DPS_FIRST_SEED", "0"))


def counts(usual: int = 16) -> tuple[int, int]:
    """How many seeds there are, and after how many of them they are `slow`."""
    seeds = int(os.environ.get("DPS_SEEDS", usual))
    return seeds, seeds if "DPS_SEEDS" in os.environ else seeds // 4


def cut(seeds: int, quick: int, chunk: int, nightly: int = 0) -> list[Any]:
    """Ranges of seeds, each a test; from the `quick`-th seed on they are slow, and so many more are nightly."""
    starts = [*range(0, quick, chunk), *range(quick, seeds, chunk)]
    ranges = [range(FIRST + a, FIRST + b) for a, b in zip(starts, [*starts[1:], seeds], strict=True)]
    marks = [[pytest.mark.slow] if found.start >= FIRST + quick else [] for found in ranges]
    if nightly:
        ranges.append(range(FIRST + seeds, FIRST + seeds + nightly))
        marks.append([pytest.mark.nightly])
    return [pytest.param(found, marks=mark, id=str(found.start)) for found, mark in zip(ranges, marks, strict=True)]


def chunks(usual: int = 16) -> list[Any]:
    """Ranges of the seeds of one checker."""
    return cut(*counts(usual), chunk=50)
