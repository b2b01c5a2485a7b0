"""The promises under faults when pushes travel compressed: what was left out of a push never counts twice or unasked.

A push of the training program has one element that is not 0, which each compressor here sends as it is: so its
residual is 0 when all is right, and a push that was dropped or rolled back must not come back out of it.
"""

from __future__ import annotations

import os

import pytest

from dps import compress
from tests.simulation.scenario import run, scenario

COMPRESSORS = [
    compress.TopK(0.01), {"a": compress.TopK(0.3), "b": None, "*": compress.Bfloat16()},
    {"[ct]": compress.RandomK(1.0), "*": compress.Float16()},
]  # fmt: skip


@pytest.mark.parametrize("mode", ["async", "sync", "bounded"])
def test_no_promise_is_broken_when_pushes_are_compressed(mode: str) -> None:
    for seed in range(int(os.environ.get("DPS_COMPRESSED_SEEDS", "12"))):
        found = run(scenario(mode, seed), compression=COMPRESSORS[seed % len(COMPRESSORS)], deltas=seed % 2 == 1)
        assert not found, "\n".join(found)
